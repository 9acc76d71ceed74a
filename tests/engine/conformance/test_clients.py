"""The official client, sync and async, and curl; and the bare keys of every event."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.engine.conformance import asking
from tests.engine.conformance.asking import CHAT, PLAIN
from tests.engine.served import Served

pytestmark = pytest.mark.slow

_GOLDEN = Path(__file__).parent / "golden"
_MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Write a function."}]


@pytest.fixture
def official(engine: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_the_official_client_reads_whole_answers(
    official: openai.OpenAI, client: httpx.Client
) -> None:
    chat = official.chat.completions.create(
        model="tiny", messages=_MESSAGES, temperature=0, max_tokens=12, n=2, logprobs=True
    )
    expected = asking.text_of(asking.whole(client, CHAT)["choices"][0])
    assert [choice.message.content for choice in chat.choices] == [expected] * 2
    assert chat.usage is not None and chat.usage.prompt_tokens_details is not None
    assert chat.choices[0].logprobs is not None
    plain = official.completions.create(model="tiny", prompt=["a", "b"], max_tokens=3, logprobs=2)
    assert [choice.index for choice in plain.choices] == [0, 1]
    assert plain.choices[0].logprobs is not None
    assert [model.id for model in official.models.list()] == ["tiny"]


def test_the_official_client_reads_streams(official: openai.OpenAI, client: httpx.Client) -> None:
    stream = official.chat.completions.create(
        model="tiny",
        messages=_MESSAGES,
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == asking.text_of(asking.whole(client, CHAT)["choices"][0])
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12


def test_its_accumulator_puts_several_choices_together(
    official: openai.OpenAI, client: httpx.Client
) -> None:
    """It joins every string that it sees twice, so a repeated role or id would show."""
    text = asking.text_of(asking.whole(client, CHAT, max_tokens=40)["choices"][0])
    stop = next(text[i : i + 2] for i in range(10, 40) if "\ufffd" not in text[i : i + 2])
    with official.chat.completions.stream(
        model="tiny", messages=_MESSAGES, temperature=0, n=2, logprobs=True, stop=stop
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    for choice in final.choices:
        assert choice.message.role == "assistant"
        assert choice.message.content == text[: text.index(stop)]
        assert choice.finish_reason == "stop"
        assert choice.logprobs is not None and choice.logprobs.content is not None
        joined = b"".join(bytes(one.bytes or ()) for one in choice.logprobs.content)
        assert joined.decode(errors="replace").startswith(choice.message.content or "")


@pytest.mark.asyncio
async def test_the_official_async_client_asks_many_things_at_once(
    engine: Served, client: httpx.Client
) -> None:
    import asyncio

    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="unused") as official:

        async def stream(seed: int) -> str:
            chunks = await official.chat.completions.create(
                model="tiny",
                messages=_MESSAGES,
                temperature=1.0,
                seed=seed,
                max_tokens=20,
                stream=True,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        async def whole(seed: int) -> str:
            answer = await official.chat.completions.create(
                model="tiny", messages=_MESSAGES, temperature=1.0, seed=seed, max_tokens=20
            )
            return answer.choices[0].message.content or ""

        texts = await asyncio.gather(*map(stream, range(6)), *map(whole, range(6)))
    assert texts[:6] == texts[6:]
    assert len(set(texts)) == 6


_ERRORS: dict[str, tuple[dict[str, Any], type[openai.APIStatusError]]] = {
    "bad value": ({"temperature": 9}, openai.BadRequestError),
    "unknown model": ({"model": "other"}, openai.NotFoundError),
    "too long": ({"max_tokens": 5000}, openai.BadRequestError),
}


@pytest.mark.parametrize(("fields", "kind"), _ERRORS.values(), ids=_ERRORS)
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_the_official_client_raises_what_it_should(
    official: openai.OpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    is_stream: bool,
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": _MESSAGES, **fields}
    with pytest.raises(kind) as caught:
        official.chat.completions.create(**asked, stream=is_stream)
    assert caught.value.code
    assert caught.value.param in {*fields, "messages"}
    assert caught.value.request_id is None or isinstance(caught.value.request_id, str)


def test_the_official_client_gets_fields_that_only_vllm_has(official: openai.OpenAI) -> None:
    answer = official.chat.completions.create(
        model="tiny",
        messages=_MESSAGES,
        max_tokens=4,
        extra_body={"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True},
    )
    assert answer.usage is not None and answer.usage.completion_tokens == 4


def _curl(*arguments: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "60", *arguments], capture_output=True, check=True
    )
    return done.stdout.decode()


def test_curl_asks_and_streams(engine: Served, client: httpx.Client) -> None:
    expected = asking.text_of(asking.whole(client, CHAT)["choices"][0])
    send = ("-H", "Content-Type: application/json", "-d")
    whole = _curl(f"{engine.url}{CHAT}", *send, json.dumps(asking.body(CHAT)))
    assert json.loads(whole)["choices"][0]["message"]["content"] == expected
    raw = _curl("-N", f"{engine.url}{CHAT}", *send, json.dumps(asking.body(CHAT, stream=True)))
    events = raw.split("\n\n")
    assert events[-2] == "data: [DONE]"
    documents = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert asking.joined(documents) == expected
    # Without a length: what curl sends for a long body.
    chunked = _curl(
        f"{engine.url}{CHAT}",
        "-H",
        "Transfer-Encoding: chunked",
        *send,
        json.dumps(asking.body(CHAT)),
    )
    assert json.loads(chunked)["usage"]["completion_tokens"] == 12
    status = _curl("-o", "/dev/null", "-w", "%{http_code}", f"{engine.url}{CHAT}", "-d", "nonsense")
    assert status == "400"


_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {}),
    "chat_usage": (CHAT, {"stream_options": {"include_usage": True}}),
    "chat_logprobs": (CHAT, {"logprobs": True, "top_logprobs": 2}),
    "chat_choices": (CHAT, {"n": 2}),
    "plain": (PLAIN, {}),
    "plain_usage": (PLAIN, {"stream_options": {"include_usage": True}}),
    "plain_logprobs": (PLAIN, {"logprobs": 2}),
}


@pytest.mark.parametrize("name", _SHAPES)
def test_the_keys_of_every_event_are_as_they_were(
    client: httpx.Client, golden: Callable[[Path, str], None], name: str
) -> None:
    """Runs of equal events are one line: how many there are depends on the text."""
    path, fields = _SHAPES[name]
    # One character a token, so that the alternatives' names say nothing.
    fields = {**fields, "logit_bias": {"40": 100}, "max_tokens": 3}
    lines: list[str] = []
    for chunk in asking.chunks(client, path, **fields):
        line = json.dumps(asking.skeleton(chunk))
        if not lines or lines[-1] != line:
            lines.append(line)
    golden(_GOLDEN / f"{name}.jsonl", "\n".join(lines) + "\n")


@pytest.mark.parametrize("path", [CHAT, PLAIN], ids=["chat", "plain"])
def test_the_keys_of_whole_answers_are_as_they_were(
    client: httpx.Client, golden: Callable[[Path, str], None], path: str
) -> None:
    logprobs = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    lines = [
        json.dumps(asking.skeleton(asking.whole(client, path, **fields)))
        for fields in ({}, {**logprobs, "logit_bias": {"40": 100}})
    ]
    name = "chat" if path == CHAT else "plain"
    golden(_GOLDEN / f"{name}_whole.jsonl", "\n".join(lines) + "\n")
