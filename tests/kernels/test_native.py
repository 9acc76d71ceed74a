"""The kernels in C answer as the references do, at every level that this machine has."""

import subprocess
import sys

import pytest
import torch

from slipstream_kernels import dispatch, native, reference, weights
from slipstream_kernels.native import Native
from slipstream_kernels.verify import verify
from slipstream_kernels.weights import Weight
from tests.kernels.levels import LEVELS
from tests.kernels.test_weights import codes_of

_CPU = torch.device("cpu")


def test_a_processor_with_a_level_uses_its_best() -> None:
    best = native.best()
    if not LEVELS:
        assert best is None
        assert dispatch.for_device(_CPU).sources()["linear"] == "reference"
        return
    assert best is not None
    sources = dispatch.for_device(_CPU).sources()
    for operation in dispatch.OPERATIONS:
        if operation in ("lookup", "paged_decode"):
            continue
        assert sources[operation] == f"native-{LEVELS[0]}"
    assert sources["paged_decode"] == "reference"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8, 9, 70])
@pytest.mark.parametrize(("rows", "cols"), [(16, 32), (208, 96), (16, 1536)])
def test_products_are_those_of_the_reference(
    threaded: Native, bits: int, tokens: int, rows: int, cols: int
) -> None:
    packed = weights.pack(*codes_of(bits, rows, cols), bits)
    rng = torch.Generator().manual_seed(tokens)
    x, bias = torch.randn(tokens, cols, generator=rng), torch.randn(rows, generator=rng)
    expected = reference.linear(x, packed, bias)
    answer = threaded.linear(x, packed, bias)
    # One number that lies between two codes may go either way: a step of it.
    step = float(x.abs().max()) / 127 * float(packed.unpacked().abs().max())
    assert float((answer - expected).abs().max()) < 1e-5 * float(expected.abs().max()) + step
    assert float((answer - expected).abs().mean()) < 1e-5 * float(expected.abs().max())
    assert torch.equal(
        threaded.linear(x, packed, None) + bias, threaded.linear(x, packed, None) + bias
    )


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 9, 70])
@pytest.mark.parametrize(("rows", "cols"), [(16, 32), (37, 100), (3, 5), (1, 1), (130, 4100)])
def test_products_with_dense_matrices_are_those_of_the_reference_and_of_each_row_alone(
    threaded: Native, tokens: int, rows: int, cols: int
) -> None:
    shape = {"tokens": tokens, "rows": rows, "cols": cols}
    verify("linear", threaded.linear, shape, torch.float32, _CPU)
    rng = torch.Generator().manual_seed(tokens)
    x, matrix = torch.randn(tokens, cols, generator=rng), torch.randn(rows, cols, generator=rng)
    together = threaded.linear(x, matrix, None)
    for row in range(tokens):
        assert torch.equal(threaded.linear(x[row : row + 1], matrix, None)[0], together[row])
    assert torch.equal(threaded.linear(x[1:], matrix, None), together[1:])
    between_others = torch.cat((x, x), dim=1)[:, :cols]
    assert torch.equal(threaded.linear(between_others, matrix, None), together)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_codes_do_not_overflow(library: Native, bits: int) -> None:
    codes = torch.full((16, 2048), (1 << bits) - 1, dtype=torch.uint8)
    packed = weights.pack(codes, torch.ones(16, 64), torch.zeros(16, 64), bits)
    for sign in (1.0, -1.0):
        x = torch.full((3, 2048), sign)
        exact = sign * 2048 * ((1 << bits) - 1)
        assert torch.allclose(library.linear(x, packed, None), torch.tensor(exact), rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_is_the_same_in_any_batch_and_on_any_number_of_threads(
    library: Native, bits: int
) -> None:
    packed = weights.pack(*codes_of(bits, 96, 576), bits)
    x = torch.randn(33, 576, generator=torch.Generator().manual_seed(3))
    library.set_threads(2)
    together = library.linear(x, packed, None)
    for threads in (1, 4):
        library.set_threads(threads)
        for row in range(33):
            assert torch.equal(library.linear(x[row : row + 1], packed, None)[0], together[row])


@pytest.mark.skipif(not LEVELS, reason="no level of the kernels in C runs here")
@pytest.mark.parametrize("bits", [4, 8])
def test_every_processor_gives_the_same_bits(bits: int) -> None:
    rng = torch.Generator().manual_seed(bits)
    packed = weights.pack(*codes_of(bits, 96, 576), bits)
    x, bias = torch.randn(13, 576, generator=rng), torch.randn(96, generator=rng)
    angles = torch.rand(13, 8, generator=rng) * 100
    answers = []
    for level in LEVELS:
        library = Native(level)
        qkv, keys, values = x.view(13, 18, 32).clone(), *(torch.zeros(20, 3, 32) for _ in "kv")
        turns = torch.polar(torch.ones_like(angles), angles)
        library.rope_write_kv(qkv, turns, torch.arange(13), keys, values)
        products = library.linear(x, packed, bias) + library.linear(x, packed.unpacked(), bias)
        # 36 are no multiple of a vector's sixteen lanes.
        normed = library.rms_norm(x[:, :36].contiguous(), x[0, :36].contiguous(), 1e-5)
        gated = library.silu_mul(x[:, :72].contiguous())
        answers.append([products, normed, gated, qkv, keys, values])
    for other in answers[1:]:
        assert all(map(torch.equal, answers[0], other))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_stays_none(library: Native, poison: float) -> None:
    packed = weights.pack(*codes_of(4, 16, 64), 4)
    x = torch.ones(2, 64)
    x[1, 40] = poison
    answer = library.linear(x, packed, None)
    assert bool(answer[0].isfinite().all())
    assert bool(answer[1].isnan().all())
    gated = library.silu_mul(torch.tensor([[float("nan")] * 17 + [1.0] * 17]))
    assert bool(gated.isnan().all())
    assert bool(library.rms_norm(x, torch.ones(64), 1e-5)[1].isnan().any())


def test_no_rows_give_no_rows(library: Native) -> None:
    packed = weights.pack(*codes_of(4, 16, 64), 4)
    assert library.linear(torch.empty(0, 64), packed, None).shape == (0, 16)


def test_a_row_of_zeros_gives_the_bias(library: Native) -> None:
    packed = weights.pack(*codes_of(4, 16, 64), 4)
    bias = torch.arange(16.0)
    assert torch.equal(library.linear(torch.zeros(1, 64), packed, bias)[0], bias)


def test_rows_that_are_not_side_by_side_are_multiplied_too(library: Native) -> None:
    packed = weights.pack(*codes_of(4, 16, 64), 4)
    wide = torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
    expected = library.linear(wide[:, 64:].contiguous(), packed, None)
    assert torch.equal(library.linear(wide[:, 64:], packed, None), expected)
    assert torch.equal(library.linear(wide.T[64:].T, packed, None), expected)


@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize("size", [8, 576, 1000])
def test_norms_and_gates_are_those_of_the_reference(
    threaded: Native, tokens: int, size: int
) -> None:
    shape = {"tokens": tokens, "size": size}
    verify("rms_norm", threaded.rms_norm, shape, torch.float32, _CPU)
    verify("silu_mul", threaded.silu_mul, shape, torch.float32, _CPU)


@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (2, 2, 8), (4, 1, 6)])
def test_places_are_those_of_the_reference(
    threaded: Native, tokens: int, heads: int, kv_heads: int, head_dim: int
) -> None:
    shape = {"tokens": tokens, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    verify("rope_write_kv", threaded.rope_write_kv, shape, torch.float32, _CPU)


@pytest.mark.parametrize("repeats", [1, 5])
def test_a_pool_of_half_the_width_gets_the_nearest_numbers(library: Native, repeats: int) -> None:
    size = 8 * repeats
    special = [float("nan"), float("inf"), -0.0, 3.4e38, 1e-40, 1.00390625, 1.01171875, 2.5]
    qkv = torch.tensor([special * 3 * repeats] * 2).view(2, 3, size)
    turns = torch.ones(2, size // 2, dtype=torch.complex64)
    ours, theirs = ([torch.zeros(4, 1, size, dtype=torch.bfloat16) for _ in "kv"] for _ in "ab")
    library.rope_write_kv(qkv.clone(), turns, torch.tensor([3, 1]), *ours)
    reference.rope_write_kv(qkv.clone(), turns, torch.tensor([3, 1]), *theirs)
    # Values are stored as they are; keys are turned first, which makes no number of an infinity.
    assert torch.equal(ours[1].nan_to_num(7), theirs[1].nan_to_num(7))
    assert torch.equal(ours[1].isnan(), theirs[1].isnan())
    kept = [index for index in range(size) if index % 8 >= 4]
    assert torch.equal(ours[0][..., kept], theirs[0][..., kept])


def test_gates_of_any_size_are_those_of_the_reference(library: Native) -> None:
    gate = torch.cat((torch.linspace(-200, 200, 16384), torch.tensor([0.0, -0.0, 1e-30, -1e-30])))
    gate_up = torch.cat((gate, torch.ones_like(gate))).unsqueeze(0)
    answer, expected = library.silu_mul(gate_up), reference.silu_mul(gate_up)
    assert torch.allclose(answer, expected, rtol=1e-6, atol=1e-35)


@pytest.mark.parametrize("experts", [6, 16, 37])
def test_experts_are_chosen_as_by_the_reference_and_for_each_token_as_alone(
    library: Native, experts: int
) -> None:
    shape = {"tokens": 21, "experts": experts, "active": 3}
    verify("route", library.route, shape, torch.float32, _CPU)
    routing = reference.Routing(num_active=3, is_sigmoid=True, is_normalised=True)
    extremes = torch.tensor([0.0, -0.0, 200, -200, float("inf"), -float("inf"), float("nan"), 87.5])
    assert torch.allclose(
        library._sigmoid_of(extremes), extremes.sigmoid(), rtol=1e-6, atol=1e-37, equal_nan=True
    )
    logits = torch.randn(21, experts, generator=torch.Generator().manual_seed(experts))
    chosen, shares = library.route(logits, None, routing)
    for token in range(21):
        alone = library.route(logits[token : token + 1], None, routing)
        assert torch.equal(alone[0][0], chosen[token])
        assert torch.equal(alone[1][0], shares[token])


@pytest.mark.parametrize("tokens", [1, 9])
def test_experts_in_codes_are_those_of_the_reference(library: Native, tokens: int) -> None:
    rng = torch.Generator().manual_seed(tokens)
    gate_ups: list[Weight] = [weights.pack(*codes_of(4, 64, 64), 4) for _ in range(3)]
    downs: list[Weight] = [weights.pack(*codes_of(8, 64, 32), 8) for _ in range(3)]
    chosen = torch.rand(tokens, 3, generator=rng).topk(2, dim=-1).indices
    shares = torch.rand(tokens, 2, generator=rng)
    x = torch.randn(tokens, 64, generator=rng)
    answer = library.experts(x, chosen, shares, gate_ups, downs)
    expected = reference.experts(x, chosen, shares, gate_ups, downs)
    assert float((answer - expected).abs().max()) < 0.01 * float(expected.abs().max())


def test_a_processor_that_cannot_run_a_level_is_not_given_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "_processor_features", lambda: frozenset({"sse2"}))
    native.best.cache_clear()
    try:
        assert native.best() is None
        sources = dispatch.for_device(_CPU).sources()
        assert sources["rms_norm"] == "cpu"
        assert sources["linear"] == "reference"
        assert set(sources) == set(dispatch.OPERATIONS)
    finally:
        native.best.cache_clear()


def test_what_was_compiled_is_not_compiled_again() -> None:
    command = [sys.executable, "-m", "slipstream_kernels.compile"]
    assert subprocess.run(command, capture_output=True, check=True, timeout=300).stdout == b""
