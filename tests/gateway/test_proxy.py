"""Requests through the gateway to engines, over real sockets."""

import asyncio
import json

import pytest
from aiohttp import web

from tests.gateway.support import (
    CHAT,
    DONE,
    TOKEN,
    WAIT_S,
    begin_stream,
    engine,
    event,
    eventually,
    front,
    plain,
    route,
    service_slice,
)

pytestmark = pytest.mark.asyncio

WHERE = {"model": "agents/coder", "track": "stable"}


def unused_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def test_an_answer_passes_through_unchanged_and_is_recorded() -> None:
    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post(CHAT) as answer,
    ):
        assert answer.status == 200
        assert (await answer.json())["choices"][0]["message"]["content"] == "hello"
        [seen] = await gateway.observations()
        assert seen["duration_s"] > 0
        assert seen["time_s"] > 1_700_000_000
        known = {k: v for k, v in seen.items() if k not in ("duration_s", "time_s", "session")}
        assert known == {
            "id": 1,
            "namespace": "agents",
            "model": "coder",
            "track": "stable",
            "revision": "rev-stable",
            "status": 200,
            "streamed": False,
            "disconnect": False,
            "input_tokens": 7,
            "output_tokens": 3,
            "cached_tokens": 5,
        }
        labels = {**WHERE, "code": "200"}
        assert await gateway.metric("slipstream_gateway_requests_total", **labels) == 1


async def test_the_bodys_bytes_reach_the_engine_as_they_were() -> None:
    body = b'{ "unknown":\t1.50, "model": "fast-coder", "messages":[], "x": "\\u00e9" }\n'
    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post(body, path="/v1/completions") as answer,
    ):
        assert answer.status == 200
        assert a.seen[0][1] == body


async def test_a_large_body_passes_whole() -> None:
    body = json.dumps({"model": "coder", "prompt": "x" * 5_000_000}).encode()
    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post(body) as answer,
    ):
        assert answer.status == 200
        assert a.seen[0][1] == body


async def test_the_first_chunk_arrives_before_the_engine_sends_the_second() -> None:
    may_go_on = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(event("one"))
        await asyncio.wait_for(may_go_on.wait(), WAIT_S)
        await response.write(event("two", usage={"prompt_tokens": 4, "completion_tokens": 2}))
        await response.write(DONE)
        return response

    async with (
        engine("a", slowly) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post({**CHAT, "stream": True}) as answer,
    ):
        first = await answer.content.readany()
        assert first == event("one")
        assert await gateway.metric("slipstream_gateway_outstanding_requests", **WHERE) == 1
        may_go_on.set()
        assert (await answer.content.read()).endswith(DONE)
        [seen] = await gateway.observations()
        assert seen["streamed"] is True
        assert 0 < seen["ttft_s"] < seen["duration_s"]
        assert (seen["input_tokens"], seen["output_tokens"]) == (4, 2)
        assert "cached_tokens" not in seen
        assert await gateway.metric("slipstream_gateway_outstanding_requests", **WHERE) == 0
        count = "slipstream_gateway_time_to_first_token_seconds_count"
        assert await gateway.metric(count, **WHERE) == 1


async def test_a_client_that_goes_away_ends_the_engines_work() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(event("one"))
        await asyncio.sleep(WAIT_S)
        return response

    async with (
        engine("a", endless) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
    ):
        answer = await gateway.post({**CHAT, "stream": True})
        assert await answer.content.readany() == event("one")
        answer.close()
        await asyncio.wait_for(a.gone.wait(), 2)
        [seen] = await gateway.observations()
        assert (seen["disconnect"], seen["error_class"]) == (True, "client_disconnect")
        labels = {**WHERE, "code": "499"}
        assert await gateway.metric("slipstream_gateway_requests_total", **labels) == 1
        assert await gateway.metric("slipstream_gateway_client_disconnects_total", **WHERE) == 1
        assert await gateway.metric("slipstream_gateway_outstanding_requests", **WHERE) == 0


async def test_a_client_that_goes_away_before_any_answer_ends_the_engines_work() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(WAIT_S)
        return web.Response()

    async with (
        engine("a", silent) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
    ):
        posting = asyncio.create_task(
            gateway.client.post(gateway.url + "/v1/completions", json=CHAT)
        )
        await eventually(lambda: bool(a.seen))
        posting.cancel()
        await asyncio.wait_for(a.gone.wait(), 2)
        assert (await gateway.observations())[0]["disconnect"] is True


async def test_a_replica_that_cannot_be_reached_is_replaced_by_another() -> None:
    async with (
        engine("b") as b,
        front([route()], [service_slice({"a": unused_port(), "b": b.port})]) as gateway,
    ):
        for turn in range(20):
            async with gateway.post(CHAT, headers={"x-slipstream-session": str(turn)}) as answer:
                assert answer.status == 200
        retries = await gateway.metric("slipstream_gateway_retries_total", **WHERE)
        assert 0 < retries < 20
        assert len(b.seen) == 20
        assert all("error_class" not in seen for seen in await gateway.observations())


async def test_without_another_replica_the_client_is_told_to_come_back() -> None:
    slices = [service_slice({"a": unused_port()})]
    async with front([route()], slices, retry_after_s=7) as gateway, gateway.post(CHAT) as answer:
        assert answer.status == 503
        assert answer.headers["retry-after"] == "7"
        assert (await answer.json())["error"]["code"] == "engine_unreachable"
        assert await gateway.metric("slipstream_gateway_engine_errors_total", **WHERE) == 1


@pytest.mark.parametrize("status", [429, 503], ids=["full", "draining"])
async def test_a_full_or_draining_replica_is_passed_over(status: int) -> None:
    async def turn_away(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "full"}}, status=status)

    async with (
        engine("a", turn_away) as a,
        engine("b") as b,
        front([route()], [service_slice({"a": a.port, "b": b.port})]) as gateway,
    ):
        for turn in range(10):
            async with gateway.post(CHAT, headers={"x-slipstream-session": str(turn)}) as answer:
                assert answer.status == 200
        assert a.seen
        b.behaviour = turn_away
        async with gateway.post(CHAT) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["message"] == "full"


async def test_a_request_that_ended_an_engine_is_not_sent_to_the_next_one() -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with (
        engine("a", die) as a,
        engine("b", die) as b,
        front([route()], [service_slice({"a": a.port, "b": b.port})]) as gateway,
        gateway.post(CHAT) as answer,
    ):
        assert answer.status == 502
        assert (await answer.json())["error"]["code"] == "engine_dropped"
        assert len(a.seen) + len(b.seen) == 1


async def test_a_connection_that_the_engine_closed_as_idle_costs_nothing() -> None:
    async def die_once(request: web.Request) -> web.StreamResponse:
        a.behaviour = plain
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
    ):
        async with gateway.post(CHAT) as answer:
            assert answer.status == 200
        a.behaviour = die_once  # the connection of the first request is used again
        async with gateway.post(CHAT) as answer:
            assert answer.status == 200
        assert len(a.seen) == 3


async def test_requests_go_where_the_least_are_outstanding() -> None:
    go_on = asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        await asyncio.wait_for(go_on.wait(), WAIT_S)
        return await plain(request)

    async with (
        engine("a", wait) as a,
        engine("b", wait) as b,
        front([route()], [service_slice({"a": a.port, "b": b.port})]) as gateway,
    ):

        async def one() -> int:
            async with gateway.post(CHAT) as answer:
                return int(answer.status)

        running = [asyncio.create_task(one()) for _ in range(10)]
        await eventually(lambda: len(a.seen) + len(b.seen) == 10)
        go_on.set()
        assert await asyncio.gather(*running) == [200] * 10
        assert len(a.seen) == len(b.seen) == 5


async def test_an_engine_learns_only_what_it_should() -> None:
    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post(
            {**CHAT, "model": "fast-coder"},
            headers={
                "authorization": "Bearer secret",
                "cookie": "c=1",
                "connection": "keep-alive, x-private",
                "x-private": "1",
                "x-slipstream-token": "forged",
                "x-slipstream-cache-salt": "forged",
                "x-slipstream-session": "alice",
                "x-request-id": "req-1",
                "accept-encoding": "gzip",
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            },
        ) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["x-request-id"] == "req-1"
        headers = a.seen[0][0]
        session = headers.pop("x-slipstream-session")
        assert headers.pop("user-agent").startswith("Python")
        assert headers == {
            "host": f"127.0.0.1:{a.port}",
            "accept": "*/*",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "content-length": str(len(a.seen[0][1])),
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "x-request-id": "req-1",
            "x-slipstream-token": TOKEN,
            "x-slipstream-model": "agents/coder",
        }
        assert "alice" not in session
        assert (await gateway.observations())[0]["session"] == session


async def test_a_client_gets_the_engines_headers_without_those_of_the_hop() -> None:
    async def answer_with_headers(request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {},
            headers={
                "connection": "x-private",
                "x-private": "1",
                "x-slipstream-internal": "1",
                "x-request-id": "the engine's own",
                "openai-processing-ms": "5",
                "server": "engine",
            },
        )

    async with (
        engine("a", answer_with_headers) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post(CHAT, headers={"x-request-id": "bad id\t"}) as answer,
    ):
        assert answer.headers["openai-processing-ms"] == "5"
        assert "x-private" not in answer.headers
        assert "x-slipstream-internal" not in answer.headers
        assert answer.headers.get("server") != "engine"
        assert answer.headers.getall("x-request-id") == [a.seen[0][0]["x-request-id"]]
        assert " " not in answer.headers["x-request-id"]
