"""Sequences for which no draft pays are drafted for seldom, and their drafter misses nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Subject
from slipstream_engine.spec.lengths import CostTable
from slipstream_engine.spec.speculation import REST_STEPS, Speculation
from tests.depth import cases

_FREE = CostTable({1: 0.01, 100: 0.01})
_PATIENCE_STEPS = 3


@dataclass
class _Recorder:
    """Drafts one token while it is told to; keeps what it was told and when it was asked."""

    name: str = "recorder"
    features: tuple[int, ...] = ()
    drafts: bool = False
    told: dict[Key, list[int]] = field(default_factory=dict)
    asked: list[Key] = field(default_factory=list)

    def start(self, subject: Subject) -> None:
        self.told[subject.key] = []

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        self.asked += [key for key, _ in asked]
        draft = Draft((1,), (), (0.9,), self.name) if self.drafts else NO_DRAFT
        return [draft] * len(asked)

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        self.told[key] += tokens

    def stop(self, key: Key, finished: bool) -> None:
        pass


def _speculation(drafter: _Recorder, cost: CostTable | None = _FREE) -> Speculation:
    return Speculation(drafter, 8, cost, patience_steps=_PATIENCE_STEPS)


def _step(speculation: Speculation, key: Key, tokens: Sequence[int]) -> Draft:
    (draft,) = speculation.propose([(key, 8)], 0, 8)
    speculation.commit(key, tokens, draft, 0)
    return draft


def _asked_steps(
    subject: Subject, num_steps: int, drafter: _Recorder, cost: CostTable | None = _FREE
) -> list[int]:
    speculation = _speculation(drafter, cost)
    speculation.start(subject, [0])
    steps: list[int] = []
    for step in range(num_steps):
        before = len(drafter.asked)
        _step(speculation, subject.key, [step])
        if len(drafter.asked) > before:
            steps.append(step)
    return steps


def test_after_some_steps_in_vain_it_is_asked_every_few_steps() -> None:
    expected = [0, 1, 2, *range(_PATIENCE_STEPS + REST_STEPS - 1, 20, REST_STEPS)]
    assert _asked_steps(Subject(("a", 0), (5,)), 20, _Recorder()) == expected


def test_a_predicted_answer_never_rests_nor_one_whose_lengths_are_not_chosen() -> None:
    predicted = Subject(("a", 0), (5,), prediction=(1, 2))
    assert _asked_steps(predicted, 20, _Recorder()) == list(range(20))
    assert _asked_steps(Subject(("a", 0), (5,)), 20, _Recorder(), cost=None) == list(range(20))


def test_a_drafter_that_wants_features_is_told_of_every_step() -> None:
    assert _asked_steps(Subject(("a", 0), (5,)), 20, _Recorder(features=(1,))) == list(range(20))


def test_one_draft_that_pays_ends_the_rest() -> None:
    drafter = _Recorder()
    speculation = _speculation(drafter)
    key = ("a", 0)
    speculation.start(Subject(key, (5,)), [0])
    for step in range(10):
        _step(speculation, key, [step])
    drafter.drafts = True
    waited = 0
    while not _step(speculation, key, [7]).tokens:
        waited += 1
    assert waited < REST_STEPS
    assert all(_step(speculation, key, [7]).tokens for _ in range(5))


_STEPS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(0, 1))
)


@cases(200)
@given(_STEPS, st.booleans())
def test_when_it_is_asked_and_at_the_end_the_drafter_knows_all_that_was_said(
    steps: list[tuple[bool, list[int], int]], finished: bool
) -> None:
    drafter = _Recorder()
    speculation = _speculation(drafter)
    said: dict[Key, list[int]] = {("a", 0): [3], ("a", 1): [4]}
    for key, tokens in said.items():
        speculation.start(Subject(key, (5,)), tokens)
    for drafts, tokens, sample in steps:
        drafter.drafts = drafts
        key = ("a", sample)
        before = len(drafter.asked)
        (draft,) = speculation.propose([(key, 8)], 0, 8)
        if len(drafter.asked) > before:
            assert drafter.told[key] == said[key]
        else:
            assert draft is NO_DRAFT
        speculation.commit(key, tokens, draft, 0)
        said[key] += tokens
    for key in said:
        speculation.stop(key, finished=finished)
        if finished:
            assert drafter.told[key] == said[key]
