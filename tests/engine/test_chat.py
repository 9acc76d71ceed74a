"""Messages, calls of tools and their results as a chat template sees them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine import protocol
from slipstream_engine.apierror import ApiError
from slipstream_engine.chat import ChatTemplate
from slipstream_engine.protocol import ChatRequest
from slipstream_engine.tools.formats import TOOL_FORMATS
from slipstream_weights.checkpoint import TextModel
from tests.engine import tiny

_CALLS = "{% for m in messages %}{% for c in m.tool_calls %}%s{% endfor %}{% endfor %}"
# As the templates of the families do it: the arguments as an object, as text or as either.
_OBJECT = _CALLS.replace("%s", "{{ c.function.arguments | tojson }}")
_ITEMS = _CALLS.replace(
    "%s",
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson(ensure_ascii=False) }};"
    "{% endfor %}",
)
_TEXT = _CALLS.replace("%s", "{{ '<' + c['function']['arguments'] + '>' }}")
_EITHER = _CALLS.replace(
    "%s",
    "{% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %}",
)
_WRITTEN = '{"b":1.50,  "a": "\\u00e9"}'


def _template(source: str, family: str = "hermes") -> ChatTemplate:
    model = TextModel(tiny.tokenizer(), source, frozenset(), "<s>", "</s>")
    return ChatTemplate(model, TOOL_FORMATS.get(family))


def _chat(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return protocol.parse(
        ChatRequest, json.dumps({"model": "m", "messages": messages, **fields}).encode()
    )


def _called(arguments: Any, **fields: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **fields}


def _render(source: str, *messages: dict[str, Any], family: str = "hermes", **fields: Any) -> str:
    document = _chat(*messages, **fields)
    return _template(source, family).render(document.messages, document.tools or ())


@pytest.mark.parametrize(
    ("source", "family", "expected"),
    [
        (_OBJECT, "hermes", '{"b": 1.5, "a": "é"}'),
        (_ITEMS, "glm45", 'b=1.5;a="é";'),
        (_TEXT, "deepseek_v31", f"<{_WRITTEN}>"),
        (_TEXT, "unknown", f"<{_WRITTEN}>"),
        (_EITHER, "kimi_k2", _WRITTEN),
        (_EITHER, "qwen3_coder", '{"b": 1.5, "a": "é"}'),
        (_EITHER, "unknown", '{"b": 1.5, "a": "é"}'),
    ],
    ids=str,
)
def test_arguments_of_earlier_calls_are_what_the_template_wants(
    source: str, family: str, expected: str
) -> None:
    """Text where the model writes JSON: then the tokens are those of the answer, and cached.

    Some templates write any text, also between the tags of a format that has no JSON.
    """
    assert _render(source, _called(_WRITTEN), family=family) == expected


_BAD: dict[str, tuple[Any, Any]] = {
    "no JSON": ('{"path": "a', {"arguments": '{"path": "a'}),
    "a list": ("[1]", {"arguments": "[1]"}),
    "a number": ("5", {"arguments": "5"}),
    "another language": ("{'a': 1}", {"arguments": "{'a': 1}"}),
    "endless brackets": ('{"a":' + "[" * 9000, {"arguments": '{"a":' + "[" * 9000}),
    "nothing": ("", {}),
    "null in text": ("null", {}),
    "null": (None, {}),
    "an object": ({"a": [1]}, {"a": [1]}),
    "a line end in a string": ('{"a": "b\nc"}', {"a": "b\nc"}),
}


@pytest.mark.parametrize("source", [_OBJECT, _TEXT, _EITHER], ids=["object", "text", "either"])
@pytest.mark.parametrize(("arguments", "expected"), _BAD.values(), ids=_BAD)
def test_bad_arguments_of_an_earlier_turn_are_an_object_all_the_same(
    source: str, arguments: Any, expected: Any
) -> None:
    """vllm PR#55497: after one such call every later turn was a 400."""
    assert json.loads(_render(source, _called(arguments)).strip("<>")) == expected


@given(arguments=st.text(max_size=30))
@pytest.mark.slow
def test_no_text_in_place_of_arguments_stops_the_conversation(arguments: str) -> None:
    for source in (_OBJECT, _ITEMS, _TEXT):
        _render(source, _called(arguments))


def test_calls_and_results_reach_the_template_whole() -> None:
    source = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
    history = (
        _called("{}", reasoning_content="why"),
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": [_part("a"), _part("b")]},
    )
    first, second = map(json.loads, _render(source, *history).splitlines())
    assert first == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "why",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {}}}
        ],
    }
    assert second == {"role": "tool", "name": "f", "tool_call_id": "c1", "content": "ab"}


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_tools_reach_the_template_as_the_client_wrote_them() -> None:
    tools = [
        {
            "type": "function",
            "function": {"strict": None, "parameters": {"b": 1, "a": 2}, "name": x},
        }
        for x in "gf"
    ]
    source = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{{ tools is none }}"
    assert _render(source, _said("x"), tools=tools) == (
        "".join(json.dumps(tool) + "\n" for tool in tools) + "False"
    )
    assert _render(source, _said("x")) == "True"
    assert _template(source).takes_tools
    assert not _template("{{ messages }}").takes_tools


def test_chats_with_tools_have_a_template_of_their_own_where_there_is_one() -> None:
    tokenizer = tiny.tokenizer()
    model = TextModel(tokenizer, "plain", frozenset(), None, None, "{{ tools | length }} tools")
    template, document = ChatTemplate(model), _chat(_said("x"), tools=[_OFFERED])
    assert template.takes_tools
    assert template.render(document.messages) == "plain"
    assert template.render(document.messages, document.tools or ()) == "1 tools"


_OFFERED = {"type": "function", "function": {"name": "f"}}


def _said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


_THINKING = "{{ '/think' if enable_thinking is not defined or enable_thinking else '/no' }}"


@pytest.mark.parametrize(
    ("source", "fields", "expected"),
    [
        (_THINKING, {}, "/think"),
        (_THINKING, {"reasoning_effort": "none"}, "/no"),
        (_THINKING, {"reasoning_effort": "low"}, "/think"),
        (_THINKING, {"chat_template_kwargs": {"enable_thinking": False}}, "/no"),
        (
            _THINKING,
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            "/no",
        ),
        ("{{ thinking }}", {"reasoning_effort": "none"}, "False"),
        ("{{ reasoning_effort }}", {"reasoning_effort": "high"}, "high"),
        ("{{ a }}{{ b }}", {"chat_template_kwargs": {"a": 1.5, "b": "x"}}, "1.5x"),
    ],
    ids=str,
)
def test_the_template_is_told_how_much_to_think(
    source: str, fields: dict[str, Any], expected: str
) -> None:
    document = _chat(_said("x"), **fields)
    effort, extra = document.reasoning_effort, document.chat_template_kwargs
    assert _template(source).render(document.messages, (), effort, extra) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"messages": "x"}},
        {"chat_template_kwargs": {"add_generation_prompt": False}},
        {"chat_template_kwargs": {"range": 1}},
    ],
    ids=str,
)
def test_what_the_template_does_not_take_is_refused_by_name(fields: dict[str, Any]) -> None:
    document = _chat(_said("x"), **fields)
    with pytest.raises(ApiError) as caught:
        _template("{{ messages }}{{ range(3) }}").render(
            document.messages, (), document.reasoning_effort, document.chat_template_kwargs
        )
    assert (caught.value.status, caught.value.code) == (400, "unsupported_value")
    assert caught.value.param == next(iter(fields))


@pytest.mark.parametrize(
    "source",
    [
        "{% for t in tools %}{{ t.function.parameters.type | upper }}{{ 1 // 0 }}{% endfor %}",
        "{% for t in tools %}{{ t.function.name[99] | int + 'x' }}{% endfor %}",
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
        "{{ '%d' | format('x') }}",
    ],
    ids=["division", "type", "recursion", "value"],
)
def test_a_template_that_fails_on_tools_is_the_clients_400(source: str) -> None:
    with pytest.raises(ApiError) as caught:
        _render(source, _said("x"), tools=[_OFFERED])
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_the_same_prompt_as_transformers_makes() -> None:
    """With tools, calls and their results, where the template wants objects, as most do."""
    from transformers import PreTrainedTokenizerFast

    source = (
        "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
        "{% for c in m.tool_calls %}{{ c.function | tojson(indent=1) }}{% endfor %}"
        "{{ m.tool_call_id }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"z": "é<", "a": 1}}}]
    arguments = {"z": ["é", 1.5, None], "a": {"b": "<x>"}}
    history = [
        _said("x"),
        _called(arguments),
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ]
    theirs = PreTrainedTokenizerFast(tokenizer_object=tiny.tokenizer()).apply_chat_template(
        history, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    assert _render(source, *history, tools=tools) == theirs
    as_text = [history[0], _called(json.dumps(arguments)), history[2]]
    assert _render(source, *as_text, tools=tools) == theirs
