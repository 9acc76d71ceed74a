"""The engine's endpoints over a real socket, answered by real processes and a tiny model."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.engine import served, tiny
from tests.engine.served import CONTEXT


def test_a_chat_answer_has_openais_shape_and_exact_usage(client: httpx.Client) -> None:
    # Nothing that others ask begins like this: all tests share one engine and its cache.
    question = "Quick zebras vex just five wolves."
    document = served.ask(client, messages=[{"role": "user", "content": question}])
    choice = document["choices"][0]
    assert document["object"] == "chat.completion"
    assert document["id"].startswith("chatcmpl-")
    assert document["model"] == "tiny"
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    count = len(tiny.tokenizer().encode(prompt, add_special_tokens=False).ids)
    assert document["usage"] == {
        "prompt_tokens": count,
        "completion_tokens": 12,
        "total_tokens": count + 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_a_stream_brings_role_text_reason_usage_and_done_in_this_order(
    client: httpx.Client,
) -> None:
    served.ask(client)  # its prompt is cached from now on
    whole = served.ask(client)
    body = served.chat(stream=True, stream_options={"include_usage": True})
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = served.events(response)
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    texts = [c["choices"][0]["delta"]["content"] for c in chunks[1:-2]]
    assert "".join(texts) == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "length",
    }
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_stream_without_include_usage_has_no_usage_at_all(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/chat/completions", json=served.chat(stream=True)) as response:
        lines = served.events(response)
    assert lines[-1] == "[DONE]"
    assert all("usage" not in json.loads(line) for line in lines[:-1])


def test_plain_completions_take_text_and_tokens_and_stream(client: httpx.Client) -> None:
    fields = {"messages": ..., "prompt": "def add(left"}
    document = served.ask(client, "/v1/completions", **fields)
    assert document["object"] == "text_completion"
    text = document["choices"][0]["text"]
    ids = list(tiny.tokenizer().encode("def add(left").ids)
    by_tokens = served.ask(client, "/v1/completions", messages=..., prompt=ids)
    assert by_tokens["choices"][0]["text"] == text
    assert by_tokens["usage"] == document["usage"]
    body = served.chat(**fields, stream=True)
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = served.events(response)
    chunks = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert "".join(chunk["text"] for chunk in chunks) == text
    assert [chunk["finish_reason"] for chunk in chunks][-1] == "length"


def test_the_limit_of_plain_completions_is_sixteen_tokens_where_none_is_given(
    client: httpx.Client,
) -> None:
    document = served.ask(client, "/v1/completions", messages=..., prompt="def", max_tokens=...)
    assert document["usage"]["completion_tokens"] == 16


def test_a_stop_string_ends_the_answer_before_itself(client: httpx.Client) -> None:
    whole = served.ask(client, max_tokens=40)["choices"][0]["message"]["content"]
    stop = whole[5:8]
    for value in (stop, ["never in there", stop]):
        document = served.ask(client, max_tokens=40, stop=value)
        assert document["choices"][0]["message"]["content"] == whole[: whole.index(stop)]
        assert document["choices"][0]["finish_reason"] == "stop"
        assert document["usage"]["completion_tokens"] < 40


def test_one_seed_gives_one_answer_alone_and_beside_others(client: httpx.Client) -> None:
    fields: dict[str, Any] = {
        "temperature": 1.0,
        "seed": 5,
        "top_p": 0.9,
        "top_k": 50,
        "max_tokens": 40,
    }
    alone = served.ask(client, **fields)["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(8) as pool:
        seeds = [5, 1, 5, 2, 5, 3, 5, 4]
        jobs = [pool.submit(served.ask, client, **{**fields, "seed": seed}) for seed in seeds]
        texts = [job.result()["choices"][0]["message"]["content"] for job in jobs]
    assert [text for text, seed in zip(texts, seeds, strict=True) if seed == 5] == [alone] * 4
    assert len(set(texts)) == 5


def test_answers_without_a_seed_differ(client: httpx.Client) -> None:
    texts = {
        served.ask(client, temperature=1.0, max_tokens=30)["choices"][0]["message"]["content"]
        for _ in range(3)
    }
    assert len(texts) == 3


def test_eight_streams_at_once_bring_what_each_brings_alone(client: httpx.Client) -> None:
    contents = [f"Count to {number}, please." * (number + 1) for number in range(8)]

    def ask(content: str) -> str:
        message = [{"role": "user", "content": content}]
        answer = served.ask(client, messages=message, max_tokens=30)
        return str(answer["choices"][0]["message"]["content"])

    alone = [ask(content) for content in contents]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, contents)) == alone


def test_content_in_parts_is_the_same_as_content_in_one(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "Write a "}, {"type": "text", "text": "function."}]
    document = served.ask(client, messages=[{"role": "user", "content": parts}])
    assert document["choices"] == served.ask(client)["choices"]


_CHAT = "/v1/chat/completions"
_PLAIN = "/v1/completions"
_USER = {"role": "user", "content": "hi"}
_BAD: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "no model": (_CHAT, {"model": ...}, "model"),
    "model of another type": (_CHAT, {"model": 5}, "model"),
    "empty model": (_CHAT, {"model": ""}, "model"),
    "no messages": (_CHAT, {"messages": ...}, "messages"),
    "empty messages": (_CHAT, {"messages": []}, "messages"),
    "messages as text": (_CHAT, {"messages": "hi"}, "messages"),
    "unknown role": (_CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    "tool role": (
        _CHAT,
        {"messages": [_USER, {"role": "tool", "content": "x"}]},
        "messages[1].tool_call_id",
    ),
    "no content": (_CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    "null content": (
        _CHAT,
        {"messages": [{"role": "user", "content": None}]},
        "messages[0].content",
    ),
    "image part": (
        _CHAT,
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
        "messages[0].content[0].type",
    ),
    "unknown field of a message": (
        _CHAT,
        {"messages": [{**_USER, "weight": 1}]},
        "messages[0].weight",
    ),
    "unknown field": (_CHAT, {"temprature": 1}, "temprature"),
    "tools": (_CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    "response_format": (_CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    "bias of no token": (_CHAT, {"logit_bias": {"100000": 1}}, "logit_bias"),
    "seventeen answers": (_CHAT, {"n": 17}, "n"),
    "no answer": (_CHAT, {"n": 0}, "n"),
    "at least more than at most": (_CHAT, {"min_tokens": 13}, "min_tokens"),
    "at least more than fits": (_CHAT, {"max_tokens": ..., "min_tokens": 9000}, "min_tokens"),
    "a deadline too far": (_CHAT, {"deadline_ms": 3_600_001}, "deadline_ms"),
    "negative temperature": (_CHAT, {"temperature": -0.1}, "temperature"),
    "hot temperature": (_CHAT, {"temperature": 2.1}, "temperature"),
    "temperature as text": (_CHAT, {"temperature": "0"}, "temperature"),
    "top_p of zero": (_CHAT, {"top_p": 0}, "top_p"),
    "top_p above one": (_CHAT, {"top_p": 1.01}, "top_p"),
    "top_k below minus one": (_CHAT, {"top_k": -2}, "top_k"),
    "max_tokens of zero": (_CHAT, {"max_tokens": 0}, "max_tokens"),
    "max_tokens as a fraction": (_CHAT, {"max_tokens": 1.5}, "max_tokens"),
    "two limits": (_CHAT, {"max_completion_tokens": 4}, "max_completion_tokens"),
    "huge seed": (_CHAT, {"seed": 1 << 64}, "seed"),
    "empty stop": (_CHAT, {"stop": ""}, "stop"),
    "five stops": (_CHAT, {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    "a long stop": (_CHAT, {"stop": "x" * 513}, "stop"),
    "a long stop in a list": (_CHAT, {"stop": ["a", "x" * 513]}, "stop[1]"),
    "stop of another type": (_CHAT, {"stop": [1]}, "stop[0]"),
    "stream as text": (_CHAT, {"stream": "yes"}, "stream"),
    "stream options without a stream": (
        _CHAT,
        {"stream_options": {"include_usage": True}},
        "stream_options",
    ),
    "unknown stream option": (
        _CHAT,
        {"stream": True, "stream_options": {"x": 1}},
        "stream_options.x",
    ),
    "prompt too long": (
        _CHAT,
        {"messages": [{"role": "user", "content": "x1" * 3000}]},
        "messages",
    ),
    "answer too long": (_CHAT, {"max_tokens": CONTEXT}, "messages"),
    "prompt in chat": (_CHAT, {"prompt": "hi"}, "prompt"),
    "no prompt": (_PLAIN, {"messages": ...}, "prompt"),
    "empty prompt": (_PLAIN, {"messages": ..., "prompt": ""}, "prompt"),
    "one prompt of several too long": (
        _PLAIN,
        {"messages": ..., "prompt": ["a", "x1" * 3000]},
        "prompt[1]",
    ),
    "token out of range in a list": (
        _PLAIN,
        {"messages": ..., "prompt": [[5], [5, 100000]]},
        "prompt[1][1]",
    ),
    "token out of range": (_PLAIN, {"messages": ..., "prompt": [5, 100000]}, "prompt[1]"),
    "negative token": (_PLAIN, {"messages": ..., "prompt": [-1]}, "prompt[0]"),
    "echo": (_PLAIN, {"messages": ..., "prompt": "x", "echo": True}, "echo"),
    "best_of": (_PLAIN, {"messages": ..., "prompt": "x", "best_of": 2}, "best_of"),
}


@pytest.mark.parametrize(("path", "fields", "param"), _BAD.values(), ids=_BAD.keys())
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_bad_request_is_answered_by_400_with_the_field(
    client: httpx.Client, path: str, fields: dict[str, Any], param: str | None, is_stream: bool
) -> None:
    if is_stream and "stream" not in fields and "stream_options" not in fields:
        fields = {**fields, "stream": True}
    answer = client.post(path, json=served.chat(**fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["code"]
    assert error["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"model": "tiny", "messages": NaN}',
        b"\xff\xfe",
        b'"x"',
        b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}',
        b"[" * 5000,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_no_document_is_answered_by_400(client: httpx.Client, body: bytes) -> None:
    answer = client.post(_CHAT, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_too_long_prompts_have_openais_code(client: httpx.Client) -> None:
    answer = client.post(_CHAT, json=served.chat(max_tokens=CONTEXT))
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_body_over_the_limit_is_answered_by_413_in_the_same_shape(client: httpx.Client) -> None:
    message = {"role": "user", "content": "x" * 70000}
    answer = client.post(_CHAT, json=served.chat(messages=[message]))
    assert answer.status_code == 413
    assert answer.json()["error"]["message"]


def test_unknown_paths_and_methods_have_the_same_shape(client: httpx.Client) -> None:
    missing = client.get("/v1/embeddings")
    assert (missing.status_code, set(missing.json())) == (404, {"error"})
    wrong = client.get(_CHAT)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert set(wrong.json()) == {"error"}
