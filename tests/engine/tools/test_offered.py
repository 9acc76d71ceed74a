"""Which tools and choices among them are accepted, and how the others are refused."""

import json
from typing import Any

import pytest

from slipstream_api.config import EngineLimits
from slipstream_engine import protocol
from slipstream_engine.apierror import ApiError
from slipstream_engine.protocol import ChatRequest
from slipstream_engine.questions import Origin, Questioner
from slipstream_engine.tools.formats import TOOL_FORMATS
from slipstream_engine.tools.parser import Parser
from tests.engine import speaking
from tests.engine.tools import writing


def _chat(**fields: Any) -> ChatRequest:
    document = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return protocol.parse(ChatRequest, json.dumps(document).encode())


def _tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def _deep(levels: int) -> Any:
    return {"a": _deep(levels - 1)} if levels else {}


_TOOLS: dict[str, tuple[Any, str | None]] = {
    "a name alone": ([_tool()], None),
    "all fields": ([_tool(description="x", parameters={"type": "object"}, strict=False)], None),
    "nulls": ([_tool(description=None, parameters=None, strict=None)], None),
    "a name of a server's tool": ([_tool("mcp__git-hub.search_2")], None),
    "128": ([_tool(f"f{index}") for index in range(128)], None),
    "129": ([_tool(f"f{index}") for index in range(129)], "tools"),
    "one name twice": ([_tool(), _tool()], "tools"),
    "no name": ([{"type": "function", "function": {}}], "tools[0].function.name"),
    "an empty name": ([_tool("")], "tools[0].function.name"),
    "a name with a marker": ([_tool("f>")], "tools[0].function.name"),
    "a long name": ([_tool("f" * 129)], "tools[0].function.name"),
    "no function": ([{"type": "function"}], "tools[0].function"),
    "another kind": ([{"type": "web_search"}], "tools[0].type"),
    "an unknown field": ([_tool(), _tool("g", cache=1)], "tools[1].function.cache"),
    "parameters that are no schema": ([_tool(parameters=[])], "tools[0].function.parameters"),
    "60 levels": ([_tool(parameters=_deep(60))], None),
    "70 levels": ([_tool(parameters=_deep(70))], "tools[0]"),
    "a large one": ([_tool(description="x" * 200_000)], None),
    "too large a one": ([_tool(description="x" * 300_000)], "tools[0]"),
    "an object": ({"f": {}}, "tools"),
}


@pytest.mark.parametrize(("tools", "param"), _TOOLS.values(), ids=_TOOLS)
def test_tools_of_every_form(tools: Any, param: str | None) -> None:
    if param is None:
        document = _chat(tools=tools)
        # The template shows them to the model as the client wrote them.
        assert [tool.raw for tool in document.tools or ()] == tools
        assert [json.dumps(tool.raw) for tool in document.tools or ()] == list(
            map(json.dumps, tools)
        )
        return
    with pytest.raises(ApiError) as caught:
        _chat(tools=tools)
    assert (caught.value.status, caught.value.param) == (400, param)


_NAMED = {"type": "function", "function": {"name": "g"}}
_CHOICES: dict[str, tuple[dict[str, Any], tuple[list[str], bool, str | None, int | None]]] = {
    "nothing said": ({}, (["f", "g"], False, None, None)),
    "auto": ({"tool_choice": "auto"}, (["f", "g"], False, None, None)),
    "none": ({"tool_choice": "none"}, ([], False, None, None)),
    "required": ({"tool_choice": "required"}, (["f", "g"], True, None, None)),
    "named": ({"tool_choice": _NAMED}, (["f", "g"], True, "g", 1)),
    "one at a time": ({"parallel_tool_calls": False}, (["f", "g"], False, None, 1)),
    "several at a time": ({"parallel_tool_calls": True}, (["f", "g"], False, None, None)),
}


@pytest.mark.parametrize(("fields", "expected"), _CHOICES.values(), ids=_CHOICES)
def test_choices_among_tools(fields: dict[str, Any], expected: Any) -> None:
    document = _chat(tools=[_tool("f"), _tool("g")], **fields)
    offered = [function.name for function in document.offered]
    assert (offered, document.needs_call, document.forced_name, document.max_calls) == expected


_WRONG_CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "required without tools": ({"tool_choice": "required"}, "tool_choice"),
    "required of no tools": ({"tool_choice": "required", "tools": []}, "tool_choice"),
    "named without tools": ({"tool_choice": _NAMED}, "tool_choice"),
    "a name that was not offered": ({"tool_choice": _NAMED, "tools": [_tool()]}, "tool_choice"),
    "another word": ({"tool_choice": "any", "tools": [_tool()]}, "tool_choice"),
    "another kind": (
        {"tool_choice": {"type": "allowed_tools", "function": {"name": "f"}}, "tools": [_tool()]},
        "tool_choice.type",
    ),
    "an effort in numbers": ({"reasoning_effort": 5}, "reasoning_effort"),
    "a template's value of a kind that none takes": (
        {"chat_template_kwargs": {"a": [1]}},
        "chat_template_kwargs.a",
    ),
}


@pytest.mark.parametrize(("fields", "param"), _WRONG_CHOICES.values(), ids=_WRONG_CHOICES)
def test_choices_that_cannot_be_made_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        _chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_what_the_load_generators_agents_send_is_accepted() -> None:
    """Calls of the answer before, and a result for each."""
    from slipstream_bench import agent, session
    from slipstream_bench.answer import ToolCall

    calls = [ToolCall("", "read_file", '{"path": "a"}'), ToolCall("c", "x", '{"path')]
    messages = session.grow([{"role": "user", "content": "x"}], "", calls, "its text")
    document = _chat(messages=list(messages), tools=list(agent.TOOLS))
    assert [function.name for function in document.offered] == [
        "read_file",
        "search",
        "replace",
        "run_tests",
    ]
    assert [message.role for message in document.messages] == ["user", "assistant", "tool", "tool"]


def test_an_answer_that_can_hold_nothing_but_content_is_not_parsed() -> None:
    """A request without tools pays nothing for them."""
    for family, fields, is_plain in (
        ("none", {"tools": ...}, True),
        ("none", {"tools": [], "tool_choice": "auto"}, True),
        ("no_thinking", {"tools": ...}, True),
        ("no_thinking", {"tool_choice": "none"}, True),
        ("no_thinking", {}, False),
        ("hermes", {"tools": ...}, False),
    ):
        document = protocol.parse(ChatRequest, json.dumps(speaking.body("a", **fields)).encode())
        questioner = Questioner(speaking.text_side(family), 4096, EngineLimits())
        made = questioner.question(document, Origin(0.0))
        assert made.form.is_plain is is_plain, (family, fields)


@pytest.mark.parametrize(("fields", "most"), [({}, 256), ({"parallel_tool_calls": False}, 1)])
def test_an_answer_has_no_more_calls_than_a_history_may(fields: dict[str, Any], most: int) -> None:
    """A model that goes round in circles calls until its limit; the next turn was a 400."""
    text = speaking.text_side("hermes")
    asked = protocol.parse(ChatRequest, json.dumps(speaking.body("a", **fields)).encode())
    parser = Parser(Questioner(text, 4096, EngineLimits()).question(asked, Origin(0.0)).form)
    parser.push(writing.write_calls(TOOL_FORMATS["hermes"], [("edit", {})] * 300))
    calls = [
        {"function": {"name": call.name, "arguments": call.arguments}}
        for call in parser.take().calls
    ]
    assert (len(calls), parser.is_full) == (most, True)
    _chat(messages=[{"role": "assistant", "tool_calls": calls}])
