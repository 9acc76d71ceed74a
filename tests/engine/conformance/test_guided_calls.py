"""Forced and strict calls, and forms after thinking, of a real engine whose model knows nothing.

Its tokeniser has the markers as special tokens, as those of the models have that were trained so.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from tokenizers import AddedToken, Tokenizer

from tests.engine import guided, served, tiny
from tests.engine.conformance import asking, spoken
from tests.engine.conformance.asking import CHAT, CONTEXT
from tests.engine.served import Served

pytestmark = pytest.mark.slow

_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_TEMPLATE = (
    "{#- <tool_call> -#}{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    + tiny.CHAT_TEMPLATE
    + "{% if enable_thinking %}<think>\n{% endif %}"
)
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", "Ulm"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "note": {"type": ["string", "null"], "maxLength": 4},
    },
    "required": ["city", "days", "note"],
    "additionalProperties": False,
}


def _tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": _PARAMETERS, **fields}}


_TOOLS = [_tool("weather", strict=True), _tool("climate")]
_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"enum": [{"a": [1]}, "b"]}, "strict": True},
}
_MODES = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("thinker")
    model = tiny.write(folder / "model", tiny.config(max_position_embeddings=CONTEXT))
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _MARKERS])
    tokenizer.save(str(model / "tokenizer.json"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = _TEMPLATE
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    with served.serving(served.config(model), folder) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(thinker: Served) -> dict[str, str]:
    """The markers as keys of a bias."""
    made: Tokenizer = tiny.tokenizer()
    first = made.get_vocab_size()
    return {text: str(first + place) for place, text in enumerate(_MARKERS)}


@pytest.fixture
def client(thinker: Served) -> Iterator[httpx.Client]:
    with thinker.client() as made:
        yield made


def _said(client: httpx.Client, *, is_stream: bool, **fields: Any) -> dict[str, Any]:
    """Content, reasoning, calls and the reason of the end, whichever way they came."""
    asked = {"tools": _TOOLS, "max_tokens": 800, "seed": 7, "temperature": 1, **fields}
    if is_stream:
        chunks = asking.chunks(client, CHAT, **asked)
        deltas = spoken.deltas(chunks)
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
        return {
            "content": spoken.joined(deltas, "content") or None,
            "reasoning": spoken.joined(deltas, "reasoning_content"),
            "calls": spoken.calls(deltas),
            "reason": next(reason for reason in reasons if reason),
        }
    choice = asking.whole(client, CHAT, **asked)["choices"][0]
    message = choice["message"]
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    return {
        "content": message["content"],
        "reasoning": message.get("reasoning_content") or "",
        "calls": [(one["name"], json.loads(one["arguments"])) for one in calls],
        "reason": choice["finish_reason"],
    }


@_MODES
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_required_call_comes_whatever_the_model_would_say(
    client: httpx.Client, is_stream: bool, temperature: float
) -> None:
    said = _said(
        client,
        is_stream=is_stream,
        temperature=temperature,
        tool_choice="required",
        parallel_tool_calls=False,
    )
    assert (said["content"], said["reason"], len(said["calls"])) == (None, "tool_calls", 1)
    ((name, arguments),) = said["calls"]
    assert name in {"weather", "climate"}
    # Of a schema that can be a guide, whether it is called strict or not.
    jsonschema.validate(arguments, _PARAMETERS)


@_MODES
def test_the_tool_that_is_named_is_the_one_that_is_called(
    client: httpx.Client, is_stream: bool
) -> None:
    for name in ("weather", "climate"):
        choice = {"type": "function", "function": {"name": name}}
        said = _said(client, is_stream=is_stream, tool_choice=choice)
        # OpenAI's own reason for a named call.
        assert (said["content"], said["reason"]) == (None, "stop")
        assert [one for one, _ in said["calls"]] == [name]


def test_the_official_client_reads_forced_calls(thinker: Served) -> None:
    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="unused", max_retries=0) as official:
        tools: Any = _TOOLS[:1]
        completion = official.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": "How is the weather?"}],
            tools=tools,
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=800,
            seed=1,
        )
        calls = completion.choices[0].message.tool_calls
        assert calls
        # The client parses arguments of strict tools itself.
        jsonschema.validate(calls[0].function.parsed_arguments, _PARAMETERS)


@_MODES
def test_arguments_of_a_strict_tool_keep_to_its_schema_in_a_call_of_the_models_own(
    client: httpx.Client, tokens: dict[str, str], is_stream: bool
) -> None:
    """The bias makes it call at once; what stands in the call is the guide's."""
    bias = {tokens["<tool_call>"]: 100, tokens["</tool_call>"]: 100}
    said = _said(
        client,
        is_stream=is_stream,
        tools=_TOOLS[:1],
        parallel_tool_calls=False,
        logit_bias=bias,
    )
    assert (said["content"], said["reason"]) == (None, "tool_calls")
    ((name, arguments),) = said["calls"]
    assert name == "weather"
    jsonschema.validate(arguments, _PARAMETERS)
    # Where it is not strict, nothing is forced: the same bias gives no call.
    free = _said(client, is_stream=is_stream, tools=_TOOLS[1:], logit_bias=bias, max_tokens=30)
    assert free["calls"] == []


@_MODES
def test_a_call_ends_thinking_that_the_model_does_not_end(
    client: httpx.Client, tokens: dict[str, str], is_stream: bool
) -> None:
    """vllm PR#35687: models call without the end of thinking; strict calls went on to the limit."""
    bias = {tokens["</think>"]: -100, tokens["<tool_call>"]: 4}
    for seed in range(3):
        said = _said(
            client,
            is_stream=is_stream,
            tool_choice="required",
            parallel_tool_calls=False,
            reasoning_effort="high",
            logit_bias=bias,
            seed=seed,
        )
        assert (said["content"], said["reason"]) == (None, "tool_calls")
        ((_, arguments),) = said["calls"]
        jsonschema.validate(arguments, _PARAMETERS)


@_MODES
def test_a_form_is_the_contents_and_thinking_is_free(
    client: httpx.Client, tokens: dict[str, str], is_stream: bool
) -> None:
    """vllm#44012, #48863, #50938: unguided, no content, or no thinking."""
    fields: dict[str, Any] = {"tools": ..., "response_format": _FORMAT, "is_stream": is_stream}
    opened: dict[str, Any] = {"reasoning_effort": "high", "max_tokens": 200}
    begin, end = tokens["<think>"], tokens["</think>"]
    # The prompt opens it, the model ends it after a while.
    said = _said(client, **fields, **opened, logit_bias={end: 3}, seed=3)
    assert said["reasoning"]
    assert json.loads(said["content"]) in ({"a": [1]}, "b")
    assert said["reason"] == "stop"
    # Never ended: all of it is thinking, and no token ends the answer but the limit.
    said = _said(client, **fields, **opened, logit_bias={end: -100, "1": 100, begin: -100})
    assert (said["content"], said["reason"]) == (None, "length")
    assert said["reasoning"]
    # The model may open it itself, or begin with its content.
    said = _said(client, **fields, logit_bias={begin: 50, end: 100})
    assert json.loads(said["content"]) in ({"a": [1]}, "b")
    said = _said(client, **fields, logit_bias={begin: -100})
    assert said["reasoning"] == ""
    assert json.loads(said["content"]) in ({"a": [1]}, "b")


@_MODES
def test_with_tools_and_a_form_it_is_calls_or_content_of_the_form(
    client: httpx.Client, tokens: dict[str, str], is_stream: bool
) -> None:
    begin = tokens["<tool_call>"]
    fields: dict[str, Any] = {
        "response_format": _FORMAT,
        "parallel_tool_calls": False,
        # No string of its arguments has room for a marker.
        "tools": _TOOLS[:1],
    }
    unthinking = {tokens["<think>"]: -100}
    said = _said(client, is_stream=is_stream, **fields, logit_bias={begin: 100, **unthinking})
    assert (said["content"], len(said["calls"]), said["reason"]) == (None, 1, "tool_calls")
    # The marker can be spelt out too.
    less = str(guided.tokens("<")[0])
    bias = {begin: -100, less: -100, **unthinking}
    said = _said(client, is_stream=is_stream, **fields, logit_bias=bias)
    assert json.loads(said["content"]) in ({"a": [1]}, "b")
    assert (said["calls"], said["reason"]) == ([], "stop")


@_MODES
def test_strict_parameters_that_cannot_be_kept_are_a_400_with_their_path(
    client: httpx.Client, is_stream: bool
) -> None:
    parameters = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
    wrong = {
        "type": "function",
        "function": {"name": "f", "parameters": parameters, "strict": True},
    }
    body = asking.body(CHAT, tools=[_TOOLS[0], wrong], stream=is_stream)
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 400
    path = "tools[1].function.parameters.properties.a.uniqueItems"
    assert answer.json()["error"]["param"] == path
    # A forced call of one that is not strict does with any arguments.
    wrong["function"] = {"name": "f", "parameters": parameters}
    said = _said(client, is_stream=is_stream, tools=[wrong], tool_choice="required", max_tokens=900)
    assert {name for name, _ in said["calls"]} <= {"f"}
