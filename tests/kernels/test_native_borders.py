"""What the kernels in C refuse, fall back for and do not touch; their threads and their files."""

import copy
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slipstream_kernels import compile as compiled
from slipstream_kernels import native, reference, weights
from slipstream_kernels.native import Native
from slipstream_kernels.reference import Span
from slipstream_kernels.weights import Packed
from tests.kernels.levels import LEVELS
from tests.kernels.test_weights import codes_of


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(8)


def _pools(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(40, 2, 32, generator=rng), torch.randn(40, 2, 32, generator=rng)


_OTHER_POOLS = {
    "float16": lambda keys, values: (keys.half(), values.half()),
    "two types": lambda keys, values: (keys.bfloat16(), values),
    "gaps": lambda keys, values: (keys.repeat(1, 1, 2)[..., :32], values.repeat(1, 2, 1)[:, :2]),
}


@pytest.mark.parametrize("kind", _OTHER_POOLS)
def test_pools_that_the_c_code_cannot_read_are_not_misread(
    library: Native, kind: str, rng: torch.Generator
) -> None:
    keys, values = _OTHER_POOLS[kind](*_pools(rng))
    query = torch.randn(3, 4, 32, generator=rng)
    spans = [Span(0, 3, ((30, 10), (2, 5)))]
    expected = reference.paged_attention(query, keys, values, spans)
    answer = library.paged_attention(query, keys, values, spans)
    assert torch.allclose(answer, expected, atol=1e-5)
    qkv = torch.randn(3, 8, 32, generator=rng)
    turns, slots = torch.ones(3, 16, dtype=torch.complex64), torch.tensor([39, 0, 7])
    ours, theirs = ([keys.clone(), values.clone()] for _ in range(2))
    library.rope_write_kv(qkv.clone(), turns, slots, *ours)
    reference.rope_write_kv(qkv.clone(), turns, slots, *theirs)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_queries_in_any_order_of_memory_get_the_same(library: Native, rng: torch.Generator) -> None:
    keys, values = _pools(rng)
    query = torch.randn(5, 4, 32, generator=rng)
    spans = [Span(0, 5, ((3, 30),))]
    expected = library.paged_attention(query, keys, values, spans)
    for other in (
        query.transpose(0, 1).contiguous().transpose(0, 1),
        query.transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat((query, query), dim=1)[:, :4],
        torch.cat((query, query), dim=2)[..., :32],
    ):
        answer = library.paged_attention(other, keys, values, spans)
        assert torch.equal(answer, expected)
        assert answer.is_contiguous()


@pytest.mark.parametrize(
    ("span", "error"),
    [
        (Span(0, 3, ((30, 11),)), IndexError),
        (Span(0, 3, ((40, 3),)), IndexError),
        (Span(2, 4, ((0, 9),)), IndexError),
        (Span(0, 3, ((-1, 5),)), ValueError),
        (Span(0, 3, ((0, 9), (12, -2))), ValueError),
        (Span(-1, 2, ((0, 9),)), ValueError),
        (Span(2, 1, ((0, 9),)), ValueError),
        (Span(0, 3, ((0, 2),)), ValueError),
    ],
    ids=str,
)
def test_spans_that_reach_beyond_the_batch_or_the_pool_are_refused(
    library: Native, span: Span, error: type[Exception], rng: torch.Generator
) -> None:
    with pytest.raises(error):
        library.paged_attention(torch.ones(3, 4, 32), *_pools(rng), [span])


def test_runs_of_no_rows_hold_none(library: Native, rng: torch.Generator) -> None:
    keys, values = _pools(rng)
    query = torch.randn(5, 4, 32, generator=rng)
    with_empty = [Span(0, 5, ((9, 0), (3, 6), (20, 0), (21, 0), (30, 8), (0, 0)))]
    expected = library.paged_attention(query, keys, values, [Span(0, 5, ((3, 6), (30, 8)))])
    assert torch.equal(library.paged_attention(query, keys, values, with_empty), expected)


@pytest.mark.parametrize("slot", [-1, 40, 1 << 40])
def test_a_slot_that_is_not_of_the_pool_changes_nothing(
    library: Native, slot: int, rng: torch.Generator
) -> None:
    keys, values = _pools(rng)
    qkv, turns = torch.randn(2, 8, 32, generator=rng), torch.ones(2, 16, dtype=torch.complex64)
    before = [part.clone() for part in (qkv, keys, values)]
    with pytest.raises(IndexError):
        library.rope_write_kv(qkv, turns, torch.tensor([3, slot]), keys, values)
    assert all(map(torch.equal, before, (qkv, keys, values)))


def test_turns_of_more_than_a_head_are_refused(library: Native, rng: torch.Generator) -> None:
    turns = torch.ones(2, 17, dtype=torch.complex64)
    with pytest.raises(RuntimeError):
        library.rope_write_kv(torch.ones(2, 8, 32), turns, torch.tensor([3, 4]), *_pools(rng))


def test_products_of_shapes_that_do_not_fit_are_refused(library: Native) -> None:
    packed = weights.pack(*codes_of(4, 16, 64), 4)
    for matrix in (packed, packed.unpacked()):
        for x in (torch.ones(2, 32), torch.ones(2, 96), torch.ones(2, 1, 64)):
            with pytest.raises(ValueError, match="64"):
                library.linear(x, matrix, None)
        for bias in (torch.ones(15), torch.ones(1), torch.ones(1, 16)):
            with pytest.raises(ValueError, match="bias"):
                library.linear(torch.ones(2, 64), matrix, bias)


def test_a_bias_may_have_any_type_and_lie_anywhere(library: Native, rng: torch.Generator) -> None:
    packed = weights.pack(*codes_of(4, 16, 64), 4)
    x, bias = torch.randn(2, 64, generator=rng), torch.arange(16.0)
    for matrix in (packed, packed.unpacked()):
        expected = library.linear(x, matrix, bias)
        for other in (bias.double(), bias.bfloat16(), torch.stack((bias, bias), dim=1)[:, 0]):
            assert torch.equal(library.linear(x, matrix, other), expected)


def test_dense_matrices_of_other_kinds_are_multiplied_as_by_the_reference(
    library: Native, rng: torch.Generator
) -> None:
    x, matrix = torch.randn(3, 32, generator=rng), torch.randn(16, 32, generator=rng)
    expected = library.linear(x, matrix, None)
    assert torch.allclose(library.linear(x, matrix.T.contiguous().T, None), expected, atol=1e-5)
    wide = torch.cat((matrix, matrix), dim=1)[:, :32]
    assert torch.allclose(library.linear(x, wide, None), expected, atol=1e-5)
    half = library.linear(x.bfloat16(), matrix.bfloat16(), None)
    assert half.dtype is torch.bfloat16
    assert torch.equal(half, reference.linear(x.bfloat16(), matrix.bfloat16(), None))


def test_norms_and_gates_of_other_kinds_are_those_of_the_reference(
    library: Native, rng: torch.Generator
) -> None:
    x, weight = torch.randn(3, 32, generator=rng), torch.randn(32, generator=rng)
    for other in (weight.bfloat16(), weight.double(), torch.stack((weight, weight), 1)[:, 0]):
        expected = reference.rms_norm(x, other, 1e-5)
        assert torch.allclose(library.rms_norm(x, other, 1e-5).to(expected.dtype), expected)
    with pytest.raises(RuntimeError):
        library.rms_norm(x, weight[:16], 1e-5)
    deep = torch.randn(2, 3, 32, generator=rng)
    assert torch.allclose(library.silu_mul(deep), reference.silu_mul(deep))
    assert library.rms_norm(torch.ones(0, 32), weight, 1e-5).shape == (0, 32)
    assert library.silu_mul(torch.ones(0, 32)).shape == (0, 16)


def test_what_the_process_makes_by_default_is_nothing_to_the_answers(library: Native) -> None:
    packed = weights.pack(*codes_of(4, 16, 64), 4)
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.ones(2, 64, dtype=torch.float32)
        pool = torch.ones(4, 2, 32, dtype=torch.float32)
        query = torch.ones(1, 2, 32, dtype=torch.float32)
        answers = (
            library.linear(x, packed, None),
            library.silu_mul(x),
            library.rms_norm(x, x[0], 1e-5),
            library.paged_attention(query, pool, pool, [Span(0, 1, ((0, 4),))]),
        )
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(answer.dtype is torch.float32 for answer in answers)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copied_matrix_reads_its_own_memory(
    library: Native, copied: Callable[[Packed], Packed], rng: torch.Generator
) -> None:
    packed = weights.pack(*codes_of(4, 16, 64), 4)
    x = torch.randn(1, 64, generator=rng)
    expected = library.linear(x, packed, None)
    other = copied(packed)
    assert other.data_at == other.data.data_ptr()
    if other.data is not packed.data:
        packed.data.zero_()
    assert torch.equal(library.linear(x, other, None), expected)


def test_data_that_is_no_packed_matrix_is_refused() -> None:
    data = weights.pack(*codes_of(4, 32, 64), 4).data
    for wrong, bits, rows, cols in (
        (data, 8, 32, 64),
        (data, 4, 48, 64),
        (data, 4, 31, 64),
        (data, 4, 32, 65),
        (data, 5, 32, 64),
        (data.to(torch.int8), 4, 32, 64),
        (torch.stack((data, data), dim=-1)[..., 0], 4, 32, 64),
    ):
        with pytest.raises(ValueError, match=r"bits|one after another"):
            Packed(wrong, bits, rows, cols)


@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-37, 1e-30, 1e30, 1e37])
def test_numbers_of_any_size_are_multiplied(library: Native, size: float) -> None:
    """Smaller ones than 127 divided by the largest number count as zeros."""
    codes = torch.ones(16, 64, dtype=torch.uint8)
    packed = weights.pack(codes, torch.full((16, 2), 2.0**-12), torch.zeros(16, 2), 4)
    x = torch.full((1, 64), size)
    x[0, ::2] = 0.0
    answer = library.linear(x, packed, None)
    expected = 32 * size * 2.0**-12
    assert torch.allclose(answer, torch.tensor(expected), rtol=0.01, atol=1e-37)
    assert torch.allclose(reference.linear(x, packed, None), answer, rtol=1e-5, atol=1e-37)


_THREADS = """
    import os, signal, sys, time, torch
    from slipstream_kernels import weights
    from slipstream_kernels.native import Native

    # torch's threads begin with its first large operation, and would be counted.
    torch.set_num_threads(1)
    library = Native(sys.argv[1])
    tasks = set(os.listdir("/proc/self/task"))
    codes, scales = torch.ones(1024, 512, dtype=torch.uint8), torch.ones(1024, 16)
    packed = weights.pack(codes, scales, scales, 4)
    x = torch.randn(70, 512)
    expected = library.linear(x, packed, None)
    for count in (5, 1, 3, 7):
        assert library.set_threads(count) == count
        assert torch.equal(library.linear(x, packed, None), expected)
    started = set(os.listdir("/proc/self/task")) - tasks
    assert len(started) == 6, started
    for task in started:
        until_s = time.monotonic() + 20
        while True:
            status = open(f"/proc/self/task/{task}/status").read()
            blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            assert blocked >> signal.SIGTERM - 1 & 1 and blocked >> signal.SIGINT - 1 & 1
            if not blocked >> signal.SIGSEGV - 1 & 1:
                break
            # A thread that has not had a core yet has all of them blocked.
            assert time.monotonic() < until_s
    child = os.fork()
    if child == 0:
        # Alone until it asks for threads of its own.
        assert torch.equal(library.linear(x, packed, None), expected)
        assert len(os.listdir("/proc/self/task")) == 1
        assert library.set_threads(3) == 3
        assert len(os.listdir("/proc/self/task")) == 3
        for _ in range(100):
            assert torch.equal(library.linear(x, packed, None), expected)
        os._exit(17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert torch.equal(library.linear(x, packed, None), expected)
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.slow
def test_threads_are_as_many_as_asked_for_also_in_a_child_and_leave_signals_to_others(
    level: str,
) -> None:
    _run(_THREADS, level)


def test_no_threads_are_refused(library: Native) -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match="threads"):
            library.set_threads(count)


# Everything that is read ends where the process's memory ends.
_EDGES = """
    import ctypes, mmap, sys, torch
    from slipstream_kernels import weights
    from slipstream_kernels.native import Native
    from slipstream_kernels.reference import Span

    def at_the_edge(x):
        size = -(-x.nbytes // 4096) * 4096
        memory = mmap.mmap(-1, size + 4096)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), 4096, 0) == 0
        moved = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=size - x.nbytes)
        return moved.view(x.shape).copy_(x)

    library = Native(sys.argv[1])
    library.set_threads(2)
    for heads, kv_heads, size in ((4, 4, 16), (9, 3, 64), (5, 1, 80), (8, 1, 128), (2, 1, 256)):
        for dtype in (torch.float32, torch.bfloat16):
            keys, values = (at_the_edge(torch.ones(600, kv_heads, size, dtype=dtype)) for _ in "kv")
            for count in (1, 3, 5, 49):
                query = at_the_edge(torch.ones(count, heads, size))
                masks = tuple(1 | 1 << token for token in range(count))
                for span in (
                    Span(0, count, ((0, 600),)),
                    Span(0, count, ((599 - count, count + 1),)),
                    Span(0, count, ((583 - count, count + 17),), masks),
                ):
                    answer = library.paged_attention(query, keys, values, [span])
                    assert torch.equal(answer, torch.ones(count, heads, size))
                qkv = at_the_edge(torch.ones(count, heads + 2 * kv_heads, size))
                turns = at_the_edge(torch.ones(count, size // 2, dtype=torch.complex64))
                slots = at_the_edge(torch.arange(600 - count, 600))
                library.rope_write_kv(qkv, turns, slots, keys, values)
    for bits in (4, 8):
        for rows, cols, count in ((16, 32, 1), (208, 96, 9), (2048, 64, 70)):
            codes = torch.ones(rows, cols, dtype=torch.uint8)
            parts = torch.ones(rows, cols // 32), torch.zeros(rows, cols // 32)
            packed = weights.pack(codes, *parts, bits)
            packed = weights.Packed(at_the_edge(packed.data), bits, rows, cols)
            bias = at_the_edge(torch.ones(rows))
            answer = library.linear(at_the_edge(torch.ones(count, cols)), packed, bias)
            assert torch.allclose(answer, torch.tensor(cols + 1.0))
    for rows, cols, count in ((1, 1, 1), (7, 100, 1), (7, 100, 6), (48, 64, 3), (33, 17, 70)):
        x, matrix = at_the_edge(torch.ones(count, cols)), at_the_edge(torch.ones(rows, cols))
        answer = library.linear(x, matrix, at_the_edge(torch.ones(rows)))
        assert torch.equal(answer, torch.full((count, rows), cols + 1.0))
    for size in (1, 17, 32, 1000):
        x, weight = at_the_edge(torch.ones(3, size)), at_the_edge(torch.ones(size))
        library.rms_norm(x, weight, 1e-5)
        library.silu_mul(at_the_edge(torch.ones(3, 2 * size)))
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.slow
def test_not_a_byte_is_read_behind_what_is_given(level: str) -> None:
    _run(_EDGES, level)


def _run(script: str, level: str) -> None:
    """In a process of its own: it may fork, or die of a fault."""
    command = [sys.executable, "-c", textwrap.dedent(script), level]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not LEVELS, reason="no level of the kernels in C runs here")
def test_kernels_that_were_not_compiled_are_missed_aloud(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiled, "library", lambda level: tmp_path / f"{level}.so")
    native.best.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"python -m slipstream_kernels\.compile"):
            assert native.best() is None
    finally:
        native.best.cache_clear()
    (tmp_path / f"{LEVELS[0]}.so").write_bytes(b"\x7fELF and no more")
    with pytest.raises(OSError, match=LEVELS[0]):
        Native(LEVELS[0])


def test_a_system_that_names_no_features_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    features = native._processor_features.__wrapped__
    assert not LEVELS or features()

    def missing(self: Path, **_: str) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", missing)
    assert features() == frozenset()
