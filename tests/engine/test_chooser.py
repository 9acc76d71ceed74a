"""Composition: the draft of which most is expected; a drafter that fails costs no answer."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Subject
from slipstream_engine.spec.lengths import CostTable
from slipstream_engine.spec.speculation import Speculation

A, B = ("a", 0), ("b", 0)


@dataclass
class Drafting:
    """Drafts what it is told to, and notes what it was told."""

    name: str
    drafts: dict[Key, Draft] = field(default_factory=dict)
    features: tuple[int, ...] = ()
    committed: list[tuple[Key, tuple[int, ...], object]] = field(default_factory=list)
    stopped: list[tuple[Key, bool]] = field(default_factory=list)
    asked: list[tuple[Key, int]] = field(default_factory=list)

    def start(self, subject: Subject) -> None:
        pass

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        self.asked += asked
        return [self.drafts.get(key, NO_DRAFT) for key, _ in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        self.committed.append((key, tuple(tokens), features))

    def stop(self, key: Key, finished: bool) -> None:
        self.stopped.append((key, finished))


class Failing(Drafting):
    """Raises for sequence A in one of its calls."""

    call = ""

    def _fail(self, call: str, keys: Sequence[Key]) -> None:
        if call == self.call and A in keys:
            raise RuntimeError("broken")

    def start(self, subject: Subject) -> None:
        self._fail("start", [subject.key])

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        self._fail("propose", [key for key, _ in asked])
        return super().propose(asked)

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        self._fail("commit", [key])
        super().commit(key, tokens, features)

    def stop(self, key: Key, finished: bool) -> None:
        self._fail("stop", [key])
        super().stop(key, finished)


def draft(source: str, *accept: float, token: int = 1) -> Draft:
    return Draft(tokens=(token,) * len(accept), accept=accept, source=source)


def started(*members: Member, cost: CostTable | None = None) -> Chooser:
    chooser = Chooser(members, cost=cost)
    # The first of all is on probe.
    for key in (("first", 0), A, B):
        chooser.start(Subject(key, prompt=(1, 2, 3)))
    return chooser


def sources(chooser: Chooser, budget: int = 8) -> list[str]:
    return [it.source for it in chooser.propose([(A, budget), (B, budget)])]


def test_each_sequence_gets_the_draft_of_which_most_is_expected() -> None:
    first = Drafting("edit", {A: draft("edit", 0.9, 0.9), B: draft("edit", 0.5)})
    second = Drafting("suffix", {A: draft("suffix", 0.6, 0.5, 0.5), B: draft("suffix", 0.5, 0.5)})
    assert sources(started(Member(first), Member(second))) == ["edit", "suffix"]


def test_of_equal_drafts_the_earlier_drafter_goes_first() -> None:
    first = Drafting("edit", {A: draft("edit", 0.5), B: draft("edit", 0.5)})
    second = Drafting("suffix", {A: draft("suffix", 0.5)})
    assert sources(started(Member(first), Member(second))) == ["edit", "edit"]


def test_without_any_draft_there_is_none() -> None:
    assert started(Member(Drafting("edit"))).propose([(A, 8), (B, 0)]) == [NO_DRAFT, NO_DRAFT]
    assert Chooser([]).propose([(A, 8)]) == [NO_DRAFT]


def test_a_drafter_that_costs_time_is_asked_only_where_it_will_be_worth_it() -> None:
    cheap = Drafting("suffix", {A: draft("suffix", *[0.9] * 8)})
    dear = Drafting("model", {B: draft("model", 0.6, 0.6)})
    chooser = started(Member(cheap), Member(dear, cost=0.1, chance=0.6))
    assert sources(chooser) == ["suffix", "model"]
    assert [key for key, _ in dear.asked] == [B]
    # Two tokens: 1.86 expected in 1.2 steps; three: 2.06 in 1.3; four: 2.17 in 1.4.
    assert dear.asked == [(B, 3)]
    too_dear = Drafting("model", {B: draft("model", 0.6)})
    assert sources(started(Member(too_dear, cost=0.7, chance=0.6))) == ["none", "none"]
    assert too_dear.asked == []


def test_where_nothing_would_be_verified_nobody_drafts_for_long() -> None:
    """Two sequences with a token each: the step takes as long as it costs in the table."""
    for dear_s, wanted in ((1.05, 2), (1.2, 1), (1.5, 0)):
        model = Drafting("model")
        cost = CostTable({2: 1.0, 4: dear_s, 6: 2 * dear_s - 1.0, 8: 9.0})
        sources(started(Member(model, cost=0.2), cost=cost))
        assert [length for _, length in model.asked] == [wanted] * (2 if wanted else 0)
    # What costs nothing has been drafted already: only more than that is worth time.
    cheap = Drafting("suffix", {A: draft("suffix", 0.6)})
    model = Drafting("model")
    sources(started(Member(cheap), Member(model, cost=0.2), cost=CostTable({2: 1.0, 4: 1.2, 6: 2})))
    assert [key for key, _ in model.asked] == [B]


class Model(Drafting):
    """Says 0.8 of every token; counts its passes."""

    num_passes = 0

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        self.num_passes += max(budget for _, budget in asked)
        return [draft(self.name, *[0.8] * budget) for _, budget in asked]


COSTS = {
    "linear": CostTable({1: 0.001, 4096: 4.096}),
    "affine": CostTable({1: 0.005, 4096: 0.005 + 0.0005 * 4095}),
    "smollm2": CostTable({1: 0.006, 8: 0.013, 64: 0.055}),
}


def _answer(
    speculation: Speculation, keys: Sequence[Key], chance: float, num_steps: int, rng: random.Random
) -> tuple[int, list[int]]:
    """How many tokens came, and how many were drafted in each step."""
    num_tokens, drafted = 0, []
    for _ in range(num_steps):
        drafts = speculation.propose([(key, 64) for key in keys], 0, 512)
        drafted.append(sum(len(one.tokens) for one in drafts))
        for key, one in zip(keys, drafts, strict=True):
            count = len(one.tokens)
            right = next((it for it in range(count + 1) if rng.random() >= chance), count + 1)
            tokens = [1] * min(right, count) + [1 if right > count else 2]
            speculation.commit(key, tokens, one, min(right, count))
            num_tokens += len(tokens)
    return num_tokens, drafted


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.slow
def test_the_time_of_a_draft_model_is_never_lost(
    chance: float, cost: CostTable, batch: int
) -> None:
    """It was asked for drafts of which none was verified then: a batch lost up to a sixth."""
    model = Model("model")
    chooser = Chooser([Member(model, cost=0.05)], cost=cost)
    speculation = Speculation(chooser, 64, cost)
    keys = [("r", index) for index in range(batch)]
    for key in keys:
        speculation.start(Subject(key, (1,)), [1])
    num_steps = 300
    num_tokens, drafted = _answer(speculation, keys, chance, num_steps, random.Random(1))
    took_s = sum(cost.step_s(batch + count) for count in drafted)
    took_s += model.num_passes * 0.05 * cost.step_s(1)
    assert num_tokens / took_s >= 0.99 * batch / cost.step_s(batch)


@pytest.mark.slow
def test_a_draft_model_that_was_bad_for_long_is_found_again() -> None:
    """Nobody asked it any more, so nobody learnt that it was good: for as long as the process."""
    model = Model("model")
    chooser = Chooser([Member(model, cost=0.05)], cost=COSTS["smollm2"])
    speculation = Speculation(chooser, 64, COSTS["smollm2"])
    rng = random.Random(1)
    rates = []
    for phase, (chance, count) in enumerate([(0.9, 20), (0.02, 200), (0.9, 200), (0.9, 20)]):
        num_tokens = 0
        for number in range(count):
            key = (f"{phase} {number}", 0)
            speculation.start(Subject(key, (1,)), [1])
            num_tokens += _answer(speculation, [key], chance, 60, rng)[0]
            speculation.stop(key, finished=True)
        rates.append(num_tokens / (60 * count))
    assert rates[0] > 2
    assert rates[1] < 1.1
    assert rates[3] > 0.8 * rates[0]


def test_every_drafter_hears_of_every_commit() -> None:
    first = Drafting("edit", {A: draft("edit", 0.9)})
    second = Drafting("eagle", features=(2, 8))
    chooser = started(Member(first), Member(second))
    assert chooser.features == (2, 8)
    chooser.commit(A, [7], "features")
    chooser.propose([(A, 4)])
    chooser.commit(A, [1, 5], "more")
    assert first.committed == [(A, (7,), None), (A, (1, 5), None)]
    assert second.committed == [(A, (7,), "features"), (A, (1, 5), "more")]
    chooser.stop(A, True)
    assert first.stopped == second.stopped == [(A, True)]


@pytest.mark.parametrize("call", ["start", "propose", "commit"])
def test_one_that_fails_drafts_no_more_for_that_request_and_others_do(
    call: str,
) -> None:
    told: list[tuple[str, Key, str]] = []
    good = Drafting("edit", {A: draft("edit", 0.5), B: draft("edit", 0.5)})
    bad = Failing("suffix", {A: draft("suffix", 0.9), B: draft("suffix", 0.9)})
    bad.call = call
    chooser = Chooser(
        [Member(good), Member(bad)],
        lambda name, key, error: told.append((name, key, str(error))),
    )
    for key in (A, B):
        chooser.start(Subject(key, prompt=(1, 2, 3)))
    for _ in range(3):
        chooser.propose([(A, 8), (B, 8)])
        for key in (A, B):
            chooser.commit(key, [1, 1])
    assert sources(chooser) == ["edit", "suffix"]
    assert chooser.num_failures == {"suffix": 1}
    assert told == [("suffix", A, "broken")]
    for key in (A, B):
        chooser.stop(key, True)
    # It has not followed that answer to its end.
    assert bad.stopped == [(A, False), (B, True)]
    assert good.stopped == [(A, True), (B, True)]


def test_a_failure_at_the_end_is_counted_too() -> None:
    bad = Failing("suffix")
    bad.call = "stop"
    chooser = started(Member(bad))
    chooser.stop(A, True)
    assert chooser.num_failures == {"suffix": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        draft("s", *[0.5] * 9),
        draft("s", math.nan),
        draft("s", 0.5, 1.5),
        draft("s", -0.1),
        Draft(tokens=(1, 2), accept=(0.5,), source="s"),
        Draft(tokens=(1, 2), accept=(0.5, 0.5), parents=(-1, 1), source="s"),
        Draft(tokens=(1, 2), accept=(0.5, 0.5), parents=(-1,), source="s"),
    ],
    ids=["too long", "NaN", "above 1", "below 0", "chances", "own parent", "parents"],
)
def test_what_is_no_draft_is_a_failure(wrong: Draft) -> None:
    chooser = started(Member(Drafting("s", {A: wrong, B: draft("s", 0.9)})))
    assert sources(chooser) == ["none", "s"]
    assert chooser.num_failures == {"s": 1}


def test_a_drafter_that_is_wrong_is_left_for_one_that_is_right() -> None:
    boastful = Drafting("edit", {A: draft("edit", *[0.95] * 8)})
    modest = Drafting("suffix", {A: draft("suffix", 0.4, 0.4, token=2)})
    chooser = started(Member(boastful), Member(modest))
    steps = 0
    while chooser.propose([(A, 8)])[0].source == "edit":
        chooser.commit(A, [2])
        steps += 1
        assert steps < 30
    # The other sequence has not seen it fail often enough.
    boastful.drafts[B] = draft("edit", *[0.95] * 8)
    assert chooser.propose([(B, 8)])[0].source == "edit"


def test_estimates_follow_what_is_accepted_at_each_place() -> None:
    drafting = Drafting("s", {A: draft("s", *[0.5] * 12)})
    chooser = started(Member(drafting))
    for _ in range(60):
        chooser.propose([(A, 12)])
        # Three are always right, the fourth never.
        chooser.commit(A, [1, 1, 1, 9])
    accept = chooser.propose([(A, 12)])[0].accept
    assert min(accept[:3]) > 0.9
    assert accept[3] < 0.1


def test_a_draft_that_is_not_verified_teaches_too() -> None:
    drafting = Drafting("s", {A: draft("s", 0.5)})
    chooser = started(Member(drafting))

    def first_chance(token: int) -> float:
        for _ in range(60):
            chooser.propose([(A, 1)])
            chooser.commit(A, [token])
        return chooser.propose([(A, 1)])[0].accept[0]

    assert first_chance(9) < 0.1
    assert first_chance(1) > 0.9


def test_of_a_tree_the_branch_that_was_taken_teaches() -> None:
    tree = Draft(
        tokens=(1, 2, 3, 4), parents=(-1, -1, 1, 0), accept=(0.5, 0.4, 0.5, 0.5), source="s"
    )
    chooser = started(Member(Drafting("s", {A: tree})))
    for _ in range(60):
        chooser.propose([(A, 4)])
        chooser.commit(A, [2, 3, 9])
    accept = chooser.propose([(A, 4)])[0].accept
    assert accept[0] < 0.05
    assert accept[2] > 0.7
    # Nobody came to the last one.
    assert accept[3] < 0.6


def test_asking_changes_no_answer() -> None:
    drafting = Drafting("s", {A: draft("s", 0.5, 0.5)})
    chooser = started(Member(drafting))
    first = chooser.propose([(A, 8), (B, 8)])
    assert [chooser.propose([(A, 8), (B, 8)]) for _ in range(3)] == [first] * 3
