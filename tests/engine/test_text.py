"""Streams of text: whole characters, exact joins, and stop strings wherever they are cut."""

import time

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


@given(
    pieces=st.lists(st.text(alphabet="ab", max_size=9), max_size=12),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=12), min_size=1, max_size=4),
)
def test_no_more_is_held_back_than_may_begin_a_stop_string(
    pieces: list[str], stops: list[str]
) -> None:
    """Against every length tried."""
    stream, text, released = TextStream(_BYTES, stops), "", ""
    for token in (token for piece in pieces for token in _encode(piece)):
        text += _BYTES.of(token).decode()
        released += stream.push(token)
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        assert stream.is_stopped == bool(places)
        if places:
            assert released == text[: min(places)]
            return
        held = max(
            length for stop in stops for length in range(len(stop)) if text.endswith(stop[:length])
        )
        assert released == text[: len(text) - held]


def test_stop_strings_that_nearly_are_there_all_the_time_cost_no_more_than_others() -> None:
    """A text of one character and strings that only their ends keep from it: 1 µs a character."""
    stops = ["a" * 511 + "b", "ba" + "a" * 510, "a" * 300 + "b" + "a" * 211, "aab" * 170]
    token = _encode("a")[0]
    began = time.process_time()
    stream = TextStream(_BYTES, stops)
    for _ in range(20_000):
        stream.push(token)
    assert not stream.is_stopped
    assert time.process_time() - began < 1.0


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


@given(
    text=st.text(alphabet="abAB é🙂東\n", max_size=40),
    stops=st.lists(st.text(alphabet="abAB é🙂\n", min_size=1, max_size=4), max_size=3),
)
def test_a_token_is_out_with_the_end_of_its_text(text: str, stops: list[str]) -> None:
    tokens = _encode(text)
    stream = TextStream(_BYTES, stops)
    released = ""
    for count, token in enumerate(tokens, start=1):
        released += stream.push(token)
        out = b"".join(_BYTES.of(one) for one in tokens[: stream.num_tokens_out])
        if stream.is_stopped:
            # The stop string may begin inside of the last one.
            assert out.startswith(released.encode())
            before = b"".join(_BYTES.of(one) for one in tokens[: stream.num_tokens_out - 1])
            assert not released or len(before) < len(released.encode())
            return
        assert stream.num_tokens_out <= count
        assert released.encode().startswith(out)
        rest = released.encode()[len(out) :]
        if stream.num_tokens_out < len(tokens):
            assert len(rest) < len(_BYTES.of(tokens[stream.num_tokens_out]))
    stream.finish()
    assert stream.num_tokens_out == len(tokens)


@given(st.lists(st.integers(0, 299), max_size=30))
def test_tokens_that_are_no_text_still_all_come_out(tokens: list[int]) -> None:
    stream = TextStream(_BYTES, ())
    text = "".join([stream.push(token) for token in tokens]) + stream.finish()
    assert text == b"".join(_BYTES.of(one) for one in tokens).decode(errors="replace")
    assert stream.num_tokens_out == len(tokens)


@pytest.mark.parametrize(("minimum", "text"), [(0, "x"), (1, "x"), (2, "xa"), (4, "xaax")])
def test_a_stop_string_counts_after_the_minimum_of_tokens(minimum: int, text: str) -> None:
    stream = TextStream(_BYTES, ("a",), minimum)
    released = ""
    for token in (token for character in "xaaxaa" for token in _encode(character)):
        released += stream.push(token)
        if stream.is_stopped:
            break
    assert stream.is_stopped
    assert released == text


def test_names_of_tokens_show_text_bytes_and_special_words() -> None:
    first, second = _encode("東")[:2]
    assert _BYTES.name(_encode("a")[0]) == "a"
    assert _BYTES.name(first) == "bytes:\\xe6"
    assert _BYTES.name(second).startswith("bytes:\\x")
    assert _BYTES.name(1) == "<|im_end|>"
    assert _BYTES.name(383) == "<token 383>"
    named = [_BYTES.name(token) for token in range(300)]
    assert len(set(named)) == 300


@pytest.mark.parametrize("token", ["<|im_end|>", "<|im_start|>", "<|endoftext|>"])
def test_special_tokens_have_no_text(token: str) -> None:
    index = _TOKENIZER.token_to_id(token)
    assert index is not None
    assert _BYTES.of(index) == b""


def test_rows_of_padded_embeddings_have_no_text() -> None:
    assert _BYTES.of(383) == b""
