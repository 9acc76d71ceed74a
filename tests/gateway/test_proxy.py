"""Requests through the gateway to engines, over real sockets."""

import asyncio
import gzip
import json
import re

import pytest
from aiohttp import web

from slipstream_gateway import documents
from slipstream_gateway.view import Tokens
from tests.gateway.support import (
    CHAT,
    DONE,
    SCOPE,
    TOKEN,
    WAIT_S,
    begin_stream,
    data,
    engine,
    event,
    eventually,
    front,
    plain,
    route,
    service_slice,
    streaming,
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
        assert seen["duration_ms"] > 0
        assert seen["time_unix_s"] > 1_700_000_000
        varying = ("duration_ms", "time_unix_s", "session")
        known = {key: value for key, value in seen.items() if key not in varying}
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
            "finish_reason": "stop",
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
        await asyncio.sleep(0.02)
        usage = {"prompt_tokens": 4, "completion_tokens": 3}
        await response.write(event("two", finish="length", usage=usage))
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
        assert 0 < seen["ttft_ms"] < seen["duration_ms"]
        assert (seen["input_tokens"], seen["output_tokens"]) == (4, 3)
        assert seen["finish_reason"] == "length"
        # Twenty milliseconds and more between the first and the third token.
        assert 10 <= seen["tpot_ms"] <= (seen["duration_ms"] - seen["ttft_ms"]) / 2
        assert not {"cached_tokens", "tool_call_class", "drafts", "repetition"} & seen.keys()
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
        assert seen["status"] == 499
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


async def test_a_request_that_ended_an_engine_over_a_used_connection_is_not_sent_on_either() -> (
    None
):
    async with engine("b") as b, engine("a") as a:

        async def die(request: web.Request) -> web.StreamResponse:
            await a.stop_listening()
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        slices = [service_slice({"a": a.port, "b": b.port})]
        async with front([route()], slices) as gateway:
            # A session that a answers: its connection is used again.
            turns = iter(range(100))
            while not a.seen:
                headers = {"x-slipstream-session": str(next(turns))}
                async with gateway.post(CHAT, headers=headers) as answer:
                    assert answer.status == 200
            before = len(b.seen)
            a.behaviour = die
            async with gateway.post(CHAT, headers=headers) as answer:
                assert answer.status == 502
                assert (await answer.json())["error"]["code"] == "engine_dropped"
            assert (len(a.seen), len(b.seen)) == (2, before)


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
        salt = headers.pop("x-slipstream-cache-salt")
        assert re.fullmatch("[0-9a-f]{32}", salt)
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
            "x-slipstream-track": "stable",
        }
        assert "alice" not in session
        assert (await gateway.observations())[0]["session"] == session


async def test_tenants_have_salts_of_their_own_and_nobody_has_none() -> None:
    async with engine("a") as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        for credential in ("Bearer one", "Bearer two", "Bearer one", None):
            headers: dict[str, str] = {} if credential is None else {"authorization": credential}
            # What a client claims itself counts for nothing.
            headers["x-slipstream-cache-salt"] = "that of somebody else"
            async with gateway.post(CHAT, headers=headers) as answer:
                assert answer.status == 200
        one, two, again, nobody = (seen[0].get("x-slipstream-cache-salt") for seen in a.seen)
        assert one == again
        assert len({one, two, nobody, "that of somebody else"}) == 4
        assert nobody is None


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


async def test_keep_alive_comments_pass_and_are_no_first_token() -> None:
    comment = b": still here\n\n"
    may_go_on = asyncio.Event()

    async def comments_first(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(comment)
        await asyncio.wait_for(may_go_on.wait(), WAIT_S)
        await response.write(event("one") + DONE)
        return response

    async with (
        engine("a", comments_first) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post({**CHAT, "stream": True}) as answer,
    ):
        assert await answer.content.readany() == comment
        await asyncio.sleep(0.1)
        may_go_on.set()
        assert await answer.content.read() == event("one") + DONE
        [seen] = await gateway.observations()
        assert 100 <= seen["ttft_ms"] <= seen["duration_ms"]


async def test_the_class_of_a_tool_call_is_recorded_and_nothing_of_its_text() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "read", "arguments": '{"path": "sec'}}
    first = data({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    last = data({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 30}})
    async with (
        engine("a", streaming(first, event("", finish="tool_calls"), last, DONE)) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
    ):
        tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]
        async with gateway.post({**CHAT, "stream": True, "tools": tools}) as answer:
            await answer.read()
        [seen] = await gateway.observations()
        assert (seen["tool_call_class"], seen["output_tokens"]) == ("invalid_json", 30)
        # The call came when all of it was there: nothing can be told of the time between tokens.
        assert "tpot_ms" not in seen
        assert "sec" not in json.dumps({key: it for key, it in seen.items() if key != "session"})


@pytest.mark.parametrize(
    ("sent", "got"), [({"retry-after": "17"}, "17"), ({}, "7")], ids=["its own", "none"]
)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_client_learns_when_to_come_back(
    status: int, sent: dict[str, str], got: str
) -> None:
    async def turn_away(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "full"}}, status=status, headers=sent)

    async with (
        engine("a", turn_away) as a,
        front([route()], [service_slice({"a": a.port})], retry_after_s=7) as gateway,
        gateway.post(CHAT) as answer,
    ):
        assert (answer.status, answer.headers["retry-after"]) == (status, got)
        [seen] = await gateway.observations()
        assert seen["error_class"] == "engine_refused"
        assert await gateway.metric("slipstream_gateway_engine_errors_total", **WHERE) == 0


async def test_a_compressed_answer_passes_as_it_is() -> None:
    packed = gzip.compress(event("one") + DONE)

    async def compressed(request: web.Request) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
        return web.Response(body=packed, headers=headers)

    async with (
        engine("a", compressed) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
        gateway.post({**CHAT, "stream": True}) as answer,
    ):
        assert answer.headers["content-encoding"] == "gzip"
        assert int(answer.headers["content-length"]) == len(packed)
        assert await answer.read() == event("one") + DONE
        assert (await gateway.observations())[0]["status"] == 200


async def test_a_namespace_without_a_token_is_told_to_wait_whatever_the_name() -> None:
    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})], token=None) as gateway,
    ):
        for name in ("coder", "fast-coder", "agents/coder"):
            async with gateway.post({**CHAT, "model": name}) as answer:
                assert answer.status == 503
                assert answer.headers["retry-after"] == "5"
                error = (await answer.json())["error"]
                assert error["code"] == "internal_token_missing"
                assert "`agents`" in error["message"]
        assert a.seen == []
        gateway.view.tokens.set(SCOPE, ("agents", "t"), Tokens("agents", "late", ("late",)))
        gateway.view.refresh()
        async with gateway.post({**CHAT, "model": "fast-coder"}) as answer:
            assert answer.status == 200
        # The engines' Pods keep the files of a Secret that somebody deleted.
        gateway.view.tokens.set(SCOPE, ("agents", "t"), None)
        gateway.view.refresh()
        async with gateway.post({**CHAT, "model": "fast-coder"}) as answer:
            assert answer.status == 200
        assert [seen[0]["x-slipstream-token"] for seen in a.seen] == ["late", "late"]
        async with gateway.client.get(
            gateway.url + "/internal/v1/observations", headers={"x-slipstream-token": "late"}
        ) as answer:
            assert answer.status == 401, "nobody is let in with it"


async def test_an_engine_with_an_ipv6_address_is_reached() -> None:
    async with engine("a", host="::1") as a:
        part = documents.service_slice(
            {
                "metadata": {
                    "namespace": "agents",
                    "name": "coder-stable-v6",
                    "labels": {documents.LABEL_SERVICE: "coder-stable"},
                },
                "addressType": "IPv6",
                "ports": [{"name": "http", "port": a.port}],
                "endpoints": [{"addresses": ["::1"], "targetRef": {"name": "a"}}],
            }
        )
        async with front([route()], [part]) as gateway, gateway.post(CHAT) as answer:
            assert answer.status == 200
            assert a.seen[0][0]["host"] == f"[::1]:{a.port}"
