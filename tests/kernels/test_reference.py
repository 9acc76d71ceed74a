"""The reference operations against independent, slow formulas and the library's own layers."""

import math

import pytest
import torch
from torch import Tensor

from slipstream_kernels import cpu
from slipstream_kernels import reference as ops
from slipstream_kernels.reference import Routing, Span
from slipstream_kernels.weights import Weight


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_rms_norm_equals_the_library(rng: torch.Generator) -> None:
    x, weight = torch.randn(5, 12, generator=rng), torch.randn(12, generator=rng)
    expected = torch.nn.functional.rms_norm(x, (12,), weight, 1e-5)
    assert torch.allclose(ops.rms_norm(x, weight, 1e-5), expected, atol=1e-6)


def test_rms_norm_of_bfloat16_is_computed_in_float32(rng: torch.Generator) -> None:
    x = (100 * torch.randn(4, 64, generator=rng)).bfloat16()
    weight = torch.ones(64).bfloat16()
    expected = ops.rms_norm(x.float(), weight.float(), 1e-5)
    result = ops.rms_norm(x, weight, 1e-5)
    assert result.dtype is torch.bfloat16
    assert torch.equal(result, expected.bfloat16())


def test_rope_turns_each_adjacent_pair_by_its_angle(rng: torch.Generator) -> None:
    x = torch.randn(3, 2, 8, generator=rng)
    angles = torch.rand(3, 4, generator=rng) * 6
    expected = torch.empty_like(x)
    for token in range(3):
        for pair in range(4):
            cos, sin = math.cos(angles[token, pair]), math.sin(angles[token, pair])
            first, second = x[token, :, 2 * pair], x[token, :, 2 * pair + 1]
            expected[token, :, 2 * pair] = first * cos - second * sin
            expected[token, :, 2 * pair + 1] = second * cos + first * sin
    ops.rope_(x, torch.polar(torch.ones_like(angles), angles))
    assert torch.allclose(x, expected, atol=1e-6)


def test_silu_mul_takes_the_gate_first() -> None:
    gate_up = torch.tensor([[1.0, -2.0, 3.0, 5.0]])
    expected = [1 / (1 + math.exp(-1)) * 3, -2 / (1 + math.exp(2)) * 5]
    assert torch.allclose(ops.silu_mul(gate_up), torch.tensor([expected]))


def _attend_slowly(query: Tensor, keys: Tensor, values: Tensor, context: int) -> Tensor:
    """One sequence, one loop a number: [tokens, heads, head_dim]."""
    tokens, heads, size = query.shape
    group = heads // keys.shape[1]
    output = torch.zeros_like(query)
    for token in range(tokens):
        visible = context - tokens + token + 1
        for head in range(heads):
            scores = [
                float(query[token, head] @ keys[place, head // group]) / math.sqrt(size)
                for place in range(visible)
            ]
            weights = torch.tensor(scores).softmax(0)
            for place in range(visible):
                output[token, head] += weights[place] * values[place, head // group]
    return output


def test_experts_equal_a_loop_over_tokens(rng: torch.Generator) -> None:
    x = torch.randn(5, 8, generator=rng)
    gate_ups: list[Weight] = [torch.randn(12, 8, generator=rng) for _ in range(4)]
    downs: list[Weight] = [torch.randn(8, 6, generator=rng) for _ in range(4)]
    chosen = torch.tensor([[0, 3], [3, 1], [2, 0], [1, 2], [3, 0]])
    weights = torch.rand(5, 2, generator=rng)
    expected = torch.zeros_like(x)
    for token in range(5):
        for expert, weight in zip(chosen[token].tolist(), weights[token].tolist(), strict=True):
            inner = ops.silu_mul(ops.linear(x[token : token + 1], gate_ups[expert], None))
            expected[token] += weight * ops.linear(inner, downs[expert], None)[0]
    assert torch.allclose(ops.experts(x, chosen, weights, gate_ups, downs), expected, atol=1e-5)


def test_routing_by_groups_never_leaves_the_best_groups(rng: torch.Generator) -> None:
    routing = Routing(3, is_sigmoid=True, is_normalised=True, num_groups=4, num_active_groups=2)
    logits = torch.randn(50, 16, generator=rng)
    correction = torch.randn(16, generator=rng) - 3
    experts, weights = ops.route(logits, correction, routing)
    choice = (logits.sigmoid() + correction).view(50, 4, 4)
    best = choice.topk(2, -1).values.sum(-1).topk(2, -1).indices
    for token in range(50):
        assert set((experts[token] // 4).tolist()) <= set(best[token].tolist())
        assert len(set(experts[token].tolist())) == 3
    assert torch.allclose(weights.sum(-1), torch.ones(50))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 2), (4, 1)], ids=str)
def test_paged_attention_equals_loops_over_scattered_pages(
    heads: tuple[int, int], rng: torch.Generator
) -> None:
    num_heads, num_kv_heads = heads
    size, page_tokens, num_pages = 8, 4, 12
    # (tokens of the chunk, whole context, pages): a decode, a middle chunk, a whole prompt.
    parts = [(1, 9, [7, 0, 3]), (5, 11, [2, 9, 5]), (6, 6, [11, 4])]
    keys = torch.full((num_pages * page_tokens, num_kv_heads, size), float("nan"))
    values = keys.clone()
    query = torch.randn(12, num_heads, size, generator=rng)
    expected, spans, row = [], [], 0
    for count, context, pages in parts:
        slots = torch.tensor(
            [pages[i // page_tokens] * page_tokens + i % page_tokens for i in range(context)]
        )
        k = torch.randn(context, num_kv_heads, size, generator=rng)
        v = torch.randn(context, num_kv_heads, size, generator=rng)
        ops.write_kv(keys, slots, k)
        ops.write_kv(values, slots, v)
        runs = tuple((int(slot), 1) for slot in slots)
        spans.append(Span(row, row + count, runs))
        expected.append(_attend_slowly(query[row : row + count], k, v, context))
        row += count
    for implementation in (ops.paged_attention, cpu.paged_attention):
        result = implementation(query, keys, values, spans)
        assert torch.allclose(result, torch.cat(expected), atol=1e-5)


def test_a_token_of_a_tree_sees_what_stands_before_it_and_its_ancestors_alone(
    rng: torch.Generator,
) -> None:
    parents = [-1, 0, 0, 2, 1, -1, 3]
    ancestors: list[int] = []
    for token, parent in enumerate(parents):
        ancestors.append((0 if parent < 0 else ancestors[parent]) | 1 << token)
    keys, values = (torch.randn(40, 2, 8, generator=rng) for _ in range(2))
    query = torch.randn(7, 4, 8, generator=rng)
    span = Span(0, 7, ((30, 6), (4, 5)), tuple(ancestors))
    rows = [*range(30, 36), *range(4, 9)]
    for implementation in (ops.paged_attention, cpu.paged_attention):
        result = implementation(query, keys, values, [span])
        for token, mask in enumerate(ancestors):
            seen = rows[:4] + [rows[4 + other] for other in range(7) if mask >> other & 1]
            expected = _attend_slowly(query[token : token + 1], keys[seen], values[seen], len(seen))
            assert torch.allclose(result[token], expected[0], atol=1e-5)


@pytest.mark.parametrize(
    "ancestors",
    [
        (0b1, 0b10),
        (0b1,),
        (0b1, 0b10, 0b100, 0b1000),
        (0b1, 0b01, 0b100),
        (0, 0b10, 0b100),
        (0b1, 0b111, 0b100),
        (0b1, 0b11, 0b110),
        (0b1, 0b10, 0b111),
        (0b1, 0b10, -0b100),
        (0b11, 0b10, 0b100),
    ],
    ids=lambda masks: "-".join(map(bin, masks)),
)
def test_masks_that_are_no_trees_are_refused(ancestors: tuple[int, ...]) -> None:
    assert Span(0, 3, ((0, 5),), (0b1, 0b11, 0b100)).past_len == 2
    with pytest.raises(ValueError, match="mask"):
        Span(0, 3, ((0, 5),), ancestors)


def test_write_kv_changes_the_named_rows_and_no_other(rng: torch.Generator) -> None:
    pool = torch.zeros(6, 1, 4)
    rows = torch.randn(2, 1, 4, generator=rng)
    ops.write_kv(pool, torch.tensor([5, 0]), rows)
    assert torch.equal(pool[5], rows[0])
    assert torch.equal(pool[0], rows[1])
    assert int(pool[1:5].count_nonzero()) == 0
