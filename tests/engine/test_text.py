"""Streams of text: whole characters, exact joins, and stop strings wherever they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from slipstream_engine.text import TextStream, TokenBytes
from tests.engine import tiny

_TOKENIZER: Tokenizer = tiny.tokenizer()
_BYTES = TokenBytes(_TOKENIZER)


def _pieces(tokens: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    stream = TextStream(_BYTES, stops)
    pieces = []
    for token in tokens:
        pieces.append(stream.push(token))
        if stream.is_stopped:
            break
    pieces.append(stream.finish())
    return pieces, stream.is_stopped


def _encode(text: str) -> list[int]:
    return list(_TOKENIZER.encode(text, add_special_tokens=False).ids)


@given(st.text(max_size=60))
def test_joined_pieces_are_the_text_and_no_piece_has_half_a_character(text: str) -> None:
    plain = text.replace("<|", "< |")
    pieces, is_stopped = _pieces(_encode(plain))
    assert "".join(pieces) == plain
    assert not is_stopped
    if "\ufffd" not in plain:
        assert all("\ufffd" not in piece for piece in pieces)


@given(
    text=st.text(alphabet="abAB é🙂\n", max_size=40),
    stops=st.lists(st.text(alphabet="abAB é🙂\n", min_size=1, max_size=4), max_size=4),
)
def test_a_stream_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    pieces, is_stopped = _pieces(_encode(text), tuple(stops))
    places = [text.find(stop) for stop in stops if stop in text]
    assert is_stopped == bool(places)
    # A stop is seen with the token that completes it; a longer one that begins earlier may still
    # be incomplete then, so the text ends at a stop string, and holds none.
    answer = "".join(pieces)
    assert text.startswith(answer)
    if not places:
        assert answer == text
    else:
        assert any(text[len(answer) :].startswith(stop) for stop in stops)
        assert not any(stop in answer for stop in stops)


def test_text_that_may_begin_a_stop_string_is_held_back_until_it_is_certain() -> None:
    stream = TextStream(_BYTES, ("END",))
    seen = [stream.push(token) for character in "xENyEND" for token in _encode(character)]
    assert seen == ["x", "", "", "ENy", "", "", ""]
    assert stream.is_stopped
    assert stream.finish() == ""


def test_what_was_held_back_comes_out_when_the_answer_ends_otherwise() -> None:
    stream = TextStream(_BYTES, ("END",))
    assert [stream.push(token) for c in "EN" for token in _encode(c)] == ["", ""]
    assert stream.finish() == "EN"
    assert not stream.is_stopped


def test_an_answer_cut_inside_a_character_ends_with_the_replacement_character() -> None:
    stream = TextStream(_BYTES, ())
    first = _encode("🙂")[0]
    assert (stream.push(first), stream.finish()) == ("", "\ufffd")


@pytest.mark.parametrize("token", ["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
def test_special_tokens_have_no_text(token: str) -> None:
    index = _TOKENIZER.token_to_id(token)
    assert index is not None
    assert _BYTES.of(index) == b""


def test_rows_of_padded_embeddings_have_no_text() -> None:
    assert _BYTES.of(383) == b""
