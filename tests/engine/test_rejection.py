"""However tokens are drafted, what comes out has the model's own distribution."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from scipy import stats

from slipstream_engine import sampler
from slipstream_engine.batch import Batch, Draw, Sampled
from slipstream_engine.draftmodel import ModelDrafter
from slipstream_engine.request import SamplingParams
from slipstream_engine.spec import verify
from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import Draft, Key, Proposal, Subject
from slipstream_engine.spec.lengths import CostTable
from slipstream_engine.spec.speculation import Speculation

_VOCABULARY = 6
# Logits after each token, of a model that looks at the last token alone.
_MODEL = torch.tensor(
    np.random.default_rng(5).normal(scale=1.5, size=(_VOCABULARY, _VOCABULARY)),
    dtype=torch.float32,
)
_ALL_CUTS: dict[str, Any] = {"temperature": 0.6, "top_k": 4, "top_p": 0.9}
_PARAMS: list[dict[str, Any]] = [
    _ALL_CUTS,
    {},
    {"top_k": 3},
    {"top_p": 0.8},
    {"temperature": 1.7, "min_p": 0.1},
]


def _num_draws(params: dict[str, Any]) -> int:
    """A hundred thousand take a third of a minute."""
    is_full = hypothesis.settings().max_examples >= 10_000
    return 100_000 if is_full or params is _ALL_CUTS else 4_000


def _target(token: int, params: SamplingParams) -> list[float]:
    return list(sampler.probabilities(_MODEL[token], params))


def _check(counts: Counter[tuple[int, int]], params: SamplingParams) -> None:
    """χ² of the first two tokens after token 0 against their joint distribution."""
    expected = {
        (one, two): chance * other
        for one, chance in enumerate(_target(0, params))
        for two, other in enumerate(_target(one, params))
    }
    assert all(expected[pair] > 0 for pair in counts), "a token that was cut off"
    possible = [pair for pair, chance in expected.items() if chance > 0]
    observed = np.array([counts[pair] for pair in possible])
    wanted = np.array([expected[pair] for pair in possible]) * observed.sum()
    # Of rare pairs the sum: χ² wants five of each at least.
    rare = wanted < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        wanted = np.append(wanted[~rare], wanted[rare].sum())
    assert stats.chisquare(observed, wanted).pvalue > 1e-4


def _run(seed: int, params: dict[str, Any], draft: Draft) -> tuple[int, int]:
    """The first two tokens after token 0, drafted and verified as the engine does."""
    sampling = SamplingParams(**{"temperature": 1.0, **params, "seed": seed})
    rows = [0, *draft.tokens]
    depths = verify.depths(draft)
    draws = [Draw(row, 1 + depths[row], 0, sampling) for row in range(len(rows))]
    for index, proposal in enumerate(draft.proposals):
        old = draws[index]
        draws[index] = Draw(
            index, old.position, 0, sampling, drafted=draft.tokens[index], proposal=proposal
        )
    drawn = sampler.sample(_MODEL[rows], list(range(len(rows))), draws)
    path = verify.path(draft, [one.token for one in drawn])
    tokens = [drawn[row].token for row in path]
    while len(tokens) < 2:
        again = Draw(0, 1 + len(tokens), 0, sampling)
        (one,) = sampler.sample(_MODEL[tokens[-1]].unsqueeze(0), [0], [again])
        tokens.append(one.token)
    return tokens[0], tokens[1]


def _proposals(last: int) -> list[Proposal]:
    """Of draft models that are wrong: another temperature, and some tokens never."""
    chance = np.random.default_rng(last)
    made = []
    for _ in range(40):
        logits = _MODEL[last].numpy() * 0.3 + np.arange(_VOCABULARY) * 0.2
        tokens = np.sort(chance.permutation(_VOCABULARY)[: chance.integers(2, _VOCABULARY + 1)])
        weights = np.exp(logits[tokens])
        made.append(Proposal(tuple(tokens.tolist()), tuple((weights / weights.sum()).tolist())))
    return made


_PROPOSALS = [_proposals(last) for last in range(_VOCABULARY)]


@pytest.mark.slow  # a hundred thousand draws each
@pytest.mark.parametrize("params", _PARAMS, ids=str)
def test_rejection_sampling_reproduces_the_target_distribution(params: dict[str, Any]) -> None:
    counts: Counter[tuple[int, int]] = Counter()
    chance = random.Random(7)
    for seed in range(_num_draws(params)):
        first = chance.choice(_PROPOSALS[0])
        (one,) = chance.choices(first.tokens, first.probs)
        second = chance.choice(_PROPOSALS[one])
        (two,) = chance.choices(second.tokens, second.probs)
        draft = Draft((one, two), (), (0.5, 0.5), "model", (first, second))
        counts[_run(seed, params, draft)] += 1
    _check(counts, SamplingParams(**{"temperature": 1.0, **params}))


@pytest.mark.slow  # a hundred thousand draws each
@pytest.mark.parametrize("params", _PARAMS, ids=str)
def test_a_tree_of_guesses_reproduces_the_target_distribution(params: dict[str, Any]) -> None:
    """Two guesses for the first token and two for what follows each, whatever they are."""
    counts: Counter[tuple[int, int]] = Counter()
    chance = random.Random(8)
    for seed in range(_num_draws(params)):
        one, two = chance.sample(range(_VOCABULARY), 2)
        below = chance.choices(range(_VOCABULARY), k=4)
        draft = Draft((one, two, *below), (-1, -1, 0, 0, 1, 1), (0.5,) * 6, "tree")
        counts[_run(seed, params, draft)] += 1
    _check(counts, SamplingParams(**{"temperature": 1.0, **params}))


class _Wrong:
    """The logits of a draft model that looks at the last token alone too."""

    logits_after = _MODEL * 0.3 + torch.arange(_VOCABULARY) * 0.2

    def logits(self, batch: Batch) -> torch.Tensor:
        rows = [chunk.tokens[draw.row] for chunk in batch.chunks for draw in chunk.draws]
        return self.logits_after[rows]


class _Guessing:
    """Always the same, and as sure of it as a drafter may be that found it in a text."""

    name = "guess"
    features: tuple[int, ...] = ()

    def start(self, subject: Subject) -> None:
        pass

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        return [Draft((4, 4)[:budget], (), (0.3, 0.3)[:budget], "guess") for _, budget in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        pass

    def stop(self, key: Key, finished: bool) -> None:
        pass


@pytest.mark.slow  # half a minute
@pytest.mark.parametrize(
    "token_s", [None, 0.1, 0.2, 0.3], ids=["free", "cheap", "dear", "too dear"]
)
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "beside another"])
def test_neither_lengths_nor_the_choice_of_a_drafter_depend_on_what_was_drawn(
    token_s: float | None, *, is_alone: bool
) -> None:
    """Verified only where it was a likely one, a drawn token came too often: 0.70 for 0.57."""
    cost = None if token_s is None else CostTable({1: 1.0, 2: 1.0 + token_s, 3: 1.0 + 2 * token_s})
    key: Key = ("r", 0)
    counts: Counter[tuple[int, int]] = Counter()
    for seed in range(_num_draws({})):
        members = [Member(ModelDrafter(_Wrong(), 2, 4, 8, 8, is_drawing=True))]
        if not is_alone:
            members.append(Member(_Guessing()))
        # Anew each time: what was learnt would settle the choice after some answers.
        speculation = Speculation(Chooser(members), 2, cost)
        speculation.start(Subject(key, (0,), temperature=1.0, seed=seed), [])
        (draft,) = speculation.propose([(key, 2)], 0, 64)
        counts[_run(seed, {}, draft)] += 1
    _check(counts, SamplingParams())


@pytest.mark.parametrize("params", _PARAMS, ids=str)
def test_the_probabilities_are_those_that_tokens_are_drawn_with(params: dict[str, Any]) -> None:
    sampling = [SamplingParams(**{"temperature": 1.0, **params, "seed": it}) for it in range(4000)]
    drawn = Counter(
        sampler.sample(_MODEL[:1], [0], [Draw(0, 1, 0, one)])[0].token for one in sampling
    )
    target = _target(0, sampling[0])
    assert set(drawn) <= {token for token, chance in enumerate(target) if chance > 0}
    possible = [token for token, chance in enumerate(target) if chance > 0]
    observed = [drawn[token] for token in possible]
    assert stats.chisquare(observed, [4000 * target[token] for token in possible]).pvalue > 1e-4


def test_a_likely_draft_is_kept_and_an_impossible_one_never() -> None:
    sampling = SamplingParams(temperature=1.0, top_k=1, seed=3)
    best = int(_MODEL[0].argmax())
    for token in range(_VOCABULARY):
        draw = Draw(0, 1, 0, sampling, drafted=token, proposal=Proposal((token,), (1.0,)))
        assert sampler.sample(_MODEL[:1], [0], [draw]) == [Sampled(best)]
