"""What a guide allows, step by step and through drafts: pure, without a model."""

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
