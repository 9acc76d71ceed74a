"""What the gateway learns of an answer that passes by, and that it changes nothing."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_api.observation import ErrorClass, ToolCallClass
from slipstream_gateway import toolcalls
from slipstream_gateway.reading import Facts, Reading
from tests.gateway.support import DONE, data, event

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
FACTS = Facts(input_tokens=9, output_tokens=4, cached_tokens=5, finish_reason="stop")
COMMENT = b": keep-alive\n\n"
ROLE = data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
ERROR = data({"error": {"message": "boom", "type": "server_error", "param": None, "code": None}})


def read_stream(*chunks: bytes, offered_tools: frozenset[str] | None = None) -> Reading:
    """The n-th chunk comes at n seconds."""
    reading = Reading(is_event_stream=True, offered_tools=offered_tools)
    for second, chunk in enumerate(chunks):
        reading.feed(chunk, float(second))
    return reading


def read_document(
    document: Any, offered_tools: frozenset[str] | None = None, chunk_bytes: int = 7
) -> Reading:
    reading = Reading(is_event_stream=False, offered_tools=offered_tools)
    text = json.dumps(document).encode()
    for begin in range(0, len(text), chunk_bytes):
        reading.feed(text[begin : begin + chunk_bytes], 0.0)
    return reading


@given(
    st.lists(st.integers(0, 1400), max_size=8),
    st.integers(0, 12),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_a_stream_is_understood_however_it_is_cut(
    cuts: list[int], num_events: int, line_end: bytes
) -> None:
    stream = (
        COMMENT + ROLE + event("x") * num_events + event("", finish="stop")
        + data({"choices": [], "usage": USAGE}) + DONE
    ).replace(b"\n", line_end)  # fmt: skip
    edges = sorted({0, *(cut for cut in cuts if cut <= len(stream)), len(stream)})
    reading = read_stream(*(stream[begin:end] for begin, end in itertools.pairwise(edges)))
    assert reading.facts() == FACTS
    assert (reading.flaw, reading.is_done, reading.is_between_events) == (None, True, True)
    assert reading.first_token_s is not None


def test_the_first_token_is_neither_a_comment_nor_a_role() -> None:
    reading = read_stream(COMMENT, ROLE, COMMENT, event("a"), COMMENT, event("b"), DONE)
    assert (reading.first_token_s, reading.last_event_s) == (3.0, 5.0)


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "a"},
        {"delta": {"reasoning_content": "a"}},
        {"delta": {"tool_calls": [{"index": 0}]}},
        {"delta": {}, "finish_reason": "stop"},
    ],
    ids=str,
)
def test_whatever_was_generated_counts_as_a_token(choice: dict[str, Any]) -> None:
    assert read_stream(data({"choices": [{"index": 0, **choice}]})).first_token_s == 0.0


@pytest.mark.parametrize(
    ("first", "is_call"),
    [
        ({"tool_calls": [{"index": 0}]}, True),
        ({"content": "a"}, False),
        ({"reasoning_content": "a"}, False),
    ],
    ids=str,
)
def test_an_answer_that_begins_with_a_call_is_known(first: dict[str, Any], is_call: bool) -> None:
    """Its tokens came before the first event did: no time between tokens can be told."""
    call = data({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]})
    reading = read_stream(ROLE, data({"choices": [{"index": 0, "delta": first}]}), call, DONE)
    assert reading.began_with_call is is_call


@pytest.mark.parametrize(
    ("chunks", "flaw"),
    [
        ((event("a"), DONE), None),
        ((event("a"), DONE, COMMENT), None),
        ((event("a"), b"data:[DONE]\n\n"), None),
        ((event("a"), DONE[:-1]), None),
        ((event("a"), DONE[:-2]), None),
        ((), ErrorClass.ENGINE_BROKE),
        ((event("a"),), ErrorClass.ENGINE_BROKE),
        ((event("a", finish="stop"),), ErrorClass.ENGINE_BROKE),
        ((event("[DONE]"), event("data: [DONE]")), ErrorClass.ENGINE_BROKE),
        ((event("a"), ERROR), ErrorClass.ENGINE_FAILED),
        ((event("a"), ERROR, DONE), ErrorClass.ENGINE_FAILED),
        ((data({"error": "boom"}), DONE), ErrorClass.ENGINE_FAILED),
        ((event('say {"error": {"message": "x"}}'), DONE), None),
        ((event("error", error=None), DONE), None),
    ],
    ids=str,
)
def test_a_stream_without_its_end_or_with_an_error_is_no_good_one(
    chunks: tuple[bytes, ...], flaw: ErrorClass | None
) -> None:
    assert read_stream(*chunks).flaw is flaw


@pytest.mark.parametrize(
    ("told", "is_told"),
    [(ERROR, True), (data({"error": "boom"}), False), (data({"error": {"code": 1}}), False)],
    ids=str,
)
def test_only_an_error_in_openais_shape_is_one_that_the_client_was_told(
    told: bytes, is_told: bool
) -> None:
    assert read_stream(told).has_told_error is is_told


@pytest.mark.parametrize(
    "usage",
    [None, 7, {}, {"prompt_tokens": "9"}, {"prompt_tokens": -1, "completion_tokens": None}],
    ids=str,
)
def test_a_usage_that_says_nothing_is_none(usage: Any) -> None:
    assert read_stream(event("x", usage=usage), DONE).facts() == Facts()
    assert read_document({"usage": usage}).facts() == Facts()


def test_the_newest_usage_counts() -> None:
    older = {"prompt_tokens": 9, "completion_tokens": 1}
    assert read_stream(event("a", usage=older), event("b", usage=USAGE)).facts().output_tokens == 4


def test_a_document_is_read_as_a_whole() -> None:
    choice = {"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}
    reading = read_document({"choices": [choice], "usage": USAGE})
    assert reading.facts() == reading.facts() == FACTS
    assert (reading.flaw, reading.first_token_s) == (None, None)


@pytest.mark.parametrize("text", [b"", b"[1]", b"{", b"\xff", b"nonsense" * 10])
def test_a_document_that_is_no_object_says_nothing(text: bytes) -> None:
    reading = Reading(is_event_stream=False)
    reading.feed(text, 0.0)
    assert reading.facts() == Facts()


def test_what_is_huge_is_passed_over_and_not_kept() -> None:
    document = Reading(is_event_stream=False)
    document.feed(b'{"usage": {"prompt_tokens": 1, "completion_tokens": 1}, "x": "', 0.0)
    stream = read_stream(event("a"), b"data: ")
    for _ in range(40):
        document.feed(b"y" * 65536, 0.0)
        stream.feed(b"y" * 65536, 0.0)
    document.feed(b'"}', 0.0)
    assert document.facts() == Facts()
    stream.feed(b"\n\n" + event("", finish="stop", usage=USAGE) + DONE, 9.0)
    assert stream.facts() == FACTS
    assert stream.flaw is None


TOOLS = frozenset({"read", "write"})


def call(name: Any, arguments: Any, index: int = 0) -> dict[str, Any]:
    return {"index": index, "id": "c", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        ([], ToolCallClass.NONE),
        ([call("read", '{"path": "a"}')], ToolCallClass.VALID),
        ([call("read", "{}"), call("write", '{"a": [1]}', 1)], ToolCallClass.VALID),
        ([call("delete", "{}")], ToolCallClass.UNKNOWN_NAME),
        ([call("read", '{"path": ')], ToolCallClass.INVALID_JSON),
        ([call("read", "")], ToolCallClass.INVALID_JSON),
        ([call("read", "[1]")], ToolCallClass.INVALID_JSON),
        ([call("read", {"path": "a"})], ToolCallClass.INVALID_JSON),
        ([call("delete", "{}"), call("read", "{", 1)], ToolCallClass.INVALID_JSON),
        ([call("read", "{}"), call("delete", "{}", 1)], ToolCallClass.UNKNOWN_NAME),
    ],
    ids=str,
)
@pytest.mark.parametrize("piece_len", [None, 1, 5])
def test_tool_calls_get_the_class_of_the_worst_one(
    calls: list[dict[str, Any]], verdict: ToolCallClass, piece_len: int | None
) -> None:
    """As a document, and as a stream that brings the arguments in pieces."""
    if piece_len is None:
        message = {"index": 0, "message": {"tool_calls": calls}, "finish_reason": "tool_calls"}
        reading = read_document({"choices": [message]}, TOOLS)
    else:
        reading = read_stream(*_pieces(calls, piece_len), DONE, offered_tools=TOOLS)
    assert reading.facts().tool_call_class is verdict
    assert reading.facts().tool_call_class is verdict, "asking twice changes nothing"


def _pieces(calls: list[dict[str, Any]], piece_len: int) -> list[bytes]:
    deltas: list[dict[str, Any]] = []
    for one in calls:
        function, arguments = one["function"], one["function"]["arguments"]
        deltas.append({**one, "function": {**function, "arguments": ""}})
        pieces = [arguments] if not isinstance(arguments, str) else [
            arguments[i : i + piece_len] for i in range(0, len(arguments), piece_len)
        ]  # fmt: skip
        deltas += ({"index": one["index"], "function": {"arguments": it}} for it in pieces)
    events = [data({"choices": [{"index": 0, "delta": {"tool_calls": [it]}}]}) for it in deltas]
    return [*events, event("", finish="tool_calls")]


def test_where_no_tools_were_offered_or_the_answer_was_cut_nothing_is_said_of_calls() -> None:
    pieces = _pieces([call("read", "{")], 9)
    assert read_stream(*pieces, DONE).facts().tool_call_class is None
    assert read_stream(*pieces[:-1], offered_tools=TOOLS).facts().tool_call_class is None


def test_calls_of_two_choices_are_two_calls() -> None:
    events = [
        data({"choices": [{"index": i, "delta": {"tool_calls": [call("read", piece)]}}]})
        for piece in ("{", "}")
        for i in (0, 1)
    ]
    # The second piece of a call does not name it again.
    events[2:] = [it.replace(b'"read"', b"null") for it in events[2:]]
    reading = read_stream(*events, event("", finish="tool_calls"), offered_tools=TOOLS)
    assert reading.facts().tool_call_class is ToolCallClass.VALID


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        (None, None),
        ([], None),
        ("x", None),
        ([{"type": "function", "function": {"name": "read"}}], {"read"}),
        ([1, {}, {"function": 3}, {"function": {"name": 7}}], set()),
    ],
    ids=str,
)
def test_the_tools_of_a_request_are_known_by_name(tools: Any, names: set[str] | None) -> None:
    assert toolcalls.offered({"tools": tools}) == names
    assert toolcalls.offered({"tools": tools, "tool_choice": "required"}) == names


def test_tools_that_must_not_be_called_are_not_offered() -> None:
    tools = [{"type": "function", "function": {"name": "read"}}]
    assert toolcalls.offered({"tools": tools, "tool_choice": "none"}) is None
