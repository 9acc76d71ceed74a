"""The official client, sync and async, with calls of tools; and the bare keys of every event."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from slipstream_engine.tools.formats import TOOL_FORMATS
from tests.engine import fakerank, side, speaking
from tests.engine.conformance import asking, spoken
from tests.engine.conformance.spoken import THOUGHT, THOUGHTS
from tests.engine.side import Side
from tests.engine.speaking import CALLS, TOOLS

pytestmark = pytest.mark.slow

_GOLDEN = Path(__file__).parent / "golden"
_TYPED: Any = TOOLS


def test_the_official_client_reads_calls_and_thinking(
    official_speaker: openai.OpenAI, family: str
) -> None:
    content = f"{THOUGHTS}So:\n{speaking.calls(family)}{speaking.END}"
    messages: Any = [{"role": "user", "content": content}]
    answer = official_speaker.chat.completions.create(
        model="tiny", messages=messages, tools=_TYPED, max_tokens=2000
    )
    message = answer.choices[0].message
    calls = [call for call in message.tool_calls or () if call.type == "function"]
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == CALLS
    assert message.content == "So:"
    assert message.model_dump()["reasoning_content"] == THOUGHT
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens
    # Its own dump of the answer is a message of the next turn.
    messages += [
        message.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls),
        {"role": "user", "content": "Thanks." + speaking.END},
    ]
    answer = official_speaker.chat.completions.create(
        model="tiny", messages=messages, tools=_TYPED, max_tokens=50
    )
    assert answer.choices[0].message.content == "Thanks."


def test_its_accumulator_puts_calls_and_thinking_together(
    official_speaker: openai.OpenAI, family: str
) -> None:
    content = f"{THOUGHTS}So:\n{speaking.calls(family)}{speaking.END}"
    names = []
    with official_speaker.chat.completions.stream(
        model="tiny",
        messages=[{"role": "user", "content": content}],
        tools=_TYPED,
        max_tokens=2000,
        n=2,
    ) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                names.append(event.name)
        final = stream.get_final_completion()
    assert sorted(names) == sorted(name for name, _ in CALLS * 2)
    for choice in final.choices:
        calls = choice.message.tool_calls or ()
        assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == CALLS
        assert all(call.id.startswith("call_") and call.type == "function" for call in calls)
        assert choice.message.content == "So:"
        assert choice.finish_reason == "tool_calls"


@pytest.mark.asyncio
async def test_the_official_async_client_reads_many_streams_of_calls(
    model: Side, family: str
) -> None:
    content = speaking.calls(family) + speaking.END

    async with openai.AsyncOpenAI(base_url=f"{model.url}/v1", api_key="unused") as official_speaker:

        async def ask() -> list[tuple[str, Any]]:
            stream = await official_speaker.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": content}],
                tools=_TYPED,
                max_tokens=2000,
                stream=True,
            )
            return spoken.calls(
                [c.choices[0].delta.model_dump(exclude_none=True) async for c in stream]
            )

        for calls in await asyncio.gather(*(ask() for _ in range(8))):
            assert calls == CALLS


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_the_official_client_reads_every_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fakerank.BURST, "8")
    messages: Any = [{"role": "user", "content": "So:\n" + speaking.calls(name) + speaking.END}]
    asked: Any = {"model": "tiny", "messages": messages, "tools": TOOLS, "max_tokens": 2000}
    with (
        side.serving_beside(speaking.text_side(name)) as model,
        openai.OpenAI(base_url=f"{model.url}/v1", api_key="unused", max_retries=0) as official,
    ):
        whole = official.chat.completions.create(**asked)
        with official.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion()
    for message in (whole.choices[0].message, streamed.choices[0].message):
        read = [call.function for call in message.tool_calls or () if call.type == "function"]
        assert [(one.name, json.loads(one.arguments)) for one in read] == CALLS
        assert message.content == "So:"


_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tools": ("So:{calls}", {}),
    "tools_usage": ("{calls}", {"stream_options": {"include_usage": True}}),
    "tools_logprobs": ("So:{calls}", {"logprobs": True, "top_logprobs": 1}),
    "thinking": ("<think>a</think>b", {}),
}


@pytest.mark.parametrize("name", _SHAPES)
def test_the_keys_of_every_event_are_as_they_were(
    speaker: httpx.Client, family: str, golden: Callable[[Path, str], None], name: str
) -> None:
    """Both families look alike from outside."""
    answer, fields = _SHAPES[name]
    lines: list[str] = []
    for chunk in spoken.chunks(
        speaker, answer.replace("{calls}", speaking.calls(family)), **fields
    ):
        line = json.dumps(asking.skeleton(chunk))
        if not lines or lines[-1] != line:
            lines.append(line)
    golden(_GOLDEN / f"{name}.jsonl", "\n".join(lines) + "\n")


def test_the_keys_of_whole_answers_are_as_they_were(
    speaker: httpx.Client, family: str, golden: Callable[[Path, str], None]
) -> None:
    answers = (f"<think>a</think>b{speaking.calls(family)}", "<think>a</think>b")
    lines = [json.dumps(asking.skeleton(spoken.whole(speaker, answer))) for answer in answers]
    golden(_GOLDEN / "tools_whole.jsonl", "\n".join(lines) + "\n")
