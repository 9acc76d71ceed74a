"""Bodies that are wrong, slow or made to cost: a 4xx in OpenAI's shape, and nobody else waits."""

import asyncio
import gzip
import io
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio

from slipstream_api import logs
from slipstream_engine.bodies import BodyLimits
from tests.engine import fakerank, side
from tests.engine.side import CHAT, PLAIN, Side

_SECRET = "SECRETPROMPT"
_BODY = json.dumps(side.chat(f"hi, my {_SECRET}")).encode()


_in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Side]:
    async with side.serving() as made:
        yield made


@contextmanager
def _log() -> Iterator[io.StringIO]:
    """What would stand in the log of a process."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.JsonFormatter())
    logging.getLogger().addHandler(handler)
    try:
        yield written
    finally:
        logging.getLogger().removeHandler(handler)


def _post(*headers: str, body: bytes = _BODY) -> bytes:
    lines = "".join(f"\r\n{one}" for one in headers)
    return f"POST {CHAT} HTTP/1.1\r\nHost: x{lines}\r\n\r\n".encode() + body


_LENGTH = f"Content-Length: {len(_BODY)}"
_CHUNKED = "Transfer-Encoding: chunked"
_MALFORMED = {
    "a body longer than it says": _post("Content-Length: 20"),
    "a body without a length": _post(),
    "chunks without a length": _post(_CHUNKED),
    "a chunk longer than it says": _post(_CHUNKED, body=b"10\r\n" + _BODY + b"\r\n0\r\n\r\n"),
    "a length and chunks": _post("Content-Length: 5", _CHUNKED),
    "two lengths": _post("Content-Length: 5", "Content-Length: 6"),
    "a length that is no number": _post(f"Content-Length: {_SECRET}"),
    "a header with a space": _post(f"X-A {_SECRET}: 1", _LENGTH),
    "no HTTP": b"\x16\x03\x01\x02\x00" + _SECRET.encode() + b"\r\n\r\n",
    "a path with a space": f"GET /v1/x {_SECRET} HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "no gzip": _post("Content-Encoding: gzip", _LENGTH),
    "no deflate": _post("Content-Encoding: deflate", _LENGTH),
    "cut gzip": _post(
        "Content-Encoding: gzip", "Content-Length: 20", body=gzip.compress(_BODY)[:20]
    ),
}


@_in_one_loop
@pytest.mark.parametrize("sent", _MALFORMED.values(), ids=_MALFORMED)
async def test_what_is_no_proper_http_gets_a_4xx_in_openais_shape_and_is_not_quoted(
    running: Side, sent: bytes
) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    with _log() as log:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(10):
            received = await reader.read()
        writer.close()
    assert _SECRET not in log.getvalue()
    answers = received.split(b"HTTP/1.1 ")[1:]
    for answer in answers:
        status, body = int(answer[:3]), answer.partition(b"\r\n\r\n")[2]
        assert 400 <= status < 500, received
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert _SECRET not in error["message"]
    # The next one is answered.
    async with running.client() as client:
        assert (await client.post(CHAT, json=side.chat())).status_code == 200


@_in_one_loop
async def test_an_unexpected_error_is_logged_without_its_words(
    running: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError(_SECRET)

    monkeypatch.setattr(running.engine, "root_key", fail)
    with _log() as log:
        async with running.client() as client:
            answer = await client.post(CHAT, json=side.chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")
    (line,) = [json.loads(one) for one in log.getvalue().splitlines() if "unexpected" in one]
    assert line["type"] == "ValueError"
    assert "in fail" in line["at"]
    assert _SECRET not in log.getvalue().replace("raise ValueError(_SECRET)", "")


@_in_one_loop
async def test_a_body_that_does_not_come_is_waited_for_no_longer_than_an_answer() -> None:
    async with side.serving(limits={"maxDeadlineMs": 300, "defaultDeadlineMs": 300}) as running:
        host, port = running.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_post("Content-Length: 100000"))
        async with asyncio.timeout(10):
            received = await reader.readuntil(b"}}")
        writer.close()
        assert received.startswith(b"HTTP/1.1 408")
        error = json.loads(received.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "request_timeout"


def _chat(messages: str, **fields: str) -> bytes:
    more = "".join(f',"{name}":{value}' for name, value in fields.items())
    return f'{{"model":"tiny","messages":[{messages}]{more}}}'.encode()


def _many(one: str, size: int) -> str:
    return ",".join([one] * (size // (len(one) + 1)))


_MESSAGE = '{"role":"user","content":"x"}'
_PART = '{"type":"text","text":"x"}'


def _says(content: str) -> str:
    return f'{{"role":"user","content":{content}}}'


def _members(size: int, value: str = "1") -> str:
    return ",".join(f'"{number}":{value}' for number in range(size // 10))


_COSTLY: dict[str, Callable[[int], bytes]] = {
    "unknown lists": lambda n: _chat(_MESSAGE, foo=f"[{_many('[[1]]', n)}]"),
    "unknown numbers": lambda n: _chat(_MESSAGE, foo=f"[{_many('1', n)}]"),
    "unknown fields": lambda n: b'{"model":"tiny",' + _members(n).encode() + b"}",
    "messages": lambda n: _chat(_many(_MESSAGE, n)),
    "wrong messages": lambda n: _chat(_many('{"role":"user","conten":"x"}', n)),
    "parts": lambda n: _chat(_says(f"[{_many(_PART, n)}]")),
    "biases": lambda n: _chat(_MESSAGE, logit_bias=f"{{{_members(n)}}}"),
    "labels": lambda n: _chat(_MESSAGE, metadata=f"{{{_members(n, chr(34) * 2)}}}"),
    "nulls": lambda n: _chat(_says('"' + "\\u0000" * (n // 6) + '"')),
    "spaces": lambda n: _chat(_says('"' + " a" * (n // 2) + '"')),
    "one word": lambda n: _chat(_says('"' + "ab" * (n // 2) + '"')),
}


async def _longest_gap(task: "asyncio.Task[Any]") -> float:
    """How long the serving process's loop stood still, at most, until the task was done."""
    longest_s, latest_s = 0.0, time.monotonic()
    while not task.done():
        await asyncio.sleep(0.002)
        now_s = time.monotonic()
        longest_s, latest_s = max(longest_s, now_s - latest_s), now_s
    return longest_s


@_in_one_loop
@pytest.mark.parametrize("make", _COSTLY.values(), ids=_COSTLY)
async def test_a_costly_body_is_refused_and_nobody_waits_for_that(
    running: Side, make: Callable[[int], bytes]
) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    for size in (400_000, 1_000_000, 8_000_000):
        body = make(size)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_post(f"Content-Length: {len(body)}", body=body))
        asking = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        # Most took 0.5 s for each megabyte, in one piece; half a second is noise here.
        assert await _longest_gap(asking) < 0.8, size
        assert (await asking).split()[1] == b"400", size
        writer.close()


@pytest.mark.parametrize("max_context", [128, 8192, 131_072, 1_048_576])
def test_what_a_context_holds_is_never_too_much(max_context: int) -> None:
    limits = BodyLimits.of(max_context, 64)
    minified = json.dumps({"name": "x", "value": 1, "list": [1, 2]}, separators=(",", ":"))
    # Its 24 tokens by SmolLM2's tokeniser.
    text = minified * (max_context // 24)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": {"b": ["c"]}}}}
    honest: list[Any] = [
        {"messages": [{"role": "user", "content": text}] * 2, "tools": [tool] * 128},
        {"messages": [{"role": "user", "content": "a b c"}] * (max_context // 8)},
        {"messages": [{"role": "user", "content": "\0" * max_context}]},
        {"messages": [{"role": "user", "content": "é🙂" * max_context}]},
        {"prompt": [[123456] * max_context] * 8},
        {"prompt": [" " * 64 * max_context]},
    ]
    for document in honest:
        body = json.dumps(document).encode()
        assert limits.bounds.excess(body) is None
        assert len(body) <= limits.max_bytes


@_in_one_loop
async def test_the_largest_prompt_that_fits_is_answered(running: Side) -> None:
    tokens = [5] * (fakerank.MAX_CONTEXT - 12)
    body = {"model": "tiny", "prompt": [tokens] * 4, "max_tokens": 12, "temperature": 0}
    async with running.client() as client:
        answer = await client.post(PLAIN, json=body)
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] == 4 * len(tokens)
