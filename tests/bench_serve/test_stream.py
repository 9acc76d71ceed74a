"""Bytes of a stream to one answer: events in any pieces, and what counts as a token."""

import contextlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_bench import sse
from slipstream_bench.answer import Answer, MalformedChunkError, StreamError, ToolCall
from slipstream_bench.record import Usage
from slipstream_bench.sse import EventReader, EventTooLongError

LINE_ENDS = (b"\n", b"\r\n", b"\r")


def read(data: bytes, cuts: list[int]) -> list[bytes]:
    reader = EventReader()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    return [payload for piece in pieces for payload in reader.feed(piece)]


payloads = st.binary(max_size=20).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))


@given(
    st.lists(st.lists(payloads, min_size=1, max_size=3), max_size=6),
    st.sampled_from(LINE_ENDS),
    st.lists(st.integers(0, 1000), max_size=8),
    st.booleans(),
)
def test_events_are_the_same_however_their_bytes_are_cut(
    events: list[list[bytes]], end: bytes, cuts: list[int], has_comments: bool
) -> None:
    noise = b": ping" + end + end + b"event: x" + end if has_comments else b""
    data = b"".join(
        noise + b"".join(b"data: " + line + end for line in lines) + end for lines in events
    )
    # After a lone CR the next byte decides whether the line has ended.
    assert read(data + b":" + end, cuts) == [b"\n".join(lines) for lines in events]


def test_an_event_without_an_end_is_bounded() -> None:
    reader = EventReader()
    assert reader.feed(b"x" * sse.MAX_EVENT_BYTES) == []
    with pytest.raises(EventTooLongError):
        reader.feed(b"x")


def chunk(**delta: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode()


@pytest.mark.parametrize(
    "payload",
    [
        chunk(role="assistant", content=""),
        chunk(role="assistant", content=None),
        chunk(),
        chunk(tool_calls=[]),
        b'{"choices": [], "usage": null}',
        b'{"choices": [{"delta": {}, "finish_reason": "stop"}]}',
        b'{"choices": [{"text": "x"}]}',
        b"{}",
    ],
)
def test_a_chunk_in_which_the_model_says_nothing_is_no_token(payload: bytes) -> None:
    answer = Answer()
    answer.add(payload, 1.0)
    assert (answer.first_s, answer.num_chunks) == (None, 0)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"refusal": "a"},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]},
    ],
    ids=lambda delta: next(iter(delta)),
)
def test_a_chunk_in_which_the_model_says_something_is_a_token(delta: dict[str, Any]) -> None:
    answer = Answer()
    answer.add(chunk(role="assistant", content=""), 1.0)
    answer.add(chunk(**delta), 2.0)
    assert (answer.first_s, answer.last_s, answer.num_chunks) == (2.0, 2.0, 1)


def test_an_answer_is_put_together_from_its_chunks() -> None:
    answer = Answer()
    for at_s, text in ((1.0, "To"), (1.25, " be"), (2.25, ".")):
        answer.add(chunk(content=text), at_s)
    answer.add(b'{"choices": [{"delta": {}, "finish_reason": "length"}]}', 3.0)
    assert (answer.text(), answer.finish_reason) == ("To be.", "length")
    assert (answer.first_s, answer.last_s, answer.num_chunks) == (1.0, 2.25, 3)
    assert list(answer.gaps_s) == [0.25, 1.0]


def test_tool_calls_are_put_together_by_their_index() -> None:
    answer = Answer()
    first = {"index": 0, "id": "c0", "function": {"name": "f", "arguments": ""}}
    second = {"index": 1, "id": "c1", "function": {"name": "g", "arguments": "{}"}}
    for call in (
        first,
        second,
        {"index": 0, "function": {"arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ": 1}"}},
    ):
        answer.add(chunk(tool_calls=[call]), 1.0)
    assert answer.tool_calls() == (ToolCall("c0", "f", '{"a": 1}'), ToolCall("c1", "g", "{}"))


def test_an_answer_that_begins_with_a_call_is_known() -> None:
    call, text = chunk(tool_calls=[{"index": 0}]), chunk(content="a")
    for first, second, expected in ((call, text, True), (text, call, False)):
        answer = Answer()
        answer.add(chunk(role="assistant", content=""), 0.5)
        answer.add(first, 1.0)
        answer.add(second, 1.5)
        assert answer.began_with_call is expected


def test_usage_is_read_and_what_is_missing_stays_unknown() -> None:
    answer = Answer()
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 2},
    }
    answer.add(json.dumps({"choices": [], "usage": usage}).encode(), 1.0)
    assert answer.usage == Usage(9, 3, 0, 2, None)
    bare = Answer()
    bare.add(b'{"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": null}}', 1.0)
    assert bare.usage == Usage(prompt_tokens=9)


@pytest.mark.parametrize(
    "error",
    [{"message": "out of pages"}, {"error": {"message": "out of pages"}}, "out of pages"],
)
def test_an_error_in_the_stream_is_told_in_its_own_words(error: Any) -> None:
    with pytest.raises(StreamError, match=r"^out of pages$"):
        Answer().add(json.dumps({"error": error}).encode(), 1.0)


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["choices", "delta", "usage", "content", "tool_calls", "index"]),
                inner,
                max_size=3,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_a_chunk_or_malformed(payload: bytes) -> None:
    with contextlib.suppress(MalformedChunkError):
        Answer().add(payload, 1.0)
