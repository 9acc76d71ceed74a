"""`tool_choice` required and named, and strict tools: calls for certain, with valid arguments.

The tiny model knows nothing, so that every token of a call is the grammar's.
"""

import asyncio
import json
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.engine.conformance import asking, spoken
from tests.engine.conformance.asking import CHAT
from tests.engine.served import Served

pytestmark = pytest.mark.slow

_MODES = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


class Move(BaseModel):
    """Move something."""

    model_config = ConfigDict(extra="forbid")
    direction: Literal["up", "down"]
    steps: Literal[1, 2, 3]
    path: list[Literal["a", "b"]]


class Halt(BaseModel):
    """Stop everything."""

    model_config = ConfigDict(extra="forbid")
    is_sure: bool


_TOOLS: Any = [openai.pydantic_function_tool(Move), openai.pydantic_function_tool(Halt)]
_PARSED: dict[str, type[BaseModel]] = {"Move": Move, "Halt": Halt}
# Blanks between the parts are free, and the tiny model likes them.
_ROOM: dict[str, Any] = {"tools": _TOOLS, "max_tokens": 700}
_NAMED: Any = {"type": "function", "function": {"name": "Halt"}}


def _answer(
    client: httpx.Client, *, is_stream: bool, **fields: Any
) -> tuple[list[tuple[str, Any]], str, str | None]:
    """Calls, reason of the end, and content."""
    if is_stream:
        chunks = asking.chunks(client, CHAT, **_ROOM, **fields)
        deltas = spoken.deltas(chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
        return spoken.calls(deltas), reason, spoken.joined(deltas, "content") or None
    choice = asking.whole(client, CHAT, **_ROOM, **fields)["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
    read = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return read, choice["finish_reason"], choice["message"]["content"]


@_MODES
@pytest.mark.parametrize("seed", range(3))
def test_where_a_call_is_required_there_is_one_and_the_answer_ends_with_it(
    client: httpx.Client, is_stream: bool, seed: int
) -> None:
    """vllm PR#25054: OpenAI ends a required call with tool_calls, streamed or not."""
    fields = {"tool_choice": "required", "temperature": 1, "seed": seed}
    calls, reason, content = _answer(
        client, is_stream=is_stream, parallel_tool_calls=False, **fields
    )
    assert (len(calls), reason, content) == (1, "tool_calls", None)
    _PARSED[calls[0][0]].model_validate(calls[0][1])


@_MODES
@pytest.mark.parametrize("seed", range(2))
def test_a_named_call_is_the_one_that_was_named_and_ends_like_any_answer(
    client: httpx.Client, is_stream: bool, seed: int
) -> None:
    """vllm PR#25054: OpenAI ends a named call with stop, streamed or not."""
    fields = {"tool_choice": _NAMED, "temperature": 1, "seed": seed}
    calls, reason, content = _answer(client, is_stream=is_stream, **fields)
    assert (len(calls), reason, content) == (1, "stop", None)
    assert calls[0][0] == "Halt"
    Halt.model_validate(calls[0][1])


@_MODES
def test_required_calls_may_be_several_and_each_is_valid(
    client: httpx.Client, is_stream: bool
) -> None:
    fields = {"tool_choice": "required", "temperature": 1, "seed": 5, "n": 1}
    calls, reason, content = _answer(client, is_stream=is_stream, **fields)
    # This model does not know when to end: the limit may cut its last call, which is content then.
    assert calls and reason in ("tool_calls", "length")
    assert content is None or reason == "length"
    for name, arguments in calls:
        _PARSED[name].model_validate(arguments)


def test_the_official_client_parses_strict_calls_into_their_models(engine: Served) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Move."}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 1,
        "seed": 2,
        **_ROOM,
    }
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="unused", max_retries=0) as official:
        whole = official.chat.completions.parse(**asked)
        with official.chat.completions.stream(**asked) as stream:
            events = list(stream)
            streamed = stream.get_final_completion()
    parsed: list[Any] = []
    for completion in (whole, streamed):
        assert completion.choices[0].finish_reason == "tool_calls"
        calls = completion.choices[0].message.tool_calls
        assert calls is not None
        (call,) = calls
        assert isinstance(call.function.parsed_arguments, _PARSED[call.function.name])
        parsed.append(call.function.parsed_arguments)
    assert parsed[0] == parsed[1]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == [parsed[0]]


@pytest.mark.asyncio
async def test_the_official_async_client_parses_strict_calls(engine: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="unused") as official:

        async def ask(seed: int) -> Any:
            completion = await official.chat.completions.parse(
                model="tiny",
                messages=[{"role": "user", "content": "Move."}],
                tool_choice=_NAMED,
                temperature=1,
                seed=seed,
                **_ROOM,
            )
            calls = completion.choices[0].message.tool_calls
            assert calls is not None
            (call,) = calls
            return call.function.parsed_arguments

        answers = await asyncio.gather(*map(ask, range(4)))
    assert all(isinstance(answer, Halt) for answer in answers)


def test_the_next_turn_of_a_forced_call_is_answered(client: httpx.Client) -> None:
    message = asking.whole(client, CHAT, tool_choice=_NAMED, **_ROOM)["choices"][0]["message"]
    history = [
        {"role": "user", "content": "x"},
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "halted"},
    ]
    answer = asking.whole(client, CHAT, messages=history, tools=_TOOLS)
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
