"""Answers that break off, engines and clients that fall silent."""

import asyncio
import json

import aiohttp
import openai
import pytest
from aiohttp import web

from tests.gateway.support import (
    CHAT,
    DONE,
    WAIT_S,
    Behaviour,
    Front,
    begin_stream,
    breaking,
    data,
    engine,
    event,
    front,
    read_broken,
    route,
    service_slice,
    streaming,
)

pytestmark = pytest.mark.asyncio


async def count_is(gateway: Front, code: str, errors: int) -> None:
    """One request, of this code and no other; so many failures of engines."""
    where = {"model": "agents/coder", "track": "stable"}
    counted = {
        sample.labels["code"]: sample.value
        for family in gateway.metrics.requests.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }
    assert counted == {code: 1}
    assert await gateway.metric("slipstream_gateway_engine_errors_total", **where) == errors
    assert await gateway.metric("slipstream_gateway_outstanding_requests", **where) == 0


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
        received = await read_broken(answer)
        events = [bytes(part) for part in received.split(b"\n\n") if part]
        assert events[0] + b"\n\n" == event("one")
        error = json.loads(events[-1].removeprefix(b"data: "))["error"]
        assert error["code"] == "engine_broke"
        assert DONE not in received
        assert len(a.seen) + len(b.seen) == 1, "nothing is repeated after the first byte"
        [seen] = await gateway.observations()
        assert (seen["error_class"], seen["disconnect"]) == ("engine_broke", False)
        await count_is(gateway, "502", 1)


ERROR = {"message": "CUDA error", "type": "server_error", "param": None, "code": "rank_died"}
TOLD = data({"error": ERROR})


@pytest.mark.parametrize(
    ("behaviour", "told", "error_class"),
    [
        (streaming(event("one")), "engine_broke", "engine_broke"),
        (streaming(), "engine_broke", "engine_broke"),
        (streaming(event("one", finish="stop")), "engine_broke", "engine_broke"),
        (breaking(event("one"), TOLD), "rank_died", "engine_failed"),
        (streaming(event("one"), TOLD), "rank_died", "engine_failed"),
        (streaming(event("one"), TOLD, DONE), "rank_died", "engine_failed"),
        (streaming(event("one"), data({"error": "boom"})), "engine_failed", "engine_failed"),
        (breaking(event("one"), data({"error": "boom"})), "engine_failed", "engine_failed"),
    ],
    ids=[
        "ends without DONE",
        "ends without anything",
        "ends after its finish reason",
        "error, then cut",
        "error, then the end",
        "error, then DONE",
        "error of another shape, then the end",
        "error of another shape, then cut",
    ],
)
async def test_a_stream_that_failed_is_never_a_success(
    behaviour: Behaviour, told: str, error_class: str
) -> None:
    async with (
        engine("a", behaviour) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post({**CHAT, "stream": True}) as answer,
    ):
        assert answer.status == 200
        received = await read_broken(answer)
        events = [json.loads(it.removeprefix(b"data: ")) for it in received.split(b"\n\n")
                  if it and it + b"\n\n" != DONE]  # fmt: skip
        errors = [it["error"] for it in events if isinstance(it.get("error"), dict)]
        assert [it["code"] for it in errors] == [told], "told once, in OpenAI's shape"
        assert set(errors[0]) == {"message", "type", "param", "code"}
        [seen] = await gateway.observations()
        assert (seen["error_class"], seen["status"]) == (error_class, 502)
        await count_is(gateway, "502", 1)


async def test_the_official_client_raises_for_a_stream_that_failed() -> None:
    async with (
        engine("a", breaking(event("one"))) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="k", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model="coder", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        first = await anext(stream)
        assert first.choices[0].delta.content == "one"
        with pytest.raises(openai.APIError, match="ended in the middle of its answer"):
            await anext(stream)


async def test_an_answer_that_was_whole_is_a_success_although_its_connection_breaks() -> None:
    whole = event("one", finish="stop"), DONE
    async with (
        engine("a", breaking(*whole)) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post({**CHAT, "stream": True}) as answer,
    ):
        assert await answer.content.read() == b"".join(whole)
        [seen] = await gateway.observations()
        assert (seen["status"], "error_class" in seen) == (200, False)


async def test_an_engines_error_answer_counts_against_it_and_a_clients_mistake_does_not() -> None:
    status = 500

    async def fail(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": ERROR}, status=status)

    async with (
        engine("a", fail) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
    ):
        for status in (500, 422, 418):
            async with gateway.post(CHAT) as answer:
                assert answer.status == status
                assert (await answer.json())["error"] == ERROR
        seen = await gateway.observations()
        assert [it.get("error_class") for it in seen] == ["engine_failed", None, None]
        counted = [
            await gateway.metric(
                "slipstream_gateway_requests_total", model="agents/coder", track="stable", code=code
            )
            for code in ("500", "422", "other")
        ]
        assert counted == [1, 1, 1]


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
            assert b"engine_timeout" in await read_broken(answer)
        assert a.gone.is_set()
        seen = await gateway.observations()
        assert [(it["status"], it["error_class"]) for it in seen] == [(504, "engine_timeout")] * 2


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
