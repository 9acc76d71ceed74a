"""Streams: server-sent events, their order, and what each of them must hold."""

import json
from typing import Any

import httpx
import pytest

from tests.engine.conformance import asking
from tests.engine.conformance.asking import CHAT, ENDPOINTS, PLAIN

_BOTH = pytest.mark.parametrize("path", ENDPOINTS.values(), ids=ENDPOINTS)


@_BOTH
def test_every_event_is_a_data_line_and_an_empty_line_and_the_last_is_done(
    client: httpx.Client, path: str
) -> None:
    with client.stream("POST", path, json=asking.body(path, stream=True)) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        raw = response.read().decode()
    events = raw.split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    for event in events[:-2]:
        assert event.startswith("data: ")
        assert "\n" not in event
        json.loads(event.removeprefix("data: "))


def test_the_first_delta_of_a_chat_carries_the_role_and_no_other_does(
    client: httpx.Client,
) -> None:
    deltas = [c["choices"][0]["delta"] for c in asking.chunks(client, CHAT)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(set(delta) <= {"content"} for delta in deltas[1:])
    assert deltas[-1] == {}


@_BOTH
def test_id_created_model_and_object_are_equal_in_all_chunks(
    client: httpx.Client, path: str
) -> None:
    options = {"include_usage": True}
    heads = {
        (c["id"], c["created"], c["model"], c["object"])
        for c in asking.chunks(client, path, stream_options=options)
    }
    assert len(heads) == 1
    ((id_, created, model, kind),) = heads
    assert isinstance(id_, str) and id_
    assert isinstance(created, int)
    assert model == "tiny"
    assert kind == {CHAT: "chat.completion.chunk", PLAIN: "text_completion"}[path]


@_BOTH
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"stop": ["e"]}, {"max_tokens": 1}], ids=str)
def test_finish_reason_is_null_until_one_terminal_chunk_of_each_choice(
    client: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    """vllm PR#19662: the key was missing; Rapid-MLX PR#433: two terminal chunks."""
    choices = [c["choices"][0] for c in asking.chunks(client, path, **fields)]
    assert all("finish_reason" in choice for choice in choices)
    for index in range(fields.get("n", 1)):
        reasons = [c["finish_reason"] for c in choices if c["index"] == index]
        assert set(reasons[:-1]) <= {None}
        assert reasons[-1] in ("stop", "length")


@_BOTH
@pytest.mark.parametrize(
    "fields",
    [{}, {"stop": ["e", "o"]}, {"max_tokens": 1}, {"n": 2, "seed": 5, "temperature": 1.0}],
    ids=str,
)
def test_a_stream_and_a_whole_answer_say_the_same(
    client: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    """vllm PR#25054: finish_reason differed by mode; also text and usage."""
    fields = {"max_tokens": 40, **fields}
    document = asking.whole(client, path, **fields)
    chunks = asking.chunks(client, path, stream_options={"include_usage": True}, **fields)
    assert chunks[-1]["usage"] == {
        **document["usage"],
        # The prompt is in the cache by now.
        "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"],
    }
    for choice in document["choices"]:
        own = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert asking.joined(chunks, choice["index"]) == asking.text_of(choice)


@_BOTH
def test_every_choice_has_a_whole_number_as_its_index(client: httpx.Client, path: str) -> None:
    """openai-python#2806: a missing index crashes the client."""
    for chunk in asking.chunks(client, path, n=2):
        for choice in chunk["choices"]:
            assert type(choice["index"]) is int
    for choice in asking.whole(client, path, n=2)["choices"]:
        assert type(choice["index"]) is int


@_BOTH
def test_usage_comes_once_after_the_finish_chunk_and_is_null_before(
    client: httpx.Client, path: str
) -> None:
    """vllm#7262: usage stood in every chunk."""
    chunks = asking.chunks(client, path, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


@_BOTH
@pytest.mark.parametrize("options", [..., None, {}, {"include_usage": False}], ids=str)
def test_usage_is_not_there_at_all_unless_it_is_asked_for(
    client: httpx.Client, path: str, options: Any
) -> None:
    chunks = asking.chunks(client, path, stream_options=options)
    assert all("usage" not in chunk for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


@_BOTH
def test_usage_is_exact_and_has_its_details(client: httpx.Client, path: str) -> None:
    long = "An unusual prompt, longer than one page of the cache, asked for twice. " * 3
    fields: dict[str, Any] = (
        {"messages": [{"role": "user", "content": long}]} if path == CHAT else {"prompt": long}
    )
    first, second = (asking.whole(client, path, **fields)["usage"] for _ in range(2))
    assert first["total_tokens"] == first["prompt_tokens"] + first["completion_tokens"]
    assert first["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, second)]
    assert cached[0] < 16
    assert second["prompt_tokens"] - 16 <= cached[1] < second["prompt_tokens"]


@pytest.mark.parametrize("seed", range(6))
def test_text_that_was_streamed_is_never_taken_back(client: httpx.Client, seed: int) -> None:
    """llama.cpp PR#12379: a later parse disagreed with an earlier one."""
    fields: dict[str, Any] = {
        "temperature": 1.5,
        "seed": seed,
        "max_tokens": 60,
        "stop": ["ab", "ba"],
    }
    chunks = asking.chunks(client, PLAIN, **fields)
    text = asking.text_of(asking.whole(client, PLAIN, **fields)["choices"][0])
    sent = ""
    for chunk in chunks:
        sent += asking.text_of(chunk["choices"][0])
        assert text.startswith(sent)
    assert sent == text


@_BOTH
def test_a_client_that_leaves_ends_its_request(client: httpx.Client, path: str) -> None:
    def is_idle() -> bool:
        load = client.get("/internal/v1/load").json()
        return (load["outstanding"], load["running"], load["pages_used"]) == (0, 0, 0)

    from tests.engine import served

    fields = asking.body(path, stream=True, max_tokens=900)
    with client.stream("POST", path, json=fields) as response:
        next(response.iter_raw())
    served.wait_for(is_idle, "end of the request", 5)
