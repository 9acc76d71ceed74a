"""Which tokens stand for content where some of the text is thinking or a call."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.batch import Sampled
from slipstream_engine.spans import ContentTokens


def _tokens(*ends: int) -> ContentTokens:
    made = ContentTokens()
    for index, end in enumerate(ends):
        made.add(Sampled(index), end)
    return made


def _ids(taken: tuple[Sampled, ...]) -> list[int]:
    return [sampled.token for sampled in taken]


def test_tokens_wait_until_their_text_is_certain() -> None:
    made = _tokens(2, 4, 6)
    assert _ids(made.take([(0, 3)], 3)) == [0]
    assert _ids(made.take([(3, 4)], 5)) == [1]
    assert _ids(made.take([], 6)) == []


def test_a_token_is_content_if_any_character_of_it_is() -> None:
    # 012|345|678|9: content is 2 and 8 and 9.
    assert _ids(_tokens(3, 6, 9, 10).take([(2, 3), (8, 10)], 10)) == [0, 2, 3]


def test_parts_of_a_character_go_with_it() -> None:
    """Four tokens of one character: the first begins it, and all wait for the last."""
    assert _ids(_tokens(1, 2, 2, 2, 2, 3).take([(1, 2)], 3)) == [1, 2, 3, 4]


def test_tokens_behind_a_stop_string_are_no_content() -> None:
    made = _tokens(2, 5, 7, 9)
    assert _ids(made.take([(0, 4)], 4, is_last=True)) == [0, 1]


@given(data=st.data())
def test_taken_in_any_steps_the_tokens_are_the_same(data: st.DataObject) -> None:
    widths = data.draw(st.lists(st.integers(0, 4), max_size=12))
    kinds = data.draw(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12))
    ends = [sum(widths[: index + 1]) for index in range(len(widths))]
    spans, start = [], 0
    for is_content, width in kinds:
        spans += [(start, start + width)] * is_content
        start += width
    whole = _ids(_tokens(*ends).take(spans, start, is_last=True))
    made, taken, last = _tokens(*ends), [], 0
    for place in range(1, start + 1):
        new = [(max(a, last), min(b, place)) for a, b in spans if a < place and b > last]
        taken += _ids(made.take(new, place))
        last = place
    assert taken + _ids(made.take([], start, is_last=True)) == whole
