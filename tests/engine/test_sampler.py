"""The sampler against the distribution it must have, and its independence of everything else."""

import math
from collections import Counter

import pytest
import torch

from slipstream_engine import sampler
from slipstream_engine.request import SamplingParams

_LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])


def _draws(params: SamplingParams, count: int = 4000) -> Counter[int]:
    rows = _LOGITS.expand(count, -1)
    return Counter(sampler.sample(rows, [params] * count, list(range(count))))


def test_temperature_zero_takes_the_most_likely_token_and_ignores_the_seed() -> None:
    params = [SamplingParams(temperature=0.0, seed=seed) for seed in range(50)]
    assert sampler.sample(_LOGITS.expand(50, -1), params, list(range(50))) == [1] * 50


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax_of_the_logits(temperature: float) -> None:
    count = 4000
    drawn = _draws(SamplingParams(temperature=temperature, seed=11), count)
    expected = (_LOGITS / temperature).softmax(-1)
    for token, probability in enumerate(expected.tolist()):
        spread = math.sqrt(probability * (1 - probability) / count)
        assert abs(drawn[token] / count - probability) < 5 * spread


def test_top_k_keeps_the_k_most_likely_tokens() -> None:
    assert set(_draws(SamplingParams(top_k=2, seed=1))) == {1, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    # softmax: 0.032 0.644 0.087 0.237 0.012, so 0.7 needs two tokens and 0.6 one.
    assert set(_draws(SamplingParams(top_p=0.7, seed=1))) == {1, 3}
    assert set(_draws(SamplingParams(top_p=0.6, seed=1))) == {1}


def test_top_p_renormalises_what_it_keeps() -> None:
    count = 4000
    drawn = _draws(SamplingParams(top_p=0.7, seed=5), count)
    share = math.exp(3) / (math.exp(3) + math.exp(2))
    assert abs(drawn[1] / count - share) < 5 * math.sqrt(share * (1 - share) / count)


def test_a_tiny_temperature_neither_overflows_nor_chooses_another_token() -> None:
    assert set(_draws(SamplingParams(temperature=1e-310, seed=3), 50)) == {1}


def test_a_draw_depends_on_seed_and_position_only() -> None:
    params = SamplingParams(temperature=1.3, seed=99)
    alone = sampler.sample(_LOGITS.unsqueeze(0), [params], [17])
    other = SamplingParams(temperature=0.2, seed=1)
    batch = sampler.sample(_LOGITS.expand(3, -1), [other, params, other], [17, 17, 4])
    assert batch[1] == alone[0]
    by_position = sampler.sample(_LOGITS.expand(64, -1), [params] * 64, list(range(64)))
    assert len(set(by_position)) > 1


def test_uniform_numbers_are_in_range_and_spread_evenly() -> None:
    numbers = [sampler.uniform(seed, position) for seed in range(40) for position in range(50)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.03
    assert len(set(numbers)) == len(numbers)
