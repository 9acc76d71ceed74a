"""Drafters by themselves: what they draft, within which bounds, and what never changes them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_bench.edit import Edit
from slipstream_engine.spec import lookup
from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Drafter, Key, Subject
from slipstream_engine.spec.edit import EditDrafter
from slipstream_engine.spec.lookup import LookupDrafter
from slipstream_engine.spec.store import StoreDrafter
from slipstream_engine.spec.suffix import SuffixDrafter
from tests.bench import drafters as bench
from tests.depth import cases

FACTORIES: dict[str, Callable[[], Drafter]] = {
    "edit": EditDrafter,
    "lookup": LookupDrafter,
    "lookup as common": lambda: LookupDrafter(lookup.COMMON),
    "suffix": SuffixDrafter,
    "suffix that forgets": lambda: SuffixDrafter(most_prompt_tokens=6, most_output_tokens=8),
    "store": StoreDrafter,
    "chooser": lambda: Chooser([Member(EditDrafter()), Member(SuffixDrafter())]),
}
every_drafter = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)

KEY: Key = ("r", 0)
tokens = st.integers(1, 4).flatmap(lambda kinds: st.lists(st.integers(1, kinds), max_size=24))
steps = st.lists(st.tuples(tokens.filter(len), st.integers(0, 12)), max_size=6)


def draft(drafter: Drafter, budget: int = 64, key: Key = KEY) -> tuple[int, ...]:
    return drafter.propose([(key, budget)])[0].tokens


def after(
    drafter: Drafter,
    output: Sequence[int],
    prompt: Sequence[int] = (),
    prediction: Sequence[int] = (),
    budget: int = 64,
) -> tuple[int, ...]:
    """What is drafted after the output, which comes in one piece."""
    drafter.start(Subject(KEY, tuple(prompt), tuple(prediction)))
    drafter.commit(KEY, output)
    return draft(drafter, budget)


@every_drafter
@cases(60)
@given(prompt=tokens, prediction=tokens, taken=steps)
def test_a_draft_keeps_its_budget_and_holds_only_what_was_seen(
    factory: Callable[[], Drafter],
    prompt: list[int],
    prediction: list[int],
    taken: list[tuple[list[int], int]],
) -> None:
    drafter = factory()
    seen = {*prompt, *prediction}
    drafter.start(Subject(KEY, tuple(prompt), tuple(prediction)))
    for committed, budget in taken:
        drafter.commit(KEY, committed)
        seen.update(committed)
        found = drafter.propose([(KEY, budget)])[0]
        assert len(found.tokens) <= budget
        assert len(found.accept) == len(found.tokens)
        assert all(0 <= chance <= 1 for chance in found.accept)
        assert set(found.tokens) <= seen
        assert found.parents == ()
        assert found.source != "none" or found == NO_DRAFT
    drafter.stop(KEY, finished=True)


@every_drafter
@cases(40)
@given(prompt=tokens, prediction=tokens, taken=steps)
def test_asking_for_a_draft_changes_nothing(
    factory: Callable[[], Drafter],
    prompt: list[int],
    prediction: list[int],
    taken: list[tuple[list[int], int]],
) -> None:
    """One is asked all the time, the other only at the end: no drafter but the chooser, which sees
    how its offers do, may then differ in anything; and that only in its estimates."""
    asked, silent = factory(), factory()
    for one in (asked, silent):
        one.start(Subject(KEY, tuple(prompt), tuple(prediction)))
    for committed, budget in taken:
        first = asked.propose([(KEY, budget)])
        assert asked.propose([(KEY, budget)]) == first
        for one in (asked, silent):
            one.commit(KEY, committed)
    if not isinstance(asked, Chooser):
        assert asked.propose([(KEY, 12)]) == silent.propose([(KEY, 12)])


@every_drafter
@cases(40)
@given(prompt=tokens, prediction=tokens, own=steps, others=steps)
def test_samples_and_requests_share_nothing_that_changes(
    factory: Callable[[], Drafter],
    prompt: list[int],
    prediction: list[int],
    own: list[tuple[list[int], int]],
    others: list[tuple[list[int], int]],
) -> None:
    """A sample's drafts beside another sample and another request are those of the sample alone."""

    def drafts(keys: Sequence[Key]) -> list[tuple[int, ...]]:
        drafter = factory()
        for key in keys:
            drafter.start(Subject(key, tuple(prompt), tuple(prediction)))
        found = []
        for index, (committed, budget) in enumerate(own):
            drafter.commit(KEY, committed)
            found.append(draft(drafter, budget))
            for key in keys[1:]:
                if index < len(others):
                    drafter.commit(key, others[index][0])
        for key in keys[1:]:
            drafter.stop(key, finished=False)
        drafter.commit(KEY, [1])
        return [*found, draft(drafter)]

    assert drafts([KEY]) == drafts([KEY, ("r", 1), ("other", 0)])


@pytest.mark.parametrize("factory", [FACTORIES[name] for name in FACTORIES if name != "store"])
def test_a_sequence_that_was_stopped_is_forgotten(factory: Callable[[], Drafter]) -> None:
    drafter = factory()
    text = tuple(range(1, 40))
    assert after(drafter, text[:36], text, text, budget=3) == text[36:]
    drafter.stop(KEY, finished=False)
    drafter.stop(KEY, finished=False)
    assert after(drafter, text[:4]) == ()
    drafter.stop(KEY, finished=False)
    assert after(drafter, text[:36], text, text, budget=3) == text[36:]


# The numbers stand for tokens that are all different, but where said otherwise.
TEXT = list(range(100, 200))


@pytest.mark.parametrize("factory", [SuffixDrafter, LookupDrafter])
def test_what_followed_in_the_prompt_is_drafted(factory: Callable[[], Drafter]) -> None:
    assert after(factory(), TEXT[20:24], prompt=TEXT, budget=10) == tuple(TEXT[24:34])


@pytest.mark.parametrize("factory", [SuffixDrafter, LookupDrafter])
def test_a_draft_goes_on_from_the_prompt_into_the_output(factory: Callable[[], Drafter]) -> None:
    prompt, output = [1, 2, 3, 4], [8, 9, 2, 3]
    assert after(factory(), output, prompt)[:5] == (4, 8, 9, 2, 3)


def test_the_longer_suffix_decides_and_of_equal_ones_the_nearer() -> None:
    # 5 6 7 was followed by 1, and later 6 7 by 2.
    assert after(SuffixDrafter(), [5, 6, 7], [4, 5, 6, 7, 1, 9, 6, 7, 2], budget=1) == (1,)
    assert after(SuffixDrafter(), [9, 6, 7], [4, 5, 6, 7, 1, 9, 8, 6, 7, 2], budget=1) == (2,)
    # The same in the prompt and in the output.
    assert after(SuffixDrafter(), [6, 7, 3, 4, 6, 7], [6, 7, 1], budget=1) == (3,)


def test_a_repetition_is_drafted_on_and_on() -> None:
    assert after(SuffixDrafter(), [1, 2, 3, 1, 2, 3, 1], budget=8) == (2, 3, 1, 2, 3, 1, 2, 3)


def test_estimates_rise_with_what_agrees() -> None:
    drafter = SuffixDrafter()
    drafter.start(Subject(KEY, tuple(TEXT)))
    chances = []
    for start, end in [(20, 21), (21, 22), (22, 24), (24, 30), (30, 60)]:
        drafter.commit(KEY, TEXT[start:end])
        chances.append(drafter.propose([(KEY, 8)])[0].accept)
    firsts = [chance[0] for chance in chances]
    assert firsts == sorted(firsts)
    assert all(list(chance) == sorted(chance) for chance in chances)
    assert firsts[0] < 0.2
    assert firsts[-1] > 0.95


def test_a_suffix_drafter_keeps_a_bounded_part_of_prompt_and_output() -> None:
    drafter = SuffixDrafter(most_prompt_tokens=50, most_output_tokens=40)
    drafter.start(Subject(KEY, tuple(TEXT)))
    # The prompt's end is kept, its beginning is not.
    drafter.commit(KEY, TEXT[:5])
    assert draft(drafter) == ()
    drafter.commit(KEY, TEXT[50:55])
    assert draft(drafter, 5) == tuple(TEXT[55:60])
    numbers = Random(1).sample(range(1000, 9000), 2000)
    for start in range(0, 2000, 10):
        drafter.commit(KEY, numbers[start : start + 10])
    # What was said lately is known, what was said at first is not.
    drafter.commit(KEY, numbers[-12:-8])
    assert draft(drafter, 4) == tuple(numbers[-8:-4])
    drafter.commit(KEY, numbers[:4])
    assert draft(drafter) == ()


def test_lookup_takes_the_longest_of_its_lengths_and_the_wanted_occurrence() -> None:
    options = lookup.LookupOptions
    text = [1, 2, 3, 7, 2, 3, 8, 1, 2, 3, 9]
    assert after(LookupDrafter(), [1, 2, 3], text, budget=1) == (9,)
    first = LookupDrafter(options(is_first=True))
    assert after(first, [1, 2, 3], text, budget=1) == (7,)
    two = LookupDrafter(options(longest=2))
    assert after(two, [4, 2, 3], [*text[:7], 0, 0], budget=1) == (8,)
    few = LookupDrafter(options(shortest=4))
    assert after(few, [1, 2, 3], text) == ()
    short = LookupDrafter(lookup.COMMON)
    assert len(after(short, TEXT[20:24], TEXT)) == 10


def edited(output: Sequence[int], text: Sequence[int] = TEXT, budget: int = 8) -> tuple[int, ...]:
    """What the cursor drafts after the output, which comes token by token."""
    drafter = EditDrafter()
    drafter.start(Subject(KEY, (), tuple(text)))
    for token in output:
        drafter.commit(KEY, [token])
    return draft(drafter, budget)


def test_a_text_that_is_repeated_is_drafted_from_its_first_token_to_its_last() -> None:
    assert edited([], budget=1000) == tuple(TEXT)
    assert edited(TEXT[:30]) == tuple(TEXT[30:38])
    assert edited(TEXT[:97]) == tuple(TEXT[97:])
    assert edited(TEXT) == ()
    assert edited([*TEXT, 1, 2, 3]) == ()


@pytest.mark.parametrize("length", [1, 3, 7])
def test_after_a_substitution_one_token_is_enough(length: int) -> None:
    new = list(range(1, length + 1))
    assert edited([*TEXT[:30], *new]) == ()
    assert edited([*TEXT[:30], *new, TEXT[30 + length]]) == tuple(TEXT[31 + length : 39 + length])


@pytest.mark.parametrize(("length", "evidence"), [(1, 1), (6, 1), (9, 2), (50, 2), (65, 6)])
def test_after_a_deletion_more_must_agree_the_longer_it_is(length: int, evidence: int) -> None:
    rest = TEXT[20 + length :]
    if evidence > 1:
        assert edited([*TEXT[:20], *rest[: evidence - 1]]) == ()
    assert edited([*TEXT[:20], *rest[:evidence]]) == tuple(rest[evidence : evidence + 8])


@pytest.mark.parametrize("length", [1, 5, 300])
def test_after_an_insertion_one_token_is_enough(length: int) -> None:
    new = list(range(1000, 1000 + length))
    assert edited([*TEXT[:30], *new]) == ()
    assert edited([*TEXT[:30], *new, TEXT[30]]) == tuple(TEXT[31:39])


def test_going_back_needs_eight_tokens() -> None:
    assert edited([*TEXT[:60], *TEXT[10:17]]) == ()
    assert edited([*TEXT[:60], *TEXT[10:18]]) == tuple(TEXT[18:26])


def test_what_looks_alike_in_an_insertion_does_not_lead_away() -> None:
    """Lines that begin and end as the text's lines do, as code does: token 9 is a line's end."""
    text = [token for line in range(12) for token in (9, 8, 100 + line, 200 + line, 300 + line)]
    inserted = [token for line in range(40, 52) for token in (9, 8, 100 + line, 200 + line)]
    assert edited([*text[:20], *inserted, *text[20:23]], text, 4) == tuple(text[23:27])


def test_between_two_places_the_one_where_more_agrees_is_taken_and_then_the_nearer() -> None:
    text = [1, 2, 3, 50, 60, 7, 51, 4, 5, 6, 61, 7, 52, 53]
    # 60 7 agrees at the first, 61 7 at the second; 7 alone is nearer at the first.
    assert edited([1, 2, 3, 90, 60, 7], text, 1) == (51,)
    assert edited([1, 2, 3, 90, 61, 7], text, 1) == (52,)
    assert edited([1, 2, 3, 90, 7], text, 1) == (51,)


def test_estimates_fall_where_texts_parted() -> None:
    drafter = EditDrafter()
    drafter.start(Subject(KEY, (), tuple(TEXT)))

    def first_chance(committed: Sequence[int]) -> float:
        drafter.commit(KEY, committed)
        return drafter.propose([(KEY, 8)])[0].accept[0]

    before = first_chance(TEXT[:40])
    after_change = first_chance([1, TEXT[41]])
    assert first_chance(TEXT[42:60]) > after_change
    assert before > 0.95
    assert 0.4 < after_change < 0.7


def test_without_a_prediction_nothing_is_edited() -> None:
    assert edited(TEXT[:5], text=[]) == ()


def test_the_whole_of_a_changed_text_takes_few_steps() -> None:
    """A thousand tokens with ten lines changed, as the answer to the request to change them."""
    rng = Random(3)
    old = [rng.randrange(5000) for _ in range(1000)]
    new = list(old)
    for place in rng.sample(range(20, 980), 10):
        new[place : place + 3] = [rng.randrange(5000, 9999) for _ in range(4)]
    drafter = Chooser([Member(EditDrafter()), Member(SuffixDrafter())])
    drafter.start(Subject(KEY, tuple(old), tuple(old)))
    steps = place = 0
    while place < len(new):
        offered = draft(drafter)
        right = 0
        while place + right < len(new) and offered[right : right + 1] == (new[place + right],):
            right += 1
        drafter.commit(KEY, new[place : place + right + 1])
        place += right + 1
        steps += 1
    # Sixteen drafts of 64 and for each change the token that ends a draft and four new ones.
    assert steps <= 16 + 10 * 5


def test_a_draft_is_told_to_be_whose() -> None:
    drafter = SuffixDrafter()
    drafter.start(Subject(KEY, (1, 2, 3)))
    drafter.start(Subject(("s", 0), (1, 4, 5)))
    for key in (KEY, ("s", 0)):
        drafter.commit(key, [1])
    found = drafter.propose([(("s", 0), 2), (KEY, 1)])
    assert [(it.source, it.tokens) for it in found] == [("suffix", (4, 5)), ("suffix", (2,))]
    assert isinstance(found[0], Draft)


class Oracle:
    """Knows the answer."""

    name = "oracle"
    features: tuple[int, ...] = ()

    def __init__(self, answer: Sequence[int], wrong_after: int) -> None:
        self._answer = tuple(answer)
        self._said = 0
        self._wrong_after = wrong_after

    def start(self, subject: Subject) -> None:
        self._said = 0

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        (_, budget), *_ = asked
        found = self._answer[self._said : self._said + budget]
        found = found[: self._wrong_after] + (-1,) * len(found[self._wrong_after :])
        return [Draft(found, (), (1.0,) * len(found), self.name)]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        self._said += len(tokens)

    def stop(self, key: Key, finished: bool) -> None:
        pass


@pytest.mark.parametrize(
    ("wrong_after", "steps", "accepted"), [(64, 10, 640), (0, 650, 0), (4, 130, 520)]
)
def test_the_bench_forces_the_answer_and_counts_steps(
    wrong_after: int, steps: int, accepted: int
) -> None:
    """651 tokens, the first of which comes with the prompt; one more than is right a step."""
    answer = tuple(range(651))
    case = bench.Case(prompt=(1, 2), prediction=(), answer=answer)
    run = bench.forced(Oracle(answer, wrong_after), case, 64)
    assert (run.num_tokens, len(run.steps_ms), run.num_accepted) == (650, steps, accepted)
    assert bench.Figures((run,)).tokens_per_step == 650 / steps


def test_a_bench_row_misses_its_floor_below_it_and_a_strict_one_at_it_too() -> None:
    row = bench.Row("w", "a", ours=45.0, peer=1.0, floor=45.0, aim=50.0)
    assert not row.has_missed
    assert replace(row, ours=44.9).has_missed
    assert replace(row, is_strict=True).has_missed
    time_row = bench.Row("w", "a", 0.5, 1.0, 1.0, 2.0, is_time=True, is_strict=True)
    assert not time_row.has_missed
    assert replace(time_row, ours=1.0).has_missed


def test_a_snippet_is_the_added_lines_and_those_around_them() -> None:
    old = "a\nb\nc\nd\ne\nf\n"
    one = Edit("p", "p.py", old, old.replace("d", "x\n++y"))
    assert bench.snippet(one) == "b\nc\nx\n++y\ne\nf"
