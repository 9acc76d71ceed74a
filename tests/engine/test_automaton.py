"""The suffix automaton against looking everywhere, and the search in packed tokens."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.spec import packed
from slipstream_engine.spec.automaton import Automaton, Trail
from tests.depth import cases

# Few different tokens: the more repetitions, the more states are split.
texts = st.integers(1, 4).flatmap(lambda kinds: st.lists(st.integers(1, kinds), max_size=40))


def ends(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """The places after each occurrence."""
    length = len(part)
    return [end for end in range(length, len(text) + 1) if text[end - length : end] == part]


def longest(text: Sequence[int], followed: Sequence[int]) -> int:
    """Of the suffixes of what was followed the longest that the text holds."""
    return max(n for n in range(len(followed) + 1) if ends(text, followed[len(followed) - n :]))


@cases(200)
@given(texts)
def test_the_longest_suffix_that_was_there_before_is_known_after_every_token(
    text: list[int],
) -> None:
    automaton = Automaton()
    for count in range(1, len(text) + 1):
        automaton.grow(text[count - 1 : count])
        before, suffixes = text[: count - 1], range(count)
        expected = max(n for n in suffixes if n == 0 or ends(before, text[count - n : count]))
        assert automaton.repeated == expected
        if expected:
            places = ends(before, text[count - expected : count])
            assert automaton.repeated_after in places
            if count <= 16:
                assert automaton.repeated_after == places[-1]


@cases(200)
@given(texts, texts)
def test_a_trail_is_at_the_longest_suffix_that_the_text_holds(
    text: list[int], followed: list[int]
) -> None:
    automaton = Automaton(text)
    trail = automaton.trail()
    seen = text[len(text) - automaton.repeated :]
    assert trail.length == automaton.repeated
    for token in followed:
        automaton.follow(trail, [token])
        seen.append(token)
        assert trail.length == longest(text, seen)
        if trail.length:
            places = ends(text, seen[len(seen) - trail.length :])
            assert trail.after in places
            if len(text) <= 16:
                assert trail.after == places[-1]


@cases(150)
@given(texts, texts, texts)
def test_a_trail_stays_right_while_the_text_grows(
    text: list[int], more: list[int], followed: list[int]
) -> None:
    """What was added makes it no longer by itself, but the next token may stand there."""
    automaton = Automaton(text)
    trail, matched = Trail(), list[int]()
    for index, token in enumerate(followed):
        automaton.follow(trail, [token])
        expected = longest(text, [*matched, token])
        assert trail.length == expected
        matched = [*matched, token][len(matched) + 1 - expected :]
        if matched:
            assert trail.after in ends(text, matched)
        added = more[3 * index : 3 * index + 3]
        automaton.grow(added)
        text = text + added


@cases(150)
@given(texts, st.integers(0, 40), st.integers(0, 40))
def test_a_text_may_come_in_parts(text: list[int], first: int, second: int) -> None:
    whole, parts = Automaton(text), Automaton()
    cuts = sorted((min(first, len(text)), min(second, len(text))))
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts.grow(text[start:end])
        parts.grow([])
    assert vars(parts) == vars(whole)


def test_the_same_token_again_and_again_takes_no_longer() -> None:
    """Each token has as many suffixes as there are tokens: only some are told their new place."""
    automaton = Automaton([7] * 20_000)
    assert (automaton.repeated, automaton.repeated_after) == (19_999, 19_999)


@cases(150)
@given(texts, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_packed_tokens_are_found_where_they_are(
    text: list[int], part: list[int], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, len(text)))
    expected = [first + end for end in ends(text[first:last], part)]
    pattern = packed.pack(part)
    assert list(packed.forwards(packed.pack(text), pattern, first, last)) == expected
    assert list(packed.backwards(packed.pack(text), pattern, first, last)) == expected[::-1]


def test_bytes_that_look_alike_between_two_tokens_are_no_token() -> None:
    # 1 and 256 as bytes: 01 00 00 00 | 00 01 00 00; the second token's middle looks like a 1.
    text, one = packed.pack([1, 256, 0, 1]), packed.pack([1])
    assert list(packed.forwards(text, one, 0, 4)) == [1, 4]
    assert list(packed.backwards(text, one, 0, 4)) == [4, 1]
