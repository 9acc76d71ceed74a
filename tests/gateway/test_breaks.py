"""Answers that break off, engines and clients that fall silent."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from tests.gateway.support import (
    CHAT,
    DONE,
    WAIT_S,
    begin_stream,
    engine,
    event,
    front,
    route,
    service_slice,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("torn", [False, True], ids=["between events", "inside an event"])
async def test_a_stream_that_breaks_ends_with_an_error_event_and_no_normal_end(torn: bool) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(event("one") + (b'data: {"cho' if torn else b""))
        assert request.transport is not None
        request.transport.close()
        return response

    async with (
        engine("a", break_off) as a,
        engine("b", break_off) as b,
        front([route()], [service_slice({"a": a.port, "b": b.port})]) as gateway,
        gateway.post({**CHAT, "stream": True}) as answer,
    ):
        received = bytearray()

        async def read_on() -> None:
            while chunk := await answer.content.readany():
                received.extend(chunk)

        with pytest.raises(aiohttp.ClientPayloadError):
            await read_on()
        events = [bytes(part) for part in received.split(b"\n\n") if part]
        assert events[0] + b"\n\n" == event("one")
        error = json.loads(events[-1].removeprefix(b"data: "))["error"]
        assert error["code"] == "engine_broke"
        assert DONE not in received
        assert len(a.seen) + len(b.seen) == 1, "nothing is repeated after the first byte"
        [seen] = await gateway.observations()
        assert (seen["error_class"], seen["disconnect"]) == ("engine_broke", False)


async def test_a_document_that_breaks_off_is_no_whole_answer() -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.content_length = 100
        await response.prepare(request)
        await response.write(b'{"choices": ')
        assert request.transport is not None
        request.transport.close()
        return response

    async with (
        engine("a", break_off) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post(CHAT) as answer,
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_silent_engine_is_given_up() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(WAIT_S)
        return web.Response()

    async def stalls(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(event("one"))
        await asyncio.sleep(WAIT_S)
        return response

    async with (
        engine("a", silent) as a,
        front([route()], [service_slice({"a": a.port})], read_timeout_s=1) as gateway,
    ):
        async with gateway.post(CHAT) as answer:
            assert answer.status == 504
        a.behaviour = stalls
        async with gateway.post({**CHAT, "stream": True}) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        assert a.gone.is_set()


async def test_a_client_that_reads_nothing_is_given_up() -> None:
    async def pour(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        while True:
            await response.write(event("x" * 60_000))

    async with (
        engine("a", pour) as a,
        front([route()], [service_slice({"a": a.port})], read_timeout_s=1) as gateway,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        body = json.dumps(CHAT).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await asyncio.wait_for(a.gone.wait(), WAIT_S)
        writer.close()
        assert (await gateway.observations())[0]["disconnect"] is True
