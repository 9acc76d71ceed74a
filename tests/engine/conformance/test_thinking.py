"""Thinking beside the content, its tokens, and log-probabilities where not all is content."""

from typing import Any

import httpx
import pytest

from tests.engine import speaking
from tests.engine.conformance import spoken
from tests.engine.conformance.spoken import THOUGHT, THOUGHTS
from tests.engine.speaking import CALLS

_MODES = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


@_MODES
def test_thinking_stands_beside_the_content_and_calls_within_it_are_none(
    speaker: httpx.Client, family: str, is_stream: bool
) -> None:
    """vllm#39056: calls were lost in thinking, or thinking was content."""
    answer = f"{THOUGHTS}So:\n{speaking.calls(family)}"
    if is_stream:
        deltas = spoken.deltas(spoken.chunks(speaker, answer))
        assert spoken.joined(deltas, "reasoning_content") == THOUGHT
        assert (spoken.joined(deltas, "content"), spoken.calls(deltas)) == ("So:", CALLS)
        assert all(len(delta) == 1 for delta in deltas[1:-1])
    else:
        message = spoken.whole(speaker, answer)["choices"][0]["message"]
        assert message["reasoning_content"] == THOUGHT
        assert (message["content"], len(message["tool_calls"])) == ("So:", 2)


@_MODES
def test_calls_are_not_lost_in_thinking_that_the_model_forgot_to_end(
    speaker: httpx.Client, family: str, is_stream: bool
) -> None:
    """vllm#39056, PR#33646, PR#35687: no call and no content, and agents stood still."""
    answer = f"<think>\nWhich file?\n{speaking.calls(family)}"
    if is_stream:
        chunks = spoken.chunks(speaker, answer)
        deltas = spoken.deltas(chunks)
        assert spoken.joined(deltas, "reasoning_content") == "Which file?"
        assert (spoken.joined(deltas, "content"), spoken.calls(deltas)) == ("", CALLS)
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        choice = spoken.whole(speaker, answer)["choices"][0]
        message = choice["message"]
        assert (message["reasoning_content"], message["content"]) == ("Which file?", None)
        assert (len(message["tool_calls"]), choice["finish_reason"]) == (2, "tool_calls")


def test_thinking_that_the_limit_cuts_has_no_content(speaker: httpx.Client) -> None:
    limit = speaking.num_tokens("<think>\nOn and on")
    choice = spoken.whole(speaker, "<think>\nOn and on, and on", max_tokens=limit)["choices"][0]
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "On and on"
    assert choice["finish_reason"] == "length"


def test_thinking_that_the_prompt_began_needs_no_beginning(speaker: httpx.Client) -> None:
    fields = {"chat_template_kwargs": {"opened": True}, "max_tokens": 60, "tools": ...}
    message = spoken.whole(speaker, "first</think>then", **fields, ignore_eos=True)
    message = message["choices"][0]["message"]
    assert message["reasoning_content"] == "first"
    assert message["content"].startswith("then")


def test_tokens_of_thinking_are_counted(speaker: httpx.Client, family: str) -> None:
    answer = THOUGHTS + "So."
    usage = spoken.whole(speaker, answer)["usage"]
    details = usage["completion_tokens_details"]
    assert (
        details["reasoning_tokens"]
        == speaking.num_tokens("\nWhich file?\n<tool_call>\n</think>") + 1
    )
    assert set(details) == {
        "reasoning_tokens",
        "accepted_prediction_tokens",
        "rejected_prediction_tokens",
    }
    chunks = spoken.chunks(speaker, answer, stream_options={"include_usage": True})
    assert chunks[-1]["usage"]["completion_tokens_details"] == details
    plain = spoken.whole(speaker, "So.")["usage"]["completion_tokens_details"]
    assert plain["reasoning_tokens"] == 0


def test_log_probabilities_are_those_of_the_content(speaker: httpx.Client, family: str) -> None:
    answer = f"{THOUGHTS}Größe 🙂:\n{speaking.calls(family)}\nafter"
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    choice = spoken.whole(speaker, answer, **fields)["choices"][0]
    content = choice["message"]["content"]
    assert content == "Größe 🙂:\nafter"
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"] or ()) for e in entries).decode() == content
    told, text, seen = b"", "", []
    for chunk in spoken.chunks(speaker, answer, **fields):
        (streamed,) = chunk["choices"]
        logprobs = streamed["logprobs"]
        assert (logprobs is not None) == bool(streamed["delta"].get("content"))
        text += streamed["delta"].get("content") or ""
        for entry in (logprobs or {"content": []})["content"]:
            seen.append(entry)
            told += bytes(entry["bytes"] or ())
        assert text.encode().startswith(told)
    assert seen == entries
