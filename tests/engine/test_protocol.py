"""Which documents are accepted, field by field, and how the others are refused."""

import json
from typing import Any

import pytest

from slipstream_engine import protocol
from slipstream_engine.apierror import ApiError
from slipstream_engine.protocol import ChatRequest, CompletionRequest

_USER = {"role": "user", "content": "hi"}
_ASSISTANT = {"role": "assistant", "content": "yes"}


def _chat(**fields: Any) -> ChatRequest:
    document = {"model": "m", "messages": [_USER], **fields}
    return protocol.parse(ChatRequest, _bytes(document))


def _plain(**fields: Any) -> CompletionRequest:
    document = {"model": "m", "prompt": "x", **fields}
    return protocol.parse(CompletionRequest, _bytes(document))


def _bytes(document: dict[str, Any]) -> bytes:
    kept = {name: value for name, value in document.items() if value is not ...}
    return json.dumps(kept).encode()


# What openai's SDKs, LangChain, LiteLLM, coding agents and vLLM's benchmark send unasked.
_HARMLESS: dict[str, Any] = {
    "store": False,
    "metadata": {"trace": "abc"},
    "service_tier": "auto",
    "safety_identifier": "u1",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "in_memory",
    "user": "u1",
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "functions": [],
    "function_call": "auto",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "verbosity": "medium",
    "logit_bias": {},
    "logprobs": False,
    "top_logprobs": 0,
    "stop": [],
    "stop_token_ids": [],
    "n": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "top_k": -1,
    "min_p": 0,
    "min_tokens": 0,
    "ignore_eos": False,
    "use_beam_search": False,
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template_kwargs": {},
    "return_token_ids": False,
    "bad_words": [],
    "echo": False,
    "priority": 0,
}
_NULLABLE = sorted(set(ChatRequest.model_fields) - {"model", "messages"})


@pytest.mark.parametrize("field", _HARMLESS)
def test_what_clients_send_unasked_is_accepted(field: str) -> None:
    _chat(**{field: _HARMLESS[field]})


@pytest.mark.parametrize("field", _NULLABLE)
def test_null_is_the_same_as_absent(field: str) -> None:
    assert _chat(**{field: None}) == _chat()


def test_options_of_a_stream_may_ask_for_nothing() -> None:
    for options in ({}, {"include_usage": False}, {"include_obfuscation": False}, None):
        document = _chat(stream=True, stream_options=options)
        assert not document.includes_usage
        assert not document.has_usage_in_every_chunk
    both = _chat(
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    assert both.includes_usage
    assert both.has_usage_in_every_chunk


_UNSUPPORTED: dict[str, Any] = {
    "store": True,
    "service_tier": "flex",
    "prompt_cache_retention": "24h",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "verbosity": "high",
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "web_search_options": {},
    "moderation": {"model": "x"},
    "prompt_cache_options": {"mode": "implicit"},
    "use_beam_search": True,
    "length_penalty": 2.0,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "truncate_prompt_tokens": 5,
    "prompt_logprobs": 1,
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "return_token_ids": True,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template": "x",
    "echo": 0,
}


@pytest.mark.parametrize("field", _UNSUPPORTED)
def test_what_is_not_implemented_is_refused_by_name(field: str) -> None:
    with pytest.raises(ApiError) as caught:
        _chat(**{field: _UNSUPPORTED[field]})
    assert (caught.value.status, caught.value.code) == (400, "unsupported_value")
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("count", "code"), [(100, "unsupported_parameter"), (101, "invalid_value")]
)
def test_faults_beyond_a_hundred_are_counted_not_named(count: int, code: str) -> None:
    """Each that is written down takes time, and a body has room for millions."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    strange = dict.fromkeys((f"k{i}" for i in range(count)), 1)
    with pytest.raises(ApiError) as caught:
        protocol.parse(ChatRequest, json.dumps(body | strange).encode())
    assert (caught.value.status, caught.value.code) == (400, code)
    assert ("101 faults" in str(caught.value)) == (count == 101)


@pytest.mark.parametrize("field", ["temprature", "reasoning", "thinking", "cache_salt", "input"])
def test_fields_that_nobody_knows_are_refused_even_as_null(field: str) -> None:
    for value in (None, 1):
        with pytest.raises(ApiError) as caught:
            _chat(**{field: value})
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", field)


_WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "17 answers": ({"n": 17}, "n"),
    "21 alternatives": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "alternatives without logprobs": ({"top_logprobs": 2}, "top_logprobs"),
    "a number of logprobs": ({"logprobs": 2}, "logprobs"),
    "a large bias": ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    "a bias of a word": ({"logit_bias": {"hello": 1}}, "logit_bias"),
    "a negative token": ({"logit_bias": {"-1": 1}}, "logit_bias"),
    "too many biases": ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
    "a large penalty": ({"presence_penalty": 2.1}, "presence_penalty"),
    "a small penalty": ({"frequency_penalty": -2.1}, "frequency_penalty"),
    "no repetition penalty": ({"repetition_penalty": 0}, "repetition_penalty"),
    "min_p above one": ({"min_p": 1.1}, "min_p"),
    "top_k below minus one": ({"top_k": -2}, "top_k"),
    "a negative minimum": ({"min_tokens": -1}, "min_tokens"),
    "a negative stop token": ({"stop_token_ids": [3, -1]}, "stop_token_ids[1]"),
    "too many stop tokens": ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
    "a deadline of nothing": ({"deadline_ms": 0}, "deadline_ms"),
    "a priority in words": ({"priority": "high"}, "priority"),
    "a huge priority": ({"priority": 1 << 40}, "priority"),
    "metadata of numbers": ({"metadata": {"a": 1}}, "metadata.a"),
    "true as a number": ({"n": True}, "n"),
    "an object to stop at": ({"stop": {"a": 1}}, "stop"),
    "usage without a stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "two limits": ({"max_tokens": 4, "max_completion_tokens": 4}, "max_completion_tokens"),
}


@pytest.mark.parametrize(("fields", "param"), _WRONG.values(), ids=_WRONG)
def test_values_out_of_range_are_refused_with_their_path(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        _chat(**fields)
    assert (caught.value.status, caught.value.code) == (400, "invalid_value")
    assert caught.value.param == param


_MESSAGES: dict[str, tuple[Any, str | None]] = {
    "text": ({"role": "user", "content": "a"}, None),
    "empty text": ({"role": "user", "content": ""}, None),
    "parts": ({"role": "user", "content": [{"type": "text", "text": "a"}]}, None),
    "no parts": ({"role": "system", "content": []}, None),
    "system parts": ({"role": "system", "content": [{"type": "text", "text": "a"}]}, None),
    "developer": ({"role": "developer", "content": "a"}, None),
    "assistant parts": ({"role": "assistant", "content": [{"type": "text", "text": "a"}]}, None),
    "assistant null": ({"role": "assistant", "content": None}, None),
    "assistant nothing": ({"role": "assistant"}, None),
    "a name": ({"role": "user", "content": "a", "name": "ann"}, None),
    "our own answer as an SDK dumps it": (
        {
            **_ASSISTANT,
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": None,
        },
        None,
    ),
    "user null": ({"role": "user", "content": None}, "messages[0].content"),
    "user nothing": ({"role": "user"}, "messages[0].content"),
    "system null": ({"role": "system", "content": None}, "messages[0].content"),
    "a tool's result": ({"role": "tool", "content": "a", "tool_call_id": "x"}, None),
    "a tool's result in parts": (
        {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "x"},
        None,
    ),
    "a result of no call": ({"role": "tool", "content": "a"}, "messages[0].tool_call_id"),
    "no result": ({"role": "tool", "tool_call_id": "x"}, "messages[0].content"),
    "a call's id with a user": (
        {"role": "user", "content": "a", "tool_call_id": "x"},
        "messages[0].tool_call_id",
    ),
    "calls without text": (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        None,
    ),
    "calls as other clients keep them": (
        {**_ASSISTANT, "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": {}}}]},
        None,
    ),
    "a call whose arguments are no JSON": (
        {**_ASSISTANT, "tool_calls": [{"id": "x", "function": {"name": "", "arguments": '{"a'}}]},
        None,
    ),
    "no calls": ({**_ASSISTANT, "tool_calls": []}, None),
    "thinking": ({**_ASSISTANT, "reasoning_content": "hm"}, None),
    "a user's thinking": (
        {"role": "user", "content": "a", "reasoning_content": "hm"},
        "messages[0].reasoning_content",
    ),
    "a user's calls": (
        {"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]},
        "messages[0].tool_calls",
    ),
    "function": ({"role": "function", "content": "a", "name": "x"}, "messages[0].role"),
    "no role": ({"content": "a"}, "messages[0].role"),
    "an image": (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        "messages[0].content[0].type",
    ),
    "a refusal part": (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]},
        "messages[0].content[0].type",
    ),
    "an unknown field of a part": (
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]},
        "messages[0].content[0].cache_control",
    ),
    "a call of nothing": (
        {**_ASSISTANT, "tool_calls": [{"id": "x"}]},
        "messages[0].tool_calls[0].function",
    ),
    "a call of another kind": (
        {**_ASSISTANT, "tool_calls": [{"type": "custom", "function": {"name": "f"}}]},
        "messages[0].tool_calls[0].type",
    ),
    "a number": (5, "messages[0]"),
    "an object as content": ({"role": "user", "content": {"a": 1}}, "messages[0].content"),
}


@pytest.mark.parametrize(("message", "param"), _MESSAGES.values(), ids=_MESSAGES)
def test_messages_of_every_role(message: Any, param: str | None) -> None:
    if param is None:
        _chat(messages=[message])
        return
    with pytest.raises(ApiError) as caught:
        _chat(messages=[message])
    assert caught.value.status == 400
    assert caught.value.param == param


_PROMPTS: dict[str, tuple[Any, list[Any] | str]] = {
    "a text": ("a", ["a"]),
    "texts": (["a", "b"], ["a", "b"]),
    "tokens": ([1, 2], [[1, 2]]),
    "lists of tokens": ([[1], [2, 3]], [[1], [2, 3]]),
    "an empty text": ("", "prompt"),
    "an empty text in a list": (["a", ""], "prompt[1]"),
    "nothing": ([], "prompt"),
    "a list of nothing": ([[]], "prompt[0]"),
    "a text among tokens": ([1, "a"], "prompt[1]"),
    "a token among texts": (["a", 1], "prompt[1]"),
    "a negative token": ([1, -1], "prompt[1]"),
    "a negative token in a list": ([[1], [1, -1]], "prompt[1][1]"),
    "a fraction": ([1.5], "prompt[0]"),
    "too many": (["a"] * 129, "prompt"),
    "an object": ({"text": "a"}, "prompt"),
    "null": (None, "prompt"),
    "absent": (..., "prompt"),
}


@pytest.mark.parametrize(("prompt", "expected"), _PROMPTS.values(), ids=_PROMPTS)
def test_prompts_of_every_form(prompt: Any, expected: list[Any] | str) -> None:
    if isinstance(expected, list):
        document = _plain(prompt=prompt, n=2)
        assert list(document.prompts) == expected
        assert document.num_choices == 2 * len(expected)
        return
    with pytest.raises(ApiError) as caught:
        _plain(prompt=prompt)
    assert (caught.value.status, caught.value.param) == (400, expected)


def test_plain_completions_have_fields_of_their_own() -> None:
    assert [_plain(logprobs=count).num_top_logprobs for count in (None, 0, 5)] == [None, 0, 5]
    for fields in ({"best_of": 1}, {"best_of": 3, "n": 3}, {"suffix": None}, {"suffix": ""}):
        _plain(**fields)
    wrong = {"logprobs": 6, "best_of": 2, "suffix": "x", "echo": True, "max_completion_tokens": 5}
    for field, value in wrong.items():
        with pytest.raises(ApiError) as caught:
            _plain(**{field: value})
        assert caught.value.param == field


def test_log_probabilities_of_chats() -> None:
    assert _chat().num_top_logprobs is None
    assert _chat(logprobs=True).num_top_logprobs == 0
    assert _chat(logprobs=True, top_logprobs=0).num_top_logprobs == 0
    assert _chat(logprobs=True, top_logprobs=20).num_top_logprobs == 20


def test_one_fault_in_a_million_tokens_is_found_without_a_million_errors() -> None:
    with pytest.raises(ApiError) as caught:
        _plain(prompt=[-1] * 1_000_000)
    assert caught.value.param == "prompt[0]"
