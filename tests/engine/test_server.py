"""The engine's endpoints over a real socket, answered by real processes and a tiny model."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine import served, tiny
from tests.engine.served import TOKEN, Served

_CONTEXT = 4096


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    document = tiny.config(max_position_embeddings=_CONTEXT)
    return tiny.write(tmp_path_factory.mktemp("model"), document)


@pytest.fixture(scope="module")
def token_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("token")
    (folder / "current").write_text(TOKEN + "\n")
    (folder / "previous").write_text("the-previous-key")
    return folder


@pytest.fixture(scope="module")
def engine(
    model: Path, token_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    document = served.config(
        model,
        server={"tokenDir": str(token_dir), "maxBodyBytes": 65536},
        pages={"kvBytes": 4 * 1024 * 1024},
    )
    with served.serving(document, tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
def client(engine: Served) -> Iterator[httpx.Client]:
    with engine.client() as made:
        yield made


def _chat(**fields: Any) -> dict[str, Any]:
    document = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Write a function."}],
        "temperature": 0,
        "max_tokens": 12,
    }
    return {key: value for key, value in {**document, **fields}.items() if value is not ...}


def _ask(client: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    answer = client.post(path, json=_chat(**fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_chat_answer_has_openais_shape_and_exact_usage(client: httpx.Client) -> None:
    document = _ask(client)
    choice = document["choices"][0]
    assert document["object"] == "chat.completion"
    assert document["id"].startswith("chatcmpl-")
    assert document["model"] == "tiny"
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    prompt = "<|im_start|>user\nWrite a function.<|im_end|>\n<|im_start|>assistant\n"
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
    whole = _ask(client)
    body = _chat(stream=True, stream_options={"include_usage": True})
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
    with client.stream("POST", "/v1/chat/completions", json=_chat(stream=True)) as response:
        lines = served.events(response)
    assert lines[-1] == "[DONE]"
    assert all("usage" not in json.loads(line) for line in lines[:-1])


def test_plain_completions_take_text_and_tokens_and_stream(client: httpx.Client) -> None:
    fields = {"messages": ..., "prompt": "def add(left"}
    document = _ask(client, "/v1/completions", **fields)
    assert document["object"] == "text_completion"
    text = document["choices"][0]["text"]
    ids = list(tiny.tokenizer().encode("def add(left").ids)
    by_tokens = _ask(client, "/v1/completions", messages=..., prompt=ids)
    assert by_tokens["choices"][0]["text"] == text
    assert by_tokens["usage"] == document["usage"]
    body = _chat(**fields, stream=True)
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = served.events(response)
    chunks = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert "".join(chunk["text"] for chunk in chunks) == text
    assert [chunk["finish_reason"] for chunk in chunks][-1] == "length"


def test_the_limit_of_plain_completions_is_sixteen_tokens_where_none_is_given(
    client: httpx.Client,
) -> None:
    document = _ask(client, "/v1/completions", messages=..., prompt="def", max_tokens=...)
    assert document["usage"]["completion_tokens"] == 16


def test_a_stop_string_ends_the_answer_before_itself(client: httpx.Client) -> None:
    whole = _ask(client, max_tokens=40)["choices"][0]["message"]["content"]
    stop = whole[5:8]
    for value in (stop, ["never in there", stop]):
        document = _ask(client, max_tokens=40, stop=value)
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
    alone = _ask(client, **fields)["choices"][0]["message"]["content"]
    with ThreadPoolExecutor(8) as pool:
        seeds = [5, 1, 5, 2, 5, 3, 5, 4]
        jobs = [pool.submit(_ask, client, **{**fields, "seed": seed}) for seed in seeds]
        texts = [job.result()["choices"][0]["message"]["content"] for job in jobs]
    assert [text for text, seed in zip(texts, seeds, strict=True) if seed == 5] == [alone] * 4
    assert len(set(texts)) == 5


def test_answers_without_a_seed_differ(client: httpx.Client) -> None:
    texts = {
        _ask(client, temperature=1.0, max_tokens=30)["choices"][0]["message"]["content"]
        for _ in range(3)
    }
    assert len(texts) == 3


def test_eight_streams_at_once_bring_what_each_brings_alone(client: httpx.Client) -> None:
    contents = [f"Count to {number}, please." * (number + 1) for number in range(8)]

    def ask(content: str) -> str:
        message = [{"role": "user", "content": content}]
        answer = _ask(client, messages=message, max_tokens=30)
        return str(answer["choices"][0]["message"]["content"])

    alone = [ask(content) for content in contents]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, contents)) == alone


def test_content_in_parts_is_the_same_as_content_in_one(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "Write a "}, {"type": "text", "text": "function."}]
    document = _ask(client, messages=[{"role": "user", "content": parts}])
    assert document["choices"] == _ask(client)["choices"]


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
        "messages[1].role",
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
    "response_format": (_CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
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
    "answer too long": (_CHAT, {"max_tokens": _CONTEXT}, "messages"),
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
    answer = client.post(path, json=_chat(**fields))
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
    answer = client.post(_CHAT, json=_chat(max_tokens=_CONTEXT))
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_body_over_the_limit_is_answered_by_413_in_the_same_shape(client: httpx.Client) -> None:
    message = {"role": "user", "content": "x" * 70000}
    answer = client.post(_CHAT, json=_chat(messages=[message]))
    assert answer.status_code == 413
    assert answer.json()["error"]["message"]


def test_unknown_paths_and_methods_have_the_same_shape(client: httpx.Client) -> None:
    missing = client.get("/v1/embeddings")
    assert (missing.status_code, set(missing.json())) == (404, {"error"})
    wrong = client.get(_CHAT)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert set(wrong.json()) == {"error"}


def test_the_model_list_names_the_model_and_its_context(client: httpx.Client) -> None:
    document = client.get("/v1/models").json()
    assert document["object"] == "list"
    (one,) = document["data"]
    assert (one["id"], one["object"], one["max_model_len"]) == ("tiny", "model", _CONTEXT)
    assert client.get("/v1/models/tiny").json() == one
    assert client.get("/v1/models/agents/tiny").json() == one
    assert client.get("/v1/models/other").status_code == 404


_CLAIM = {"x-slipstream-model": "agents/tiny"}
_NAMES: dict[str, tuple[str, dict[str, str], int]] = {
    "its name": ("tiny", {}, 200),
    "its qualified name": ("agents/tiny", {}, 200),
    "another name": ("other", {}, 404),
    "another namespace": ("other/tiny", {}, 404),
    "an alias with a claim but no token": ("alias", _CLAIM, 404),
    "an alias with a wrong token": ("alias", {**_CLAIM, "x-slipstream-token": "wrong"}, 404),
    "an alias with a token but no claim": ("alias", {"x-slipstream-token": TOKEN}, 404),
    "an alias meant for another model": (
        "alias",
        {"x-slipstream-model": "agents/other", "x-slipstream-token": TOKEN},
        404,
    ),
    "an alias that the gateway resolved": ("alias", {**_CLAIM, "x-slipstream-token": TOKEN}, 200),
    "an alias with the previous token": (
        "alias",
        {**_CLAIM, "x-slipstream-token": "the-previous-key"},
        200,
    ),
}


@pytest.mark.parametrize(("name", "headers", "status"), _NAMES.values(), ids=_NAMES.keys())
def test_which_model_names_are_answered(
    client: httpx.Client, name: str, headers: dict[str, str], status: int
) -> None:
    answer = client.post(_CHAT, json=_chat(model=name), headers=headers)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["model"] == name
    else:
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["param"] == "model"


def test_the_request_id_comes_back(client: httpx.Client) -> None:
    answer = client.post(_CHAT, json=_chat(), headers={"x-request-id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/internal/v1/identity"),
        ("GET", "/internal/v1/load"),
        ("POST", "/internal/v1/drain"),
        ("GET", "/internal/v1/observations"),
    ],
)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"], ids=repr)
def test_internal_endpoints_refuse_whoever_has_no_token(
    client: httpx.Client, method: str, path: str, token: str | None
) -> None:
    headers = {} if token is None else {"x-slipstream-token": token}
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert client.get("/ready").status_code == 200


def test_a_rotated_token_is_believed_without_a_restart_and_the_dropped_one_no_more(
    client: httpx.Client, token_dir: Path
) -> None:
    def status(token: str) -> int:
        headers = {"x-slipstream-token": token}
        return client.get("/internal/v1/load", headers=headers).status_code

    assert (status(TOKEN), status("the-previous-key"), status("new")) == (200, 200, 401)
    try:
        _replace(token_dir / "previous", TOKEN)
        _replace(token_dir / "current", "new")
        assert (status("new"), status(TOKEN), status("the-previous-key")) == (200, 200, 401)
    finally:
        _replace(token_dir / "current", TOKEN)
        _replace(token_dir / "previous", "the-previous-key")


def _replace(path: Path, text: str) -> None:
    """As a mounted Secret changes: another file takes the name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def test_identity_tells_revision_layout_and_sizes(client: httpx.Client) -> None:
    answer = client.get("/internal/v1/identity", headers={"x-slipstream-token": TOKEN})
    document = answer.json()
    assert document["revision"] == "r1"
    assert document["architecture"] == "llama"
    # Two layers, two KV heads of 16, keys and values, four bytes, sixteen tokens.
    assert document["page_bytes"] == 2 * 2 * 16 * 2 * 4 * 16
    assert document["num_pages"] == 4 * 1024 * 1024 // document["page_bytes"]
    assert document["max_context"] == _CONTEXT


def test_observations_hold_counts_and_no_text_and_say_what_was_missed(
    client: httpx.Client,
) -> None:
    trusted = {"x-slipstream-token": TOKEN}
    before = client.get("/internal/v1/observations?limit=1000", headers=trusted).json()["next"]
    session = {
        **trusted,
        "x-slipstream-session": "s-1",
        "x-slipstream-track": "canary",
        "x-slipstream-model": "agents/tiny",
    }
    assert client.post(_CHAT, json=_chat(), headers=session).status_code == 200
    untrusted = {"x-slipstream-session": "s-2", "x-slipstream-track": "canary"}
    assert client.post(_CHAT, json=_chat(), headers=untrusted).status_code == 200
    query = f"/internal/v1/observations?after={before}"
    document = client.get(query, headers=trusted).json()
    first, second = document["observations"]
    assert (document["lost"], document["next"]) == (0, before + 2)
    assert (first["session"], first["track"], first["revision"]) == ("s-1", "canary", "r1")
    assert "session" not in second
    assert "track" not in second
    assert (first["output_tokens"], first["finish_reason"]) == (12, "length")
    assert (first["status"], first["streamed"], first["disconnect"]) == (200, False, False)
    assert first["ttft_ms"] > 0
    assert first["tpot_ms"] > 0
    assert "Write" not in json.dumps(document)
    for query in ("after=-1", "limit=0", "limit=1001"):
        bad = client.get(f"/internal/v1/observations?{query}", headers=trusted)
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, query.partition("=")[0])


def _metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def test_metrics_count_tokens_and_requests_under_vllms_names(client: httpx.Client) -> None:
    names = [
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_success_total",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count",
    ]
    before = [_metric(client, name) for name in names]
    usage = _ask(client)["usage"]
    after = [_metric(client, name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [12, 1, 1, 1, 1, 1, 1]
    assert usage["completion_tokens"] == 12
    text = client.get("/metrics").text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:inter_token_latency_seconds_count",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:request_time_per_output_token_seconds_count",
    ):
        assert f'{name}{{model_name="tiny"}}' in text
    for reason in ("stop", "length", "abort"):
        assert f'finished_reason="{reason}"' in text


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_frees_its_pages_at_once(
    engine: Served, client: httpx.Client, is_stream: bool
) -> None:
    aborts = 'vllm:request_success_total{finished_reason="abort"'
    before = [line for line in client.get("/metrics").text.splitlines() if line.startswith(aborts)]
    body = _chat(stream=is_stream, max_tokens=3900)
    if is_stream:
        with client.stream("POST", _CHAT, json=body) as response:
            # Kept: when the iterator goes, httpx closes the connection.
            lines = response.iter_lines()
            next(lines)
            served.wait_for(lambda: engine.load()["pages_used"] > 2, "pages in use")
    else:
        with engine.client() as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post(_CHAT, json=body, timeout=1.0)
    served.wait_for(lambda: engine.load()["outstanding"] == 0, "end of the request", 5)
    served.wait_for(lambda: engine.load()["pages_used"] == 0, "free pages", 5)
    after = [line for line in client.get("/metrics").text.splitlines() if line.startswith(aborts)]
    assert float(after[0].split()[-1]) == float(before[0].split()[-1]) + 1
    assert _ask(client)["usage"]["completion_tokens"] == 12


def test_the_serving_process_holds_no_torch(engine: Served) -> None:
    maps = Path(f"/proc/{engine.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "libtorch" in Path(f"/proc/{engine.rank_pid()}/maps").read_text()
    assert os.getpid() != engine.rank_pid()


def test_openais_own_client_streams_from_it(engine: Served) -> None:
    import openai

    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="unused") as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Write a function."}],
            temperature=0,
            max_tokens=12,
            stream=True,
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(
                model="other", messages=[{"role": "user", "content": "x"}]
            )
    with engine.client() as plain:
        assert text == _ask(plain)["choices"][0]["message"]["content"]
