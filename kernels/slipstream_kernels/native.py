"""The kernels in C (`csrc/`), called through ctypes; the same signatures as the references."""

import ctypes
import functools
import warnings
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from slipstream_kernels import compile as compiled
from slipstream_kernels import cpu, reference
from slipstream_kernels.reference import Routing, Span
from slipstream_kernels.weights import GROUP, TILE_ROWS, Packed, Weight

# What the C code's registers and loops are made for.
_HEAD_MULTIPLE, _MAX_HEAD_DIM, _MAX_HEADS = 16, 256, 128

_Pointer, _Int64, _Int, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "slipstream_set_threads": (_Int,),
    "slipstream_linear": (
        *(_Pointer, _Int64, _Int64, _Int64, _Pointer, _Int64, _Int, _Pointer, _Pointer),
    ),
    "slipstream_dense": (_Pointer, _Int64, _Int64, _Pointer, _Int64, _Int64, _Pointer, _Pointer),
    "slipstream_attention": (
        *(_Pointer, _Int64, _Pointer, _Pointer, _Int, _Pointer, _Int64),
        *(_Pointer, _Pointer, _Pointer, _Int64, _Int64, _Int64, _Pointer),
    ),
    "slipstream_rms_norm": (_Pointer, _Pointer, _Float, _Int64, _Int64, _Pointer),
    "slipstream_rope_write_kv": (
        *(_Pointer, _Pointer, _Pointer, _Int64, _Pointer, _Pointer, _Int),
        *(_Int64, _Int64, _Int64, _Int64, _Int64),
    ),
    "slipstream_silu_mul": (_Pointer, _Int64, _Int64, _Pointer),
    "slipstream_sigmoid": (_Pointer, _Int64, _Pointer),
}


class Native:
    """The library of one level (`compile.LEVELS`).

    One set of threads a process: calls hold Python's lock, so that only one runs at a time.
    """

    _loaded: ClassVar[dict[Path, ctypes.PyDLL]] = {}

    def __init__(self, level: str) -> None:
        """Raises OSError: not compiled, or not for this machine."""
        path = compiled.library(level)
        # One object a file, so that several of these share its threads.
        library = self._loaded.setdefault(path, ctypes.PyDLL(str(path)))
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments
        self.__slipstream_source__ = f"native-{level}"
        self._set_threads = library.slipstream_set_threads
        self._linear = library.slipstream_linear
        self._dense = library.slipstream_dense
        self._attention = library.slipstream_attention
        self._rms_norm = library.slipstream_rms_norm
        self._rope_write_kv = library.slipstream_rope_write_kv
        self._silu_mul = library.slipstream_silu_mul
        self._sigmoid = library.slipstream_sigmoid
        # A step's layers see the same spans: what they say to C is written down once.
        self._latest = _work([])

    def set_threads(self, count: int) -> int:
        """How many there are now: fewer than asked for where the system gives no more."""
        if count < 1:
            raise ValueError(f"{count} threads")
        return int(self._set_threads(count))

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """As the reference. Raises MemoryError, ValueError: shapes that do not fit."""
        if isinstance(weight, Packed):
            rows, cols = weight.rows, weight.cols
        elif _is_plain(weight) and x.dtype is torch.float32:
            rows, cols = weight.shape
        else:
            return functional.linear(x, weight, bias)
        if x.dtype is not torch.float32 or x.stride(-1) != 1:
            return self.linear(x.float().contiguous(), weight, bias).to(x.dtype)
        if x.dim() != 2 or x.shape[1] != cols:
            raise ValueError(f"{list(x.shape)} times {rows} rows of {cols}")
        if bias is not None:
            if bias.shape != (rows,):
                raise ValueError(f"a bias of {list(bias.shape)} for {rows} rows")
            bias = bias.float().contiguous()
        count = len(x)
        y = torch.empty((count, rows), dtype=torch.float32, device=x.device)
        if count == 0:
            return y  # a chunk of a prompt of which no token's logits are wanted
        left = (x.data_ptr(), x.stride(0), count)
        right = (None if bias is None else bias.data_ptr(), y.data_ptr())
        if not isinstance(weight, Packed):
            self._dense(*left, weight.data_ptr(), rows, cols, *right)
        elif self._linear(
            *left, cols // GROUP, weight.data_at, rows // TILE_ROWS, weight.bits, *right
        ):
            raise MemoryError(f"no memory for a product of {count} rows")
        return y

    def route(
        self, logits: Tensor, correction: Tensor | None, routing: Routing
    ) -> tuple[Tensor, Tensor]:
        """As the reference; torch's sigmoid of a number depends on where it stands in a batch."""
        return reference.route(logits, correction, routing, self._sigmoid_of)

    def _sigmoid_of(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        answer = torch.empty_like(x)
        self._sigmoid(x.data_ptr(), x.numel(), answer.data_ptr())
        return answer

    def experts(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        gate_ups: list[Weight],
        downs: list[Weight],
    ) -> Tensor:
        return reference.experts(x, chosen, weights, gate_ups, downs, self.linear, self.silu_mul)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = x.shape[-1]
        if not x.is_contiguous():
            x = x.contiguous()  # heads between others
        if not (_is_plain(x) and _is_plain(weight) and weight.shape == (size,)) or not x.numel():
            return cpu.rms_norm(x, weight, eps)
        normed = torch.empty_like(x)
        count = x.numel() // size
        self._rms_norm(x.data_ptr(), weight.data_ptr(), eps, count, size, normed.data_ptr())
        return normed

    def rope_write_kv(
        self, qkv: Tensor, turns: Tensor, slots: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """As the reference. Raises IndexError: a slot that the pool does not have."""
        count, all_heads, size = qkv.shape
        num_rows, kv_heads, _ = keys.shape
        num_turns, turned = turns.shape
        is_fit = (
            _is_plain(qkv)
            and turns.dtype is torch.complex64
            and turns.is_contiguous()
            and slots.dtype is torch.int64
            and slots.is_contiguous()
            and num_turns == slots.numel() == count
            and 2 * turned <= size
            and all_heads > 2 * kv_heads
            and _are_pools(keys, values, num_rows * kv_heads * size)
        )
        if not is_fit:
            return reference.rope_write_kv(qkv, turns, slots, keys, values)
        failed = self._rope_write_kv(
            qkv.data_ptr(),
            turns.data_ptr(),
            slots.data_ptr(),
            num_rows,
            keys.data_ptr(),
            values.data_ptr(),
            keys.dtype is torch.bfloat16,
            count,
            all_heads - 2 * kv_heads,
            kv_heads,
            size,
            2 * turned,
        )
        if failed:
            raise IndexError(f"a slot that is not of a pool of {num_rows} rows")
        return None

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if not _is_plain(gate_up) or gate_up.dim() != 2 or gate_up.shape[1] % 2:
            return reference.silu_mul(gate_up)
        count, size = len(gate_up), gate_up.shape[1] // 2
        gated = torch.empty((count, size), dtype=torch.float32, device=gate_up.device)
        self._silu_mul(gate_up.data_ptr(), count, size, gated.data_ptr())
        return gated

    def paged_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, spans: list[Span]
    ) -> Tensor:
        """As the reference. Nobody changes `spans` between two calls.

        Raises MemoryError; IndexError: rows that the batch or the pool does not have; ValueError.
        """
        num_queries, heads, size = query.shape
        num_rows, kv_heads, _ = keys.shape
        is_fit = (
            query.dtype is torch.float32
            and size % _HEAD_MULTIPLE == 0
            and size <= _MAX_HEAD_DIM
            and heads <= _MAX_HEADS
            and heads % kv_heads == 0
            and _are_pools(keys, values, num_rows * kv_heads * size)
        )
        if not is_fit:
            return cpu.paged_attention(query, keys, values, spans)
        stride, *inner = query.stride()
        if inner != [size, 1]:
            query = query.contiguous()
            stride = heads * size
        work = self._latest
        if spans is not work.spans:
            work = self._latest = _work(spans)
        if work.num_queries > num_queries or work.num_rows > num_rows:
            raise IndexError(
                f"spans of {work.num_queries} tokens in {work.num_rows} rows:"
                f" there are {num_queries} and {num_rows}"
            )
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        failed = self._attention(
            query.data_ptr(),
            stride,
            keys.data_ptr(),
            values.data_ptr(),
            keys.dtype is torch.bfloat16,
            *work.addresses,
            heads,
            kv_heads,
            size,
            output.data_ptr(),
        )
        if failed:
            raise MemoryError(f"no memory for the attention of {num_queries} tokens")
        return output


def _is_plain(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_contiguous()


def _are_pools(keys: Tensor, values: Tensor, count: int) -> bool:
    """Whether the C code can read them: one type that it knows, `count` numbers without gaps."""
    dtype = keys.dtype
    return (
        (dtype is torch.bfloat16 or dtype is torch.float32)
        and values.dtype is dtype
        and keys.numel() == values.numel() == count
        and keys.is_contiguous()
        and values.is_contiguous()
    )


class _Work(NamedTuple):
    """Spans as given, and what they say to the C code.

    num_queries, num_rows: so many the batch and the pool must have. tensors, int64: facts of each
    span [5]: first row, number of rows, keys before them, first run, first way (-1: it is no tree);
    runs [2]: first row of the pool, number of rows; ways of rows of trees [2]: how many tokens of
    its tree it sees, and the first of them in the last tensor: rows of the pool. addresses: of the
    tensors, and after the first the number of spans.
    """

    spans: list[Span]
    num_queries: int
    num_rows: int
    tensors: list[Tensor]
    addresses: tuple[int, ...]


def _work(spans: list[Span]) -> _Work:
    facts: list[tuple[int, int, int, int, int]] = []
    runs: list[tuple[int, int]] = []
    ways: list[tuple[int, int]] = []
    own: list[int] = []
    for span in spans:
        count, past = span.end - span.start, span.past_len
        if span.start < 0 or count < 0 or past < 0 or min(map(min, span.runs), default=0) < 0:
            raise ValueError(f"tokens {span.start} to {span.end} with their keys in {span.runs}")
        first_way = len(ways) if span.ancestors else -1
        facts.append((span.start, count, past, len(runs), first_way))
        runs += span.runs
        for way in _ways(span):
            ways.append((len(way), len(own)))
            own += way
    tensors = [torch.tensor(part, dtype=torch.int64) for part in (facts, runs, ways, own)]
    first_address, *addresses = (tensor.data_ptr() for tensor in tensors)
    return _Work(
        spans,
        max((span.end for span in spans), default=0),
        max((first + length for first, length in runs), default=0),
        tensors,
        (first_address, len(spans), *addresses),
    )


def _ways(span: Span) -> list[list[int]]:
    """Of each token of a tree: where the tokens of the tree that it sees lie in the pool."""
    if not span.ancestors:
        return []
    rows = [row for first, length in span.runs for row in range(first, first + length)]
    ways: list[list[int]] = []
    for token, mask in enumerate(span.ancestors):
        others = mask ^ (1 << token)
        parents = ways[others.bit_length() - 1] if others else []
        ways.append([*parents, rows[span.past_len + token]])
    return ways


@functools.cache
def best() -> Native | None:
    """For this machine; None where its processor has no level, or nothing was compiled."""
    for level, (features, _) in compiled.LEVELS.items():
        if features <= _processor_features():
            if compiled.library(level).exists():
                return Native(level)
            warnings.warn(
                f"the kernels in C for {level} are missing: python -m slipstream_kernels.compile",
                RuntimeWarning,
                stacklevel=2,
            )
    return None


@functools.cache
def _processor_features() -> frozenset[str]:
    """As Linux names them; empty where it names none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, values = line.partition(":")
        if name.strip() == "flags":
            return frozenset(values.split())
    return frozenset()
