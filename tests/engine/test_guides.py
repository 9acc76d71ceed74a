"""What a guide allows, step by step and through drafts: pure, without a model."""

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.guides.spec import Guide, GuideKind
from slipstream_engine.spec.draft import Draft
from tests.depth import cases
from tests.engine import guided
from tests.engine.guided import END, SIZE, Asked

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TEXT = '{"name": "Zoë\\n", "age": -7}'
_KNOWN = guided.vocabulary()


def _chain(answer: list[int]) -> Draft:
    return Draft(tuple(answer), accept=(0.5,) * len(answer), source="test")


def test_only_what_fits_may_follow_and_the_end_only_after_the_whole() -> None:
    asked = Asked(guided.schema(_PERSON))
    answer = guided.tokens(_TEXT)
    for token in answer:
        following = asked.next()
        assert token in following
        assert END not in following
        asked.commit([token])
    assert asked.next() == [END]


@pytest.mark.parametrize(
    ("guide", "good", "bad"),
    [
        (Guide(GuideKind.JSON_OBJECT), '{"a": [1, {"b": null}]}', "[1]"),
        (Guide(GuideKind.REGEX, r"[a-c]{2}/\d+"), "ab/17", "ab/x"),
        (Guide(GuideKind.REGEX, "one\ntwo"), "one\ntwo", "one two"),
        (Guide(GuideKind.CHOICE, '["red", "gr\\"en\\n", "\U0001f642"]'), 'gr"en\n', "green"),
        (Guide(GuideKind.CHOICE, '["red", "reddish"]'), "red", "redd"),
        (Guide(GuideKind.GRAMMAR, 'start: "a" b*\nb: "b" | "c"'), "abcb", "ad"),
        (Guide(GuideKind.REGEX, "a/\\\\"), "a/\\", "a/"),
        (guided.schema({"const": "é"}), '"é"', '"e"'),
        (guided.schema(True), "[null]", "nil"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_every_kind_of_guide_takes_what_fits_and_nothing_else(
    guide: Guide, good: str, bad: str
) -> None:
    for answer, is_good in ((good, True), (bad, False)):
        asked = Asked(guide)
        draft = _chain([*guided.tokens(answer), END])
        assert (asked.legal(draft) == draft) == is_good


@pytest.mark.parametrize("offset", range(len(guided.tokens(_TEXT)) + 1))
def test_a_draft_is_cut_at_its_first_token_that_does_not_fit(offset: int) -> None:
    """vllm#53777, #44006, #51660: illegal drafts moved the matcher, or ended in errors."""
    answer = guided.tokens(_TEXT)
    asked = Asked(guided.schema(_PERSON))
    # A token that fits at no place of a JSON text, then the rest as if nothing had been there.
    wrong = [*answer[:offset], 2, *answer[offset:], END]
    assert asked.legal(_chain(wrong)).tokens == tuple(answer[:offset])
    # Nothing has moved: the whole answer fits still, and the end only after it.
    right = _chain([*answer, END])
    assert asked.legal(right) == right
    assert END not in asked.next()
    asked.commit(answer[:offset])
    assert asked.legal(_chain(answer[offset:])).tokens == tuple(answer[offset:])


def test_nothing_follows_the_end() -> None:
    answer = guided.tokens(_TEXT)
    asked = Asked(guided.schema(_PERSON))
    past = _chain([*answer, END, *answer, END])
    assert asked.legal(past).tokens == (*answer, END)
    masks = asked.allowed(_chain([*answer, END]))
    assert masks[len(answer)] == masks[len(answer) + 1] == [END]
    asked.commit(answer)
    assert asked.legal(_chain(guided.tokens("\n"))).tokens == ()
    assert asked.next() == [END]


def test_masks_of_a_draft_are_those_that_its_tokens_would_have_one_by_one() -> None:
    answer = guided.tokens(_TEXT)
    asked, plain = Asked(guided.schema(_PERSON)), Asked(guided.schema(_PERSON))
    masks = asked.allowed(_chain(answer))
    for mask, token in zip(masks, [*answer, END], strict=True):
        assert mask == plain.next()
        plain.commit([token])


_A, _B, _SEMICOLON = (guided.tokens(text)[0] for text in "ab;")
_LETTERS = Guide(GuideKind.REGEX, "a*")


def test_an_answer_that_is_too_short_does_not_end_where_anything_else_fits() -> None:
    """sgl-project/sglang#28180: counted in tokens, and first allowed at exactly that many."""
    asked = Asked(_LETTERS, min_tokens=3)
    masks = asked.allowed(_chain([_A] * 5))
    assert [END in mask for mask in masks] == [False, False, False, True, True, True]
    asked.commit([_A, _A])
    masks = asked.allowed(_chain([_A] * 2))
    assert [END in mask for mask in masks] == [False, True, True]
    assert asked.legal(_chain([END])).tokens == ()
    assert asked.legal(_chain([_A, END])).tokens == (_A, END)
    # Where nothing else fits, it is over all the same.
    whole = Asked(Guide(GuideKind.CHOICE, '["a"]'), min_tokens=9)
    whole.commit([_A])
    assert whole.next() == [END]


def test_a_patient_answer_ends_where_nothing_else_fits() -> None:
    asked = Asked(dataclasses.replace(_LETTERS, is_patient=True))
    assert END not in asked.next()
    bounded = Asked(Guide(GuideKind.REGEX, "a{0,2}", is_patient=True))
    masks = bounded.allowed(_chain([_A, _A]))
    assert [mask == [END] for mask in masks] == [False, False, True]


def test_an_end_token_that_is_text_ends_the_answer_where_it_may_be_written_or_end() -> None:
    ends = (END, _B, _SEMICOLON)
    asked = Asked(Guide(GuideKind.REGEX, "ab?a|a;"), end_tokens=ends)
    # As text it may come in the middle; as an end nowhere yet.
    assert set(asked.next()) & {*ends} == set()
    asked.commit([_A])
    assert set(asked.next()) & {*ends} == {_B, _SEMICOLON}
    asked.commit([_A])
    assert asked.next() == sorted(ends)
    assert asked.legal(_chain([_B, _A])).tokens == (_B,)


def test_no_token_ends_an_answer_that_has_none_to_end_with() -> None:
    by = guided.matchers(_KNOWN)
    by.start("r", Guide(GuideKind.CHOICE, '["a"]'), frozenset(), 0)
    by.commit(("r", 0), [_A])
    assert by.masks(("r", 0), Draft((_A,))) == (b"", b"")
    assert set(by.take_failures()) == {"r"}
    # Told once; the sequence is free, and gone.
    assert by.take_failures() == {}
    assert by.masks(("r", 0), Draft()) == (b"",)
    assert by.num_requests == 0


def test_a_form_begins_after_the_end_of_thinking_wherever_that_stands() -> None:
    """vllm#44012, #48863: schemas held thinking down, or were forgotten after it."""
    guide = Guide(GuideKind.CHOICE, '["ab"]', begins_after=(5, 5, 6))
    # The beginning of the mark within the mark: 5 5 5 6.
    for thought in ([5, 5, 6], [9, 5, 5, 5, 6], [5, 9, 6, 5, 6, 5, 5, 6]):
        asked = Asked(guide)
        masks = asked.allowed(_chain([*thought, _A, _B]))
        free = [len(mask) for mask in masks[: len(thought)]]
        # Everything but the end.
        assert free == [SIZE - 1] * len(thought)
        assert not any(END in mask for mask in masks[: len(thought)])
        assert masks[-1] == [END]
        assert END not in masks[-2]
        for token in [*thought, _A, _B]:
            assert token in asked.next()
            asked.commit([token])
        assert asked.next() == [END]
    # A draft across the border is cut on its other side.
    asked = Asked(guide)
    assert asked.legal(_chain([5, 5, 6, _B])).tokens == (5, 5, 6)
    assert asked.legal(_chain([5, 5, 6, _A, _B, END])).tokens == (5, 5, 6, _A, _B, END)


def test_a_call_ends_thinking_that_the_model_forgot_to_end() -> None:
    """It could not end its answer in thinking: it wrote on to the limit, and the call was lost."""
    guide = Guide(GuideKind.CHOICE, '["ab"]', begins_after=(5, 6), call=_A)
    for thought in ([], [9], [5, 9, 5]):
        asked = Asked(guide)
        asked.commit(thought)
        draft = _chain([9, _A, _B, END])
        assert asked.legal(draft) == draft
        masks = asked.allowed(_chain([9, _A, _B]))
        assert [len(mask) for mask in masks] == [SIZE - 1, SIZE - 1, 1, 1]
        assert asked.legal(_chain([_A, 9])).tokens == (_A,)
        asked.commit([_A, _B])
        assert asked.next() == [END]
    # After the end of thinking, and in content, it is a token like any other.
    asked = Asked(guide)
    asked.commit([5, 6, _A])
    assert asked.next() == [_B]


def test_thinking_may_be_begun_or_left_out() -> None:
    guide = Guide(GuideKind.CHOICE, '["ab"]', begins_after=(6,), opening=5)
    asked = Asked(guide)
    assert 5 in asked.next()
    assert _A in asked.next()
    assert _B not in asked.next()
    assert asked.legal(_chain([5, 5, 6, _A])).tokens == (5, 5, 6, _A)
    assert asked.legal(_chain([_A, 5])).tokens == (_A,)
    asked.commit([_A])
    assert 5 not in asked.next()
    other = Asked(guide)
    other.commit([5])
    assert len(other.next()) == SIZE - 1


def test_samples_of_a_request_part_and_end_together() -> None:
    asked = Asked(_LETTERS)
    by, second = asked.matchers, ("r", 1)
    asked.commit([_A, _A])
    assert by.masks(second, Draft()) == by.masks(("r", 2), Draft())
    by.commit(second, [_A])
    by.stop("r")
    by.stop("r")
    assert by.masks(second, Draft()) == (b"",)
    assert by.num_requests == 0


def test_a_guide_that_becomes_too_much_fails_alone() -> None:
    """Its steps are counted: each is short, and the sequence ends with the library's reason."""
    asked = Asked(Guide(GuideKind.REGEX, r"(\w{1,1000}\p{L}{1,1000}x?){1,1000}"))
    for number in range(1, 300):
        following = guided.allowed(asked.matchers.masks(asked.key, Draft())[0])
        if not following:
            break
        asked.matchers.commit(asked.key, [following[number * 7919 % len(following)]])
    failures = asked.matchers.take_failures()
    assert "lexer error" in failures["r"]
    other = Asked(_LETTERS, by=asked.matchers, id_="other")
    assert other.next()


def _tree(draw: Any, asked: Asked, num_tokens: int, rng: random.Random) -> Draft:
    """Legal and illegal tokens behind each other in every shape."""
    tokens: list[int] = []
    parents: list[int] = []
    for index in range(num_tokens):
        parent = draw(st.integers(-1, index - 1))
        way, at = [], parent
        while at >= 0:
            way.append(tokens[at])
            at = parents[at]
        fitting = asked.legal(_chain(way[::-1]))
        follow = asked.allowed(fitting)[-1]
        tokens.append(rng.choice(follow) if draw(st.booleans()) else rng.randrange(SIZE))
        parents.append(parent)
    return Draft(tuple(tokens), tuple(parents), (0.5,) * num_tokens, "test")


_GUIDES = (
    guided.schema(_PERSON),
    Guide(GuideKind.JSON_OBJECT),
    Guide(GuideKind.REGEX, "(ab|a)*b?"),
    guided.schema({"type": "array", "items": {"enum": ["a", 1, None]}, "maxItems": 2}),
    Guide(GuideKind.GRAMMAR, 'start: "(" start ")" | /[a-z]{0,3}/'),
    guided.schema(_PERSON, begins_after=(5, 5, 6)),
    guided.schema(_PERSON, begins_after=(5, 6), opening=2),
)
_MATCHERS = guided.matchers(_KNOWN)


@cases(150)
@given(st.data())
def test_any_tree_leaves_a_sequence_where_it_was(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    guide = data.draw(st.sampled_from(_GUIDES))
    asked = Asked(guide, by=_MATCHERS, min_tokens=data.draw(st.integers(0, 4)))
    plain = Asked(guide, by=_MATCHERS, min_tokens=asked.min_tokens, id_="plain")
    for _ in range(data.draw(st.integers(1, 6))):
        draft = _tree(data.draw, asked, data.draw(st.integers(0, 6)), rng)
        legal = asked.legal(draft)
        masks = asked.allowed(legal)
        # Every way through the tree is what the same tokens are to a sequence of their own.
        for index in range(-1, len(legal.tokens)):
            way, at = [], index
            while at >= 0:
                way.append(legal.tokens[at])
                at = legal.parents[at]
            again = plain.allowed(_chain(way[::-1]))
            assert masks[index + 1] == again[-1]
            assert all(token in mask for token, mask in zip(way[::-1], again, strict=False))
        kept = [(legal.tokens[i], legal.parents[i]) for i in range(len(legal.tokens))]
        assert len(kept) == len(legal.accept)
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            # What was dropped fits nowhere: neither by itself nor behind what was dropped.
            if parent == -1 and token not in masks[0]:
                assert (token, -1) not in kept
            if parent == -1 and token in masks[0]:
                assert (token, -1) in kept
        token = rng.choice(masks[0])
        if token == END:
            break
        asked.commit([token])
        plain.commit([token])
