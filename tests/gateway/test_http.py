"""What HTTP clients of every kind do to a front door: odd heads, bodies and connections."""

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.gateway.support import (
    CHAT,
    WAIT_S,
    Front,
    engine,
    eventually,
    front,
    head,
    plain,
    route,
    service_slice,
)

pytestmark = pytest.mark.asyncio

BODY = json.dumps(CHAT).encode()
CLOSE = "connection: close"


async def test_who_expects_100_continue_sends_the_body_after_it() -> None:
    async with engine("a") as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(BODY, "Expect: 100-continue", CLOSE))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert a.seen == []
        writer.write(BODY)
        assert (await asyncio.wait_for(reader.read(), WAIT_S)).startswith(b"HTTP/1.1 200 ")
        assert "expect" not in a.seen[0][0]
        writer.close()


@pytest.mark.parametrize(
    ("lines", "status", "code"),
    [
        (("expect: 100-continue", "content-length: 999999999"), 413, "request_too_large"),
        (("expect: a-miracle", "content-length: 4"), 417, None),
        (("content-length: 999999999",), 413, "request_too_large"),
    ],
    ids=["too large, asked first", "another expectation", "too large"],
)
async def test_a_body_that_is_not_wanted_is_refused_before_it_is_sent(
    lines: tuple[str, ...], status: int, code: str | None
) -> None:
    async with front([route()], []) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        start = "POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
        writer.write((start + "\r\n".join(lines) + "\r\n\r\n").encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert answer.startswith(f"http/1.1 {status} ")
        assert "connection: close" in answer
        length = int(answer.partition("content-length: ")[2].split()[0])
        error = json.loads(await reader.readexactly(length))["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == code
        writer.close()
        await writer.wait_closed()


async def test_a_body_in_chunks_reaches_the_engine_whole() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(BODY), 9):
            yield BODY[begin : begin + 9]

    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.client.post(gateway.url + "/v1/chat/completions", data=pieces()) as answer,
    ):
        assert answer.status == 200
        sent, body = a.seen[0]
        assert body == BODY
        assert (sent["content-length"], "transfer-encoding" in sent) == (str(len(BODY)), False)


@pytest.mark.parametrize(
    ("packed", "encoding", "status"),
    [
        (gzip.compress(BODY), "gzip", 200),
        (zlib.compress(BODY), "deflate", 200),
        (gzip.compress(b" " * 10_000_000), "gzip", 413),
        (gzip.compress(BODY)[:-12], "gzip", 400),
        (b"not gzip at all", "gzip", 400),
        (BODY, "rot13", 200),
    ],
    ids=["gzip", "deflate", "bomb", "cut", "garbage", "unknown"],
)
async def test_a_compressed_body_is_unpacked_within_the_limit(
    packed: bytes, encoding: str, status: int
) -> None:
    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})], max_body_bytes=1 << 20) as gateway,
        gateway.client.post(
            gateway.url + "/v1/chat/completions",
            data=packed,
            headers={"content-encoding": encoding, "content-type": "application/json"},
            skip_auto_headers=["accept-encoding"],
        ) as answer,
    ):
        assert answer.status == status
        assert (await answer.json()).keys() & {"choices", "error"}
        if status == 200:
            assert a.seen[0][1] == BODY
            assert "content-encoding" not in a.seen[0][0]


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        document = json.loads(await request.read())
        await asyncio.sleep(0.1 if document["user"] == "first" else 0)
        return web.json_response({"user": document["user"]})

    async with engine("a", echo) as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        first, second = (json.dumps({**CHAT, "user": it}).encode() for it in ("first", "second"))
        received = await gateway.raw(head(first) + first + head(second, CLOSE) + second)
        assert received.count(b"HTTP/1.1 200 ") == 2
        assert received.index(b'"first"') < received.index(b'"second"')


async def test_a_client_that_offers_http2_is_answered_in_http1() -> None:
    """Java's HttpClient sends this with every first request over plain HTTP."""
    offer = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIA")
    async with engine("a") as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(BODY, *offer) + BODY)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        assert a.seen[0][1] == BODY
        assert not {"upgrade", "http2-settings"} & a.seen[0][0].keys()
        writer.close()


async def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection() -> None:
    async with engine("a") as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        old = head(BODY).replace(b"HTTP/1.1", b"HTTP/1.0")
        received = await gateway.raw(old + BODY)
        assert b" 200 " in received.split(b"\r\n")[0]
        assert b"transfer-encoding" not in received.lower()
        assert b"hello" in received


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("OPTIONS", "/v1/chat/completions", 405, "POST"),
        ("HEAD", "/v1/chat/completions", 405, "POST"),
        ("PUT", "/v1/models", 405, "GET,HEAD"),
        ("HEAD", "/v1/models", 200, None),
        ("POST", "/v1/chat/completions/", 404, None),
        ("POST", "//v1/chat/completions", 404, None),
        ("POST", "/v1/embeddings", 404, None),
        ("GET", "/v1/models/", 404, None),
    ],
)
async def test_other_methods_and_paths_are_told_so_in_openais_shape(
    method: str, path: str, status: int, allow: str | None
) -> None:
    async with (
        front([route()], []) as gateway,
        gateway.client.request(
            method, gateway.url + path, headers={"origin": "https://example.org"}
        ) as answer,
    ):
        assert answer.status == status
        assert answer.headers.get("allow") == allow
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        if method != "HEAD":
            error = (await answer.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}


async def test_a_client_that_leaves_within_its_body_is_counted_as_gone() -> None:
    async with engine("a") as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(BODY) + BODY[:5])
        await eventually(lambda: gateway.proxy.num_flights == 1)
        writer.transport.abort()
        await eventually(lambda: gateway.proxy.num_flights == 0)
        left = {"model": "", "track": "", "code": "499"}
        assert await gateway.metric("slipstream_gateway_requests_total", **left) == 1
        assert a.seen == []


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: "],
    ids=["mute", "in a head"],
)
@pytest.mark.slow
async def test_a_connection_that_asks_nothing_is_closed(sent: bytes) -> None:
    async with engine("a") as a:
        slices = [service_slice({"a": a.port})]
        async with front([route()], slices, first_request_s=0.4) as gateway:
            assert await _dribble(gateway, sent) == b""
            # One that has asked stays, however long ago that was.
            async with gateway.post(CHAT) as answer:
                assert answer.status == 200
            await asyncio.sleep(1.0)
            async with gateway.post(CHAT) as answer:
                assert answer.status == 200
                assert answer.connection is None or answer.connection.transport is not None


async def _dribble(gateway: Front, sent: bytes) -> bytes:
    """A byte now and then; what comes back until the gateway closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(sent)
    received = asyncio.create_task(reader.read())
    async with asyncio.timeout(WAIT_S):
        while not received.done():
            if sent and not writer.is_closing():
                writer.write(b"x")
            await asyncio.wait([received], timeout=0.05)
    writer.close()
    return b"" if isinstance(received.exception(), ConnectionError) else received.result()


async def test_a_request_that_takes_long_is_not_taken_for_a_silent_connection() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1.0)
        return await plain(request)

    async with engine("a", slow) as a:
        slices = [service_slice({"a": a.port})]
        async with (
            front([route()], slices, first_request_s=0.2) as gateway,
            gateway.post(CHAT) as answer,
        ):
            assert answer.status == 200


async def test_what_cannot_be_parsed_is_refused_and_not_quoted_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with front([route()], []) as gateway:
        for broken in (
            b"POST /v1/completions HTTP/1.1\r\nauthorization Bearer sk-secret\r\n\r\n",
            b"\x16\x03\x01 sk-secret\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"sk-secret" * 2000 + b"\r\n\r\n",
        ):
            assert (await gateway.raw(broken)).split(b" ")[1] == b"400"
    told = [record for record in caplog.records if record.name == "slipstream.gateway.http"]
    assert len(told) == 3
    assert "sk-secret" not in caplog.text


async def test_a_fault_of_the_gateway_is_an_openai_error_and_one_line_without_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with engine("a") as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        # Two replicas' worth of nonsense that no watch would bring: a port that is no number.
        gateway.put([route()], [service_slice({"a": "sk-secret"})])  # type: ignore[dict-item]
        async with gateway.post(CHAT) as answer:
            assert answer.status == 500
            assert (await answer.json())["error"]["code"] == "gateway_failed"
        [seen] = await gateway.observations()
        assert (seen["status"], seen["error_class"]) == (500, "gateway_failed")
    [told] = [record for record in caplog.records if record.name == "slipstream.gateway.proxy"]
    assert "upstream.py" in str(told.__dict__["at"])
    assert "sk-secret" not in caplog.text
