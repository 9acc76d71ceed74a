"""The kernels in C (`csrc/`), called through ctypes; the same signatures as the references."""

import ctypes
import functools
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from slipstream_kernels import compile as compiled
from slipstream_kernels import cpu, reference
from slipstream_kernels.reference import Span
from slipstream_kernels.weights import GROUP, TILE_ROWS, Packed, Weight

# What the C code's registers and loops are made for.
_HEAD_MULTIPLE, _MAX_HEAD_DIM, _MAX_HEADS = 16, 256, 128

_Pointer, _Int64, _Int, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "slipstream_set_threads": (_Int,),
    "slipstream_linear": (
        *(_Pointer, _Int64, _Int64, _Int64, _Pointer, _Int64, _Int, _Pointer, _Pointer),
    ),
    "slipstream_attention": (
        *(_Pointer, _Int64, _Pointer, _Pointer, _Int, _Pointer, _Int64),
        *(_Pointer, _Pointer, _Pointer, _Int64, _Int64, _Int64, _Pointer),
    ),
    "slipstream_rms_norm": (_Pointer, _Pointer, _Float, _Int64, _Int64, _Pointer),
    "slipstream_rope_write_kv": (
        *(_Pointer, _Pointer, _Pointer, _Pointer, _Pointer, _Int),
        *(_Int64, _Int64, _Int64, _Int64, _Int64),
    ),
    "slipstream_silu_mul": (_Pointer, _Int64, _Int64, _Pointer),
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
        self._attention = library.slipstream_attention
        self._rms_norm = library.slipstream_rms_norm
        self._rope_write_kv = library.slipstream_rope_write_kv
        self._silu_mul = library.slipstream_silu_mul
        # A step's layers see the same spans: what they say to C is written down once.
        self._latest = _work([])

    def set_threads(self, count: int) -> int:
        """How many there are now: fewer than asked for where the system gives no more."""
        return int(self._set_threads(count))

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """As the reference. Raises MemoryError."""
        if not isinstance(weight, Packed):
            return functional.linear(x, weight, bias)
        if x.dtype is not torch.float32 or x.stride(-1) != 1:
            return self.linear(x.float().contiguous(), weight, bias).to(x.dtype)
        y = torch.empty((len(x), weight.rows))
        if len(x) == 0:
            return y  # a chunk of a prompt of which no token's logits are wanted
        failed = self._linear(
            x.data_ptr(),
            x.stride(0),
            len(x),
            weight.cols // GROUP,
            weight.data_at,
            weight.rows // TILE_ROWS,
            weight.bits,
            None if bias is None else bias.data_ptr(),
            y.data_ptr(),
        )
        if failed:
            raise MemoryError(f"no memory for a product of {len(x)} rows")
        return y

    def experts(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        gate_ups: list[Weight],
        downs: list[Weight],
    ) -> Tensor:
        return reference.experts(x, chosen, weights, gate_ups, downs, self.linear)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dtype is not torch.float32 or not x.is_contiguous():
            return cpu.rms_norm(x, weight, eps)
        normed = torch.empty_like(x)
        size = x.shape[-1]
        count = x.numel() // size
        self._rms_norm(x.data_ptr(), weight.data_ptr(), eps, count, size, normed.data_ptr())
        return normed

    def rope_write_kv(
        self, qkv: Tensor, turns: Tensor, slots: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        if qkv.dtype is not torch.float32 or not qkv.is_contiguous():
            return reference.rope_write_kv(qkv, turns, slots, keys, values)
        kv_heads = keys.shape[1]
        self._rope_write_kv(
            qkv.data_ptr(),
            turns.data_ptr(),
            slots.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            keys.dtype is torch.bfloat16,
            len(qkv),
            qkv.shape[1] - 2 * kv_heads,
            kv_heads,
            qkv.shape[2],
            2 * turns.shape[1],
        )
        return None

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if gate_up.dtype is not torch.float32 or not gate_up.is_contiguous():
            return reference.silu_mul(gate_up)
        count, size = len(gate_up), gate_up.shape[-1] // 2
        gated = torch.empty((count, size))
        self._silu_mul(gate_up.data_ptr(), count, size, gated.data_ptr())
        return gated

    def paged_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, spans: list[Span]
    ) -> Tensor:
        size = query.shape[-1]
        is_fit = (
            size % _HEAD_MULTIPLE == 0 and size <= _MAX_HEAD_DIM and query.shape[1] <= _MAX_HEADS
        )
        if query.dtype is not torch.float32 or not is_fit:
            return cpu.paged_attention(query, keys, values, spans)
        work = self._latest
        if spans is not work.spans:
            work = self._latest = _work(spans)
        output = torch.empty(query.shape)
        failed = self._attention(
            query.data_ptr(),
            query.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            keys.dtype is torch.bfloat16,
            work.facts.data_ptr(),
            len(work.facts),
            work.runs.data_ptr(),
            work.ways.data_ptr(),
            work.own.data_ptr(),
            query.shape[1],
            keys.shape[1],
            query.shape[2],
            output.data_ptr(),
        )
        if failed:
            raise MemoryError(f"no memory for the attention of {len(query)} tokens")
        return output


class _Work(NamedTuple):
    """Spans as given, and what they say to the C code, all int64.

    facts: [spans, 5]: first row, number of rows, keys before them, first run, first way (-1: the
    span is no tree). runs: [runs, 2]: first row of the pool, number of rows. ways: [rows of trees,
    2]: how many tokens of its tree a row sees, and the first of them in `own`, rows of the pool.
    """

    spans: list[Span]
    facts: Tensor
    runs: Tensor
    ways: Tensor
    own: Tensor


def _work(spans: list[Span]) -> _Work:
    facts: list[tuple[int, int, int, int, int]] = []
    runs: list[tuple[int, int]] = []
    ways: list[tuple[int, int]] = []
    own: list[int] = []
    for span in spans:
        first_way = len(ways) if span.ancestors else -1
        facts.append((span.start, span.end - span.start, span.past_len, len(runs), first_way))
        runs += span.runs
        rows = _own_rows(span) if span.ancestors else []
        for mask in span.ancestors:
            way = [row for token, row in enumerate(rows) if mask >> token & 1]
            ways.append((len(way), len(own)))
            own += way
    return _Work(
        spans, *(torch.tensor(part, dtype=torch.int64) for part in (facts, runs, ways, own))
    )


def _own_rows(span: Span) -> list[int]:
    """Where the span's own tokens lie in the pool."""
    rows: list[int] = []
    left = span.past_len
    for first, length in span.runs:
        rows += range(first + min(length, left), first + length)
        left -= min(length, left)
    return rows


@functools.cache
def best() -> Native | None:
    """For this machine; None where its processor has no level, or nothing was compiled."""
    for level, (features, _) in compiled.LEVELS.items():
        if features <= _processor_features() and compiled.library(level).exists():
            return Native(level)
    return None


@functools.cache
def _processor_features() -> frozenset[str]:
    """As Linux names them; empty where it names none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, values = line.partition(":")
        if name.strip() == "flags":
            return frozenset(values.split())
    return frozenset()
