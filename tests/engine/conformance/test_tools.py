"""Calls of tools: what OpenAI's clients rely on, streamed and whole, and bugs of other servers."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from slipstream_engine import streams
from slipstream_engine.tools.formats import TOOL_FORMATS
from tests.engine import side, speaking
from tests.engine.conformance import spoken
from tests.engine.conformance.asking import CHAT
from tests.engine.side import Side
from tests.engine.speaking import CALLS, TOOLS
from tests.engine.tools import writing

pytestmark = pytest.mark.slow

_NAMED = {"type": "function", "function": {"name": "read_file"}}
_MODES = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


def test_the_first_delta_of_a_call_names_it_and_later_ones_bring_arguments_alone(
    speaker: httpx.Client, family: str
) -> None:
    deltas = spoken.deltas(spoken.chunks(speaker, speaking.calls(family)))
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    begun: set[int] = set()
    for delta in deltas[1:-1]:
        assert set(delta) == {"tool_calls"}
        (part,) = delta["tool_calls"]
        if part["index"] in begun:
            assert set(part) == {"index", "function"}
            assert set(part["function"]) == {"arguments"}
            continue
        begun.add(part["index"])
        assert set(part) == {"index", "id", "type", "function"}
        assert type(part["index"]) is int
        assert isinstance(part["id"], str) and part["id"]
        assert part["type"] == "function"
        assert part["function"] == {"name": CALLS[part["index"]][0], "arguments": ""}
    assert spoken.calls(deltas) == CALLS


def test_a_whole_answer_has_calls_with_arguments_in_text_and_null_for_content(
    speaker: httpx.Client, family: str
) -> None:
    """opencode#19947, nim-deploy#182: ids that were numbers or missing."""
    message = spoken.whole(speaker, speaking.calls(family))["choices"][0]["message"]
    assert set(message) == {"role", "content", "refusal", "tool_calls"}
    assert message["content"] is None
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2 and all(isinstance(id_, str) and id_ for id_ in ids)
    for call, (name, arguments) in zip(message["tool_calls"], CALLS, strict=True):
        assert set(call) == {"id", "type", "function"}
        assert call["function"]["name"] == name
        assert json.loads(call["function"]["arguments"]) == arguments


@_MODES
def test_text_before_calls_is_content(speaker: httpx.Client, family: str, is_stream: bool) -> None:
    answer = "Let me look at both.\n\n" + speaking.calls(family)
    if is_stream:
        deltas = spoken.deltas(spoken.chunks(speaker, answer))
        assert (spoken.joined(deltas, "content"), spoken.calls(deltas)) == (
            "Let me look at both.",
            CALLS,
        )
    else:
        message = spoken.whole(speaker, answer)["choices"][0]["message"]
        assert message["content"] == "Let me look at both."
        assert len(message["tool_calls"]) == 2


_ENDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "calls": ("calls", {}, "tool_calls"),
    "calls by auto": ("calls", {"tool_choice": "auto"}, "tool_calls"),
    "text": ("text", {}, "stop"),
    "calls that were not wanted": ("calls", {"tool_choice": "none"}, "stop"),
    "calls without tools": ("calls", {"tools": ...}, "stop"),
    "a call and the limit": ("calls", {"max_tokens": 120}, "length"),
    "a call that the limit cuts": ("calls", {"max_tokens": 30}, "length"),
}


@_MODES
@pytest.mark.parametrize(("answer", "fields", "reason"), _ENDS.values(), ids=_ENDS)
def test_finish_reason_says_whether_the_client_has_calls_to_carry_out(
    speaker: httpx.Client,
    family: str,
    is_stream: bool,
    answer: str,
    fields: dict[str, Any],
    reason: str,
) -> None:
    """vllm PR#25054: it differed by mode. Rapid-MLX PR#433: stop, and then tool_calls."""
    text = speaking.calls(family) if answer == "calls" else "Nothing to do."
    if is_stream:
        choices = [c["choices"][0] for c in spoken.chunks(speaker, text, **fields)]
        assert all("finish_reason" in choice for choice in choices)
        reasons = [choice["finish_reason"] for choice in choices]
        assert set(reasons[:-1]) <= {None}
        assert reasons[-1] == reason
    else:
        assert spoken.whole(speaker, text, **fields)["choices"][0]["finish_reason"] == reason


def test_where_no_call_is_wanted_its_text_is_content(speaker: httpx.Client, family: str) -> None:
    text = speaking.calls(family)
    unwanted: tuple[dict[str, Any], ...] = ({"tool_choice": "none"}, {"tools": ...}, {"tools": []})
    for fields in unwanted:
        message = spoken.whole(speaker, text, **fields)["choices"][0]["message"]
        assert message["content"] == text
        assert "tool_calls" not in message


@_MODES
def test_one_call_alone_where_several_are_not_wanted(
    speaker: httpx.Client, family: str, is_stream: bool
) -> None:
    text = speaking.calls(family) + " and then"
    fields = {"parallel_tool_calls": False, "stream_options": {"include_usage": True}}
    if is_stream:
        chunks = spoken.chunks(speaker, text, **fields)
        deltas, usage = spoken.deltas(chunks), chunks[-1]["usage"]
        assert (spoken.joined(deltas, "content"), spoken.calls(deltas)) == ("", CALLS[:1])
    else:
        fields = {"parallel_tool_calls": False}
        document = spoken.whole(speaker, text, **fields)
        usage = document["usage"]
        assert len(document["choices"][0]["message"]["tool_calls"]) == 1
        assert document["choices"][0]["finish_reason"] == "tool_calls"
    # The rest was not generated.
    assert usage["completion_tokens"] < speaking.num_tokens(speaking.calls(family))


_MALFORMED = {
    "cut off": lambda text: text[: len(text) // 2 - 20],
    "not closed": lambda text: text.replace('": ', " ").replace("</parameter>", ""),
    "an empty section": lambda _: "<tool_call>\n</tool_call>",
    "a name that is none": lambda _: "<tool_call>\n<function=a b>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("spoil", _MALFORMED.values(), ids=_MALFORMED)
def test_a_malformed_call_stays_content_and_the_next_turn_is_answered(
    speaker: httpx.Client, family: str, spoil: Callable[[str], str]
) -> None:
    """vllm#22975, PR#55497: arguments without an end, and 400 for every turn after."""
    text = spoil(speaking.calls(family, 1))
    deltas = spoken.deltas(spoken.chunks(speaker, text))
    assert (spoken.joined(deltas, "content"), spoken.calls(deltas)) == (text, [])
    choice = spoken.whole(speaker, text)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    history = [
        {"role": "user", "content": "x"},
        choice["message"],
        {"role": "user", "content": "Again." + speaking.END},
    ]
    assert (
        spoken.whole(speaker, "", messages=history)["choices"][0]["message"]["content"] == "Again."
    )


def test_a_history_that_another_server_spoiled_is_answered(speaker: httpx.Client) -> None:
    for arguments in ('{"path": "a', "[]", "", '{"a": 1}{', "{'a': 1}"):
        call = {"id": "c", "type": "function", "function": {"name": "x", "arguments": arguments}}
        history = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "no such tool"},
            {"role": "user", "content": "Again." + speaking.END},
        ]
        answer = spoken.whole(speaker, "", messages=history)
        assert answer["choices"][0]["message"]["content"] == "Again."


def test_several_choices_have_their_own_calls(speaker: httpx.Client, family: str) -> None:
    chunks = spoken.chunks(speaker, speaking.calls(family), n=3)
    for index in range(3):
        assert spoken.calls(spoken.deltas(chunks, index)) == CALLS
    document = spoken.whole(speaker, speaking.calls(family), n=3)
    ids = [c["id"] for choice in document["choices"] for c in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 6


def test_a_stop_string_within_a_call_leaves_text(speaker: httpx.Client, family: str) -> None:
    text = speaking.calls(family, 1)
    choice = spoken.whole(speaker, text, stop="src/")["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index("src/")]


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown tool is named": (
        {"tool_choice": {**_NAMED, "function": {"name": "x"}}},
        "tool_choice",
    ),
    "an effort that the template does not know": ({"reasoning_effort": "low"}, "reasoning_effort"),
    "129 tools": ({"tools": TOOLS[:1] * 129}, "tools"),
    "functions of old": ({"functions": [{"name": "f"}]}, "functions"),
}


@_MODES
@pytest.mark.parametrize(("fields", "param"), _REFUSED.values(), ids=_REFUSED)
def test_what_cannot_be_done_is_a_400_that_names_it(
    speaker: httpx.Client, is_stream: bool, fields: dict[str, Any], param: str
) -> None:
    answer = speaker.post(CHAT, json=speaking.body("a", stream=is_stream, **fields))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_model_that_knows_no_tools_refuses_them() -> None:
    with (
        side.serving_beside(speaking.text_side("none")) as model,
        httpx.Client(base_url=model.url) as speaker,
    ):
        answer = speaker.post(CHAT, json=speaking.body("a"))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tools"
        unwanted: tuple[dict[str, Any], ...] = ({"tools": []}, {"tool_choice": "none"})
        for fields in unwanted:
            assert speaker.post(CHAT, json=speaking.body("a", **fields)).status_code == 200
        thinking = speaker.post(CHAT, json=speaking.body("<think>a</think>b", tools=...)).json()
        assert thinking["choices"][0]["message"]["content"] == "<think>a</think>b"


def test_an_observation_says_what_became_of_the_tools(
    speaker: httpx.Client, model: Side, family: str
) -> None:
    """A malformed call stays content, so only the engine can tell."""
    unknown = writing.write_calls(TOOL_FORMATS[family], [("rm", {})])
    answers: dict[str, dict[str, Any]] = {
        speaking.calls(family): {},
        "Nothing.": {},
        unknown: {},
        speaking.calls(family, 1).replace('": ', " ").replace("</parameter>", ""): {},
        "a " + speaking.calls(family): {"tools": ...},
    }
    for answer, fields in answers.items():
        spoken.whole(speaker, answer, **fields)
    seen = model.engine.observations.after(0, 1000)["observations"][-len(answers) :]
    assert [one.get("tool_call_class") for one in seen] == [
        "valid",
        "none",
        "unknown_name",
        "invalid_json",
        None,
    ]
    assert [one["finish_reason"] for one in seen] == [
        "tool_calls",
        "stop",
        "tool_calls",
        "stop",
        "stop",
    ]


def test_a_long_call_is_no_silence(
    speaker: httpx.Client, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways and proxies give up on a stream in which nothing comes."""
    monkeypatch.setattr(streams, "_SILENCE_S", 0.0)
    body = speaking.body("a " + speaking.calls(family), stream=True)
    events = speaker.post(CHAT, json=body).text.split("\n\n")
    comments = [event for event in events if not event.startswith("data: ")]
    # And the empty text behind the last event.
    assert len(comments) > 1
    assert all(comment.startswith(":") for comment in comments[:-1])
    deltas = spoken.deltas([json.loads(e[6:]) for e in events if e.startswith("data: {")])
    assert (spoken.joined(deltas, "content"), spoken.calls(deltas)) == ("a", CALLS)
