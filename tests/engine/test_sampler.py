"""The sampler against a naive one, and its independence of everything but the request."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine import sampler
from slipstream_engine.batch import Draw, Sampled
from slipstream_engine.request import SamplingParams
from tests.engine import guided

_LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])


def _draw(sampling: SamplingParams, position: int = 0, **fields: Any) -> Draw:
    return Draw(
        row=0, position=position, sample=fields.pop("sample", 0), sampling=sampling, **fields
    )


def _tokens(
    row: torch.Tensor, sampling: SamplingParams, positions: Sequence[int], **fields: Any
) -> list[int]:
    draws = [_draw(sampling, position, **fields) for position in positions]
    return [one.token for one in sampler.sample(row.unsqueeze(0), [0] * len(draws), draws)]


def _flaw(row: torch.Tensor, sampling: SamplingParams, **fields: Any) -> str:
    (one,) = sampler.sample(row.unsqueeze(0), [0], [_draw(sampling, **fields)])
    return one.flaw


def _counts(sampling: SamplingParams, count: int = 4000, **fields: Any) -> Counter[int]:
    return Counter(_tokens(_LOGITS, sampling, range(count), **fields))


class _Naive:
    """The definitions one after the other, in double precision, over the whole vocabulary."""

    def __init__(self, logits: torch.Tensor, draw: Draw) -> None:
        self.raw = logits.double().numpy()
        self.params = draw.sampling
        self.draw = draw

    def logits(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        p, draw = self.params, self.draw
        values = self.raw.copy()
        for token, bias in p.logit_bias:
            values[token] += bias
        answer = draw.history[draw.num_prompt_tokens :]
        for token in set(draw.history):
            factor = 1 / p.repetition_penalty if values[token] > 0 else p.repetition_penalty
            values[token] *= factor
        for token, count in Counter(answer).items():
            values[token] -= p.frequency_penalty * count + p.presence_penalty
        values[list(draw.banned)] = -np.inf
        if draw.allowed:
            kept = guided.allowed(draw.allowed)
            values[[token for token in range(len(values)) if token not in kept]] = -np.inf
        return values

    def probabilities(self) -> tuple[list[int], list[float]]:
        """The tokens that may be drawn, likeliest first, and how likely each is."""
        p, values = self.params, self.logits()
        order = sorted(range(len(values)), key=lambda token: (-values[token], token))
        weights = [math.exp((values[t] - values[order[0]]) / p.temperature) for t in order]
        pairs = [(t, w) for t, w in zip(order, weights, strict=True) if w >= p.min_p and w > 0]
        pairs = pairs[: p.top_k or None]
        total, kept, reached = sum(w for _, w in pairs), [], 0.0
        for token, weight in pairs:
            if reached >= p.top_p * total:
                break
            kept.append((token, weight))
            reached += weight
        return [t for t, _ in kept], [w / reached for _, w in kept]


_params = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 2.0),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.999)),
    top_k=st.one_of(st.just(0), st.integers(1, 2000)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.5)),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    logit_bias=st.sampled_from([(), ((3, 5.0), (0, -100.0)), ((7, 100.0),)]),
    seed=st.integers(0, 1 << 40),
)


def _packed(tokens: Iterable[int]) -> bytes:
    bits = sum(1 << token for token in tokens)
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")


@st.composite
def _cases(draw: st.DrawFn) -> tuple[torch.Tensor, Draw]:
    size = draw(st.sampled_from([8, 65, 300, 3000]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    logits = torch.randn(size, generator=generator) * draw(st.sampled_from([0.2, 1.0, 4.0]))
    if draw(st.booleans()):
        logits = (logits * 2).round() / 2  # many equal ones
    history = draw(st.lists(st.integers(0, 7), min_size=1, max_size=12).map(tuple))
    one = _draw(
        draw(_params),
        draw(st.integers(0, 5000)),
        sample=draw(st.integers(0, 3)),
        history=history,
        num_prompt_tokens=draw(st.integers(0, len(history))),
        banned=draw(st.sampled_from([(), (1,), (2, 5)])),
        allowed=draw(st.sampled_from([_packed(()), _packed((3, 4, 7)), _packed(range(3, size))])),
    )
    return logits, one


@given(_cases())
def test_a_draw_is_one_that_the_definitions_allow(case: tuple[torch.Tensor, Draw]) -> None:
    logits, draw = case
    before = logits.clone()
    (drawn,) = sampler.sample(logits.unsqueeze(0), [0], [draw])
    allowed, _ = _Naive(logits, draw).probabilities()
    # A cut may fall a rounding error apart: then the next token is the neighbour.
    nearly = SamplingParams(
        **{
            **{name: getattr(draw.sampling, name) for name in draw.sampling.__slots__},
            "top_p": min(1.0, draw.sampling.top_p + 1e-6),
            "min_p": draw.sampling.min_p * (1 - 1e-5),
        }
    )
    wider = dataclasses.replace(draw, sampling=nearly)
    assert drawn.token in allowed or drawn.token in _Naive(logits, wider).probabilities()[0]
    assert torch.equal(logits, before)


@given(_cases())
def test_looking_at_few_tokens_first_changes_no_draw(case: tuple[torch.Tensor, Draw]) -> None:
    logits, draw = case
    (few,) = sampler.sample(logits.unsqueeze(0), [0], [draw])
    counts, sampler._FIRST_COUNTS = sampler._FIRST_COUNTS, ()
    try:
        (all_,) = sampler.sample(logits.unsqueeze(0), [0], [draw])
    finally:
        sampler._FIRST_COUNTS = counts
    assert few == all_


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7, "top_k": 4},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"min_p": 0.03, "top_k": 4, "top_p": 0.9},
        {"logit_bias": ((4, 3.0), (1, -2.0))},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    ],
    ids=str,
)
@pytest.mark.slow
def test_draws_follow_the_distribution_of_the_definitions(fields: dict[str, Any]) -> None:
    count = 4000
    params = SamplingParams(seed=11, **fields)
    extra: dict[str, Any] = {"history": (1, 3, 3, 1, 1), "num_prompt_tokens": 2}
    drawn = _counts(params, count, **extra)
    tokens, chances = _Naive(_LOGITS, _draw(params, **extra)).probabilities()
    assert set(drawn) <= set(tokens)
    for token, chance in zip(tokens, chances, strict=True):
        spread = math.sqrt(chance * (1 - chance) / count)
        assert abs(drawn[token] / count - chance) < 5 * spread + 1e-12


def test_temperature_zero_takes_the_likeliest_token_and_ignores_the_seed() -> None:
    for seed in range(50):
        assert _tokens(_LOGITS, SamplingParams(temperature=0.0, seed=seed), [seed]) == [1]


def test_greedy_answers_see_bias_penalties_and_bans() -> None:
    def token(banned: tuple[int, ...] = (), history: tuple[int, ...] = (), **fields: Any) -> int:
        params = SamplingParams(temperature=0.0, **fields)
        return _tokens(_LOGITS, params, [9], banned=banned, history=history)[0]

    assert token(banned=(1,)) == 3
    assert token(banned=(1,), logit_bias=((1, 100.0),)) == 3
    assert token(logit_bias=((4, 5.0),)) == 4
    assert token(history=(1,), presence_penalty=1.5) == 3
    assert token(history=(1, 1, 3), frequency_penalty=0.9) == 1
    assert token(history=(1, 1, 1), frequency_penalty=0.9) == 3
    assert token(history=(1,), repetition_penalty=1.6) == 3


@pytest.mark.parametrize(
    "fields", [{}, {"logit_bias": ((1, 50.0),)}, {"num_top_logprobs": 0}], ids=str
)
def test_greedy_answers_take_the_likeliest_token_that_is_allowed(fields: dict[str, Any]) -> None:
    greedy = SamplingParams(temperature=0.0, **fields)
    assert _tokens(_LOGITS, greedy, [0], allowed=_packed((0, 2, 3))) == [3]
    assert _tokens(_LOGITS, greedy, [0], allowed=_packed((4,))) == [4]
    # Few of many, and the lowest of equals either way.
    row = torch.cat([torch.zeros(3000), torch.ones(3000)])
    assert _tokens(row, greedy, [0], allowed=_packed((5, 4000, 3999))) == [3999]
    assert _tokens(row, greedy, [0], allowed=_packed(range(7, 3000))) == [7]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fields", [{}, {"logit_bias": ((1, 5.0),)}, {"top_k": 2}], ids=str)
def test_where_nothing_that_is_allowed_can_be_drawn_nothing_else_is(
    fields: dict[str, Any], temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, **fields)
    for row in (_LOGITS.where(_LOGITS != 2.0, -torch.inf), _LOGITS):
        allowed = _packed((3,) if row is not _LOGITS else (90,))
        assert "FloatingPointError" in _flaw(row, params, allowed=allowed)


def test_log_probabilities_are_those_of_the_raw_logits_under_a_guide_too() -> None:
    params = SamplingParams(temperature=0.0, num_top_logprobs=2)
    (free,) = sampler.sample(_LOGITS.unsqueeze(0), [0], [_draw(params)])
    (one,) = sampler.sample(_LOGITS.unsqueeze(0), [0], [_draw(params, allowed=_packed((3,)))])
    assert (one.token, one.top) == (3, free.top)
    assert one.logprob == free.top[1].logprob


def test_presence_and_frequency_count_the_answer_and_repetition_the_prompt_too() -> None:
    def token(num_prompt_tokens: int, **fields: Any) -> int:
        params = SamplingParams(temperature=0.0, **fields)
        extra: dict[str, Any] = {"history": (1, 1), "num_prompt_tokens": num_prompt_tokens}
        return _tokens(_LOGITS, params, [2], **extra)[0]

    assert [token(2, presence_penalty=2.0), token(1, presence_penalty=2.0)] == [1, 3]
    assert [token(2, frequency_penalty=0.9), token(0, frequency_penalty=0.9)] == [1, 3]
    assert token(2, repetition_penalty=2.0) == 3


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    # softmax: 0.032 0.644 0.087 0.237 0.012, so 0.7 needs two tokens and 0.6 one.
    assert set(_counts(SamplingParams(top_p=0.7, seed=1))) == {1, 3}
    assert set(_counts(SamplingParams(top_p=0.6, seed=1))) == {1}


def test_top_p_counts_what_min_p_and_top_k_have_left() -> None:
    # Of tokens 1 and 3 alone, the first has 0.73.
    assert set(_counts(SamplingParams(top_p=0.72, top_k=2, seed=1))) == {1}
    assert set(_counts(SamplingParams(top_p=0.72, min_p=0.2, seed=1))) == {1}
    assert set(_counts(SamplingParams(top_p=0.72, seed=1))) == {1, 3}


def test_a_tiny_temperature_neither_overflows_nor_chooses_another_token() -> None:
    for fields in ({}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.5}):
        params = SamplingParams(temperature=1e-310, seed=3, **fields)
        assert set(_tokens(_LOGITS, params, range(20))) == {1}


def test_of_equal_logits_the_lowest_token_comes_first() -> None:
    row = torch.zeros(4000)
    row[[7, 3000, 5]] = 2.0
    assert _tokens(row, SamplingParams(temperature=0.0), [0]) == [5]
    assert _tokens(row, SamplingParams(temperature=0.0, num_top_logprobs=0), [0]) == [5]
    assert set(_tokens(row, SamplingParams(top_k=2, seed=1), range(50))) == {5, 7}
    (one,) = sampler.sample(
        row.unsqueeze(0), [0], [_draw(SamplingParams(temperature=0.0, num_top_logprobs=6))]
    )
    assert [top.token for top in one.top] == [5, 7, 3000, 0, 1, 2]


_MANY = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, num_top_logprobs=3),
    SamplingParams(temperature=1.3, seed=99),
    SamplingParams(temperature=0.7, seed=1, top_p=0.9, num_top_logprobs=0),
    SamplingParams(temperature=0.9, seed=2, top_k=40),
    SamplingParams(temperature=0.9, seed=2, min_p=0.02, repetition_penalty=1.2),
]


@given(st.permutations(range(12)), st.integers(0, 1 << 30))
def test_a_draw_is_the_same_alone_and_anywhere_in_any_batch(order: list[int], seed: int) -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(seed)) * 3
    draws = [_draw(_MANY[i % 6], 100 + i, history=(4, i), num_prompt_tokens=1) for i in range(12)]
    alone = [
        sampler.sample(logits[i % 3].unsqueeze(0), [0], [draw])[0] for i, draw in enumerate(draws)
    ]
    batch = sampler.sample(logits, [i % 3 for i in order], [draws[i] for i in order])
    assert batch == [alone[i] for i in order]


def test_seed_sample_and_position_each_change_the_draws() -> None:
    row = torch.zeros(500)

    def tokens(seed: int, sample: int, positions: range) -> list[int]:
        return _tokens(row, SamplingParams(seed=seed), positions, sample=sample)

    first = tokens(1, 0, range(40))
    assert tokens(1, 0, range(40)) == first
    for other in (tokens(2, 0, range(40)), tokens(1, 1, range(40)), tokens(1, 0, range(40, 80))):
        assert sum(a == b for a, b in zip(first, other, strict=True)) < 5


def test_uniform_numbers_are_in_range_and_spread_evenly() -> None:
    numbers = [sampler.uniform(seed, i % 3, i) for seed in range(40) for i in range(50)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.03
    assert len(set(numbers)) == len(numbers)


@given(_cases(), st.integers(0, 20), st.booleans())
def test_log_probabilities_are_those_of_the_raw_logits(
    case: tuple[torch.Tensor, Draw], count: int, is_greedy: bool
) -> None:
    logits, draw = case
    fields = {name: getattr(draw.sampling, name) for name in draw.sampling.__slots__}
    fields |= {"num_top_logprobs": count} | ({"temperature": 0.0} if is_greedy else {})
    one = Draw(0, draw.position, draw.sample, SamplingParams(**fields), (), 0, draw.banned)
    (drawn,) = sampler.sample(logits.unsqueeze(0), [0], [one])
    expected = logits.double().log_softmax(-1)
    assert drawn.logprob is not None
    assert abs(drawn.logprob - float(expected[drawn.token])) < 1e-4
    order = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))
    assert [top.token for top in drawn.top] == order[:count]
    for top in drawn.top:
        assert abs(top.logprob - float(expected[top.token])) < 1e-4


def test_without_log_probabilities_there_are_none() -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature)
        (one,) = sampler.sample(_LOGITS.unsqueeze(0), [0], [_draw(params)])
        assert one == Sampled(one.token)


_WAYS: list[dict[str, Any]] = [
    {},
    {"top_k": 3},
    {"top_p": 0.5},
    {"temperature": 0.0},
    {"temperature": 0.0, "num_top_logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.1},
]


@pytest.mark.parametrize("allowed", [b"", _packed(range(100))], ids=["free", "guided"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("fields", _WAYS, ids=str)
def test_a_row_with_what_is_no_number_has_a_flaw_in_place_of_a_token_and_the_others_go_on(
    fields: dict[str, Any], number: float, allowed: bytes
) -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(1))
    logits[1, 7] = number
    draw = _draw(SamplingParams(**fields), history=(5, 5), allowed=allowed)
    told = sampler.sample(logits, [0, 1, 2], [draw] * 3)
    assert [bool(one.flaw) for one in told] == [False, True, False]
    assert told[1].token == -1
    assert str(number) in told[1].flaw or "can be drawn" in told[1].flaw
    assert [told[0], told[2]] == sampler.sample(logits[[0, 2]], [0, 1], [draw] * 2)


def test_a_draw_that_fails_in_any_way_ends_no_other() -> None:
    """A token that the row has no logit for: nobody asks for that, and the rank lives on."""
    wrong = _draw(SamplingParams(logit_bias=((9, 1.0),)))
    right = _draw(SamplingParams(temperature=0.0))
    told = sampler.sample(_LOGITS.unsqueeze(0), [0, 0], [wrong, right])
    assert told[0].flaw.startswith("IndexError")
    assert told[1] == Sampled(1)


def test_log_probabilities_are_the_same_by_any_number_of_threads() -> None:
    row = torch.randn(1, 120_000, generator=torch.Generator().manual_seed(3)) * 4
    draw = _draw(SamplingParams(seed=1, num_top_logprobs=5))
    before, told = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 4):
            torch.set_num_threads(count)
            told.append(sampler.sample(row, [0], [draw]))
    finally:
        torch.set_num_threads(before)
    assert all(one == told[0] for one in told)
