"""Draft lengths: never slower than none, whatever the costs and chances, and no flapping."""

import math
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.spec import lengths
from slipstream_engine.spec.acceptance import Acceptance
from slipstream_engine.spec.draft import Draft
from slipstream_engine.spec.lengths import START, CostTable, Mode
from slipstream_engine.spec.synthetic import Synthetic
from tests.depth import cases

# Seconds of a step by its tokens. The last one was measured: SmolLM2 on two cores.
COSTS = {
    "flat": CostTable({1: 0.010, 4096: 0.010}),
    "linear": CostTable({1: 0.001, 4096: 4.096}),
    "affine": CostTable({1: 0.005, 4096: 0.005 + 0.0005 * 4095}),
    "steps": CostTable({tokens: 0.004 + 0.004 * ((tokens - 1) // 16) for tokens in range(1, 513)}),
    "smollm2": CostTable({1: 0.006, 8: 0.013, 64: 0.055}),
}
BATCHES = (1, 2, 7, 8, 16, 33, 64)


def expected_rate(
    candidates: Sequence[Sequence[float]],
    taken: Sequence[int],
    cost: CostTable,
    caution: float = 1.0,
) -> float:
    gain = sum(sum(chances[:count]) for chances, count in zip(candidates, taken, strict=True))
    return (len(candidates) + caution * gain) / cost.step_s(len(candidates) + sum(taken))


chances = st.lists(st.floats(0, 1), max_size=6).map(lambda found: sorted(found, reverse=True))
tables = st.dictionaries(st.integers(1, 40), st.floats(1e-4, 1), min_size=1, max_size=6)


@cases(200)
@given(st.lists(chances, min_size=1, max_size=3), tables)
def test_no_other_lengths_are_expected_to_be_faster(
    candidates: list[list[float]], measured: dict[int, float]
) -> None:
    cost = CostTable(measured)
    chosen = lengths.choose(candidates, cost).lengths
    ways: list[tuple[int, ...]] = [()]
    for one in candidates:
        ways = [(*way, count) for way in ways for count in range(len(one) + 1)]
    best = max(expected_rate(candidates, way, cost, lengths.CAUTION) for way in ways)
    # Gains below a thousandth are left out.
    assert expected_rate(candidates, chosen, cost, lengths.CAUTION) >= best * (1 - 0.001 * 18)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0])
def test_never_slower_than_none_when_the_chances_are_known(
    chance: float, cost: CostTable, batch: int
) -> None:
    candidates = [[chance ** (index + 1) for index in range(64)]] * batch
    taken = lengths.choose(candidates, cost).lengths
    assert expected_rate(candidates, taken, cost) >= batch / cost.step_s(batch)


def test_a_cost_that_rises_in_steps_is_filled_to_its_edge() -> None:
    # Sixteen tokens cost as much as one, seventeen twice as much.
    halves = [0.5**place for place in range(1, 10)]
    assert lengths.choose([halves] * 2, COSTS["steps"]).lengths == (7, 7)
    # The second stair is worth it although its first tokens are not.
    stairs = CostTable({1: 1.0, 2: 1.0, 3: 1.9, 12: 1.9, 13: 9.0})
    assert lengths.choose([[0.5] * 40], stairs).lengths == (11,)


def test_the_tokens_of_the_surest_sequences_are_taken() -> None:
    cost = CostTable({1: 0.1, 10: 0.1, 11: 9.0})
    taken = lengths.choose([[0.9, 0.3], [], [0.8, 0.7, 0.6, 0.1], [0.5]], cost).lengths
    assert taken == (2, 0, 3, 1)
    assert lengths.choose([[0.9, 0.3], [], [0.8, 0.7, 0.6]], cost, most=3).lengths == (1, 0, 2)
    assert lengths.choose([[0.9]], cost, other_tokens=9).lengths == (1,) * 0 + (0,)


def test_prompts_in_the_step_make_drafts_cheap() -> None:
    alone = lengths.choose([[0.3]], COSTS["linear"]).lengths
    beside = lengths.choose([[0.3]], COSTS["linear"], other_tokens=500).lengths
    assert (alone, beside) == ((0,), (1,))


@cases(200)
@given(tables)
def test_costs_never_fall_and_beyond_the_table_grow_with_the_tokens(
    measured: dict[int, float],
) -> None:
    cost = CostTable(measured)
    seconds = cost.steps_s(1, 100)
    assert seconds == sorted(seconds)
    assert seconds == [cost.step_s(tokens) for tokens in range(1, 101)]
    # Nothing takes longer than it did, or than more tokens did.
    for tokens in measured:
        assert cost.step_s(tokens) == min(measured[more] for more in measured if more >= tokens)
    last = max(measured)
    assert cost.step_s(2 * last) >= 2 * cost.step_s(last) * (1 - 1e-9)


def test_between_two_measurements_is_a_straight_line() -> None:
    cost = CostTable({1: 0.006, 8: 0.013, 64: 0.055})
    assert cost.step_s(4) == pytest.approx(0.009)
    assert cost.step_s(128) == pytest.approx(0.110)


@pytest.mark.parametrize("measured", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: math.nan}])
def test_what_is_no_measurement_is_refused(measured: dict[int, float]) -> None:
    with pytest.raises(ValueError, match=r"cost table|positive"):
        CostTable(measured)


def test_chances_of_a_chain_multiply_and_those_of_a_tree_along_its_branches() -> None:
    chain = Draft(tokens=(1, 2, 3), accept=(0.5, 0.5, 0.8))
    assert lengths.reach(chain) == pytest.approx([0.5, 0.25, 0.2])
    tree = Draft(tokens=(1, 2, 3), parents=(-1, -1, 1), accept=(0.5, 0.4, 0.5))
    assert lengths.reach(tree) == pytest.approx([0.5, 0.4, 0.2])


def test_estimates_that_tremble_about_the_threshold_do_not_switch() -> None:
    """One token more costs a seventh; its chance is a seventh, give or take a fifth of it."""
    rng = Random(7)
    cost = CostTable({1: 0.007, 2: 0.008})
    switches, mode = 0, START
    for _ in range(2000):
        after = lengths.choose([[rng.gauss(1 / 7, 1 / 35)]], cost, mode).mode
        switches += after.is_drafting != mode.is_drafting
        mode = after
    assert switches <= 3


def test_what_is_plainly_better_begins_at_once() -> None:
    off = Mode(is_drafting=False)
    assert lengths.choose([[0.9] * 8], COSTS["smollm2"], off).lengths == (8,)
    # A little better must be so for some steps.
    steps, mode = 0, off
    while not mode.is_drafting:
        mode = lengths.choose([[0.05]], COSTS["flat"], mode).mode
        steps += 1
    assert 2 <= steps <= 5


def test_nothing_to_draft_decides_nothing() -> None:
    for mode in (START, Mode(is_drafting=False, evidence=0.05)):
        assert lengths.choose([[], []], COSTS["flat"], mode) == lengths.Lengths((0, 0), mode)


DRIFTS: dict[str, Callable[[int], float]] = {
    "never": lambda step: 0.0,
    "seldom": lambda step: 0.1,
    "half": lambda step: 0.5,
    "mostly": lambda step: 0.9,
    "always": lambda step: 1.0,
    "rising": lambda step: step / 1000,
    "falling": lambda step: 1 - step / 1000,
    "waves": lambda step: 0.5 + 0.5 * math.sin(step / 50),
}


@pytest.mark.parametrize("batch", [1, 8, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("drift", DRIFTS.values(), ids=DRIFTS)
@pytest.mark.slow
def test_never_slower_than_none_when_the_chances_must_be_learnt(
    drift: Callable[[int], float], cost: CostTable, batch: int
) -> None:
    """A drafter that always says 0.8, while something else is true. Learning what it is may cost
    some steps at the beginning and at each turn: a hundredth."""
    rng = Random(batch)
    acceptance, mode = Acceptance(), START
    keys = [("r", index) for index in range(batch)]
    for key in keys:
        acceptance.start(key)
    draft = Draft(tokens=(1,) * 16, accept=(0.8,) * 16, source="s")
    num_tokens, took_s, plain_s, switches = 0, 0.0, 0.0, 0
    num_steps = {1: 1000, 8: 500, 64: 250}[batch]
    for step in range(num_steps):
        chance = drift(step * 1000 // num_steps)
        offered = [acceptance.corrected(key, draft) for key in keys]
        chosen = lengths.choose([lengths.reach(one) for one in offered], cost, mode)
        switches += chosen.mode.is_drafting != mode.is_drafting
        mode = chosen.mode
        for key, one, count in zip(keys, offered, chosen.lengths, strict=True):
            right = next((n for n in range(count + 1) if rng.random() >= chance), count + 1)
            tokens = [1] * min(right, count) + [1 if right > count else 2]
            acceptance.learn(key, draft, one, tokens)
            num_tokens += len(tokens)
        took_s += cost.step_s(batch + sum(chosen.lengths))
        plain_s += cost.step_s(batch)
    assert num_tokens / took_s >= 0.99 * batch * num_steps / plain_s
    assert switches <= num_steps / 20


def test_synthetic_lengths_are_the_wanted_ones() -> None:
    for length in (1.0, 1.4, 2.0, 3.78, 8.0):
        synthetic = Synthetic.of_length(length, seed=3)
        counts = [synthetic.accepted(("r", 0), position, 16) for position in range(4000)]
        assert 1 + sum(counts) / 4000 == pytest.approx(length, abs=0.03)
        assert set(counts) <= {int(length) - 1, int(length)}


def test_synthetic_rates_are_those_of_each_place() -> None:
    synthetic = Synthetic((0.9, 0.6, 0.2), seed=5)
    counts = [synthetic.accepted(("r", 0), position, 16) for position in range(4000)]
    for place, rate in enumerate(synthetic.rates):
        assert sum(count > place for count in counts) / 4000 == pytest.approx(rate, abs=0.03)
    assert all(synthetic.accepted(("r", 0), position, 1) <= 1 for position in range(100))


def test_synthetic_acceptance_depends_on_seed_sequence_and_position_alone() -> None:
    def counts(seed: int, request: str, sample: int) -> list[int]:
        one = Synthetic((0.5,), seed)
        return [one.accepted((request, sample), position, 4) for position in range(64)]

    assert counts(1, "a", 0) == counts(1, "a", 0)
    others = [counts(2, "a", 0), counts(1, "b", 0), counts(1, "a", 1)]
    assert counts(1, "a", 0) not in others


@pytest.mark.parametrize("rates", [(0.5, 0.6), (1.1,), (-0.1,), (math.nan,)])
def test_synthetic_rates_that_rise_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rates must fall"):
        Synthetic(rates)
    with pytest.raises(ValueError, match="at least one token"):
        Synthetic.of_length(0.5)
