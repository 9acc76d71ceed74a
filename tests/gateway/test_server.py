"""Paths, error shapes, probes and the drain."""

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web

from slipstream_api.logs import JsonFormatter
from slipstream_gateway.view import Tokens
from tests.gateway.support import (
    CHAT,
    DONE,
    SCOPE,
    TOKEN,
    WAIT_S,
    Front,
    begin_stream,
    engine,
    event,
    eventually,
    front,
    head,
    read_broken,
    route,
    service_slice,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, None, None),
        (b"", 400, None, None),
        (b"\xff\xfe", 400, None, None),
        (b"[1]", 400, None, None),
        (b"[" * 100_000, 400, None, None),
        (b'{"messages": []}', 400, None, "model"),
        (b'{"model": null}', 400, None, "model"),
        (b'{"model": 7}', 400, None, "model"),
        (b'{"model": ""}', 400, None, "model"),
        (b'{"model": "nobody"}', 404, "model_not_found", "model"),
        (b'{"model": "coder"}', 503, "model_not_ready", None),
        (b'{"model": "' + b"x" * 3000 + b'"}', 413, "request_too_large", None),
        # Read within 0.5 s or not at all: nobody else is served meanwhile.
        (b'{"a": [' + b"[]," * 600_000 + b"1]}", 413, "request_too_large", None),
        (b'{"a": [' + b'"",' * 1_100_000 + b"1]}", 413, "request_too_large", None),
        (b'{"a": [' + b"1," * 2_100_000 + b"1]}", 413, "request_too_large", None),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_what_cannot_be_forwarded_gets_an_openai_error(
    body: bytes, status: int, code: str | None, param: str | None
) -> None:
    async with (
        front([route()], [], max_body_bytes=2048 if len(body) < 4096 else 1 << 23) as gateway,
        gateway.post(body) as answer,
    ):
        assert answer.status == status
        error = (await answer.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["code"], error["param"]) == (code, param)
        assert ("retry-after" in answer.headers) == (status == 503)
        assert answer.headers["x-request-id"]


async def test_a_body_too_large_without_a_length_is_refused_too() -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 1024

    async with (
        front([route()], [], max_body_bytes=4096) as gateway,
        gateway.client.post(gateway.url + "/v1/completions", data=endless()) as answer,
    ):
        assert answer.status == 413


async def test_an_unknown_models_error_lists_at_most_ten_names() -> None:
    routes = [route(name=f"m{i:02}", names=(f"m{i:02}",)) for i in range(12)]
    async with front(routes) as gateway, gateway.post({"model": "x" * 5000}) as answer:
        message = (await answer.json())["error"]["message"]
        assert "agents/m00, agents/m01" in message
        assert "agents/m09 and 14 more" in message
        assert "agents/m10" not in message
        assert len(message) < 500


async def test_every_name_is_listed_in_openais_shape() -> None:
    routes = [route(), route(namespace="b", name="other", names=("other", "fast-coder"))]
    async with front(routes) as gateway:
        async with gateway.client.get(gateway.url + "/v1/models") as answer:
            listing = await answer.json()
        assert listing["object"] == "list"
        assert [card["id"] for card in listing["data"]] == [
            "agents/coder",
            "b/other",
            "coder",
            "fast-coder",
            "other",
        ]
        assert listing["data"][2] == {
            "id": "coder",
            "object": "model",
            "created": 1767225600,
            "owned_by": "agents",
            "root": "agents/coder",
        }
        for name, owner in (("fast-coder", "agents"), ("b/other", "b")):
            async with gateway.client.get(gateway.url + f"/v1/models/{name}") as answer:
                assert (await answer.json())["owned_by"] == owner
        async with gateway.client.get(gateway.url + "/v1/models/nobody") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/completions", 405)]
)
async def test_other_paths_and_methods_get_an_openai_error(
    method: str, path: str, status: int
) -> None:
    async with front([]) as gateway, gateway.client.request(method, gateway.url + path) as answer:
        assert answer.status == status
        assert path in (await answer.json())["error"]["message"]


async def test_ready_only_when_the_cluster_was_listed() -> None:
    async with front() as gateway:
        for path, status in (("/health", 200), ("/ready", 503)):
            async with gateway.client.get(gateway.url + path) as answer:
                assert answer.status == status
        gateway.put([], [])
        async with gateway.client.get(gateway.url + "/ready") as answer:
            assert answer.status == 200


async def test_every_metric_is_there_from_the_start() -> None:
    async with front() as gateway:
        async with gateway.client.get(gateway.url + "/metrics") as answer:
            text = await answer.text()
        for name in (
            "requests_total",
            "time_to_first_token_seconds",
            "request_duration_seconds",
            "outstanding_requests",
            "ready_replicas",
            "models",
            "retries_total",
            "track_fallbacks_total",
            "client_disconnects_total",
            "engine_errors_total",
            "acknowledgements_total",
            "cluster_errors_total",
            "watch_age_seconds",
        ):
            assert f"# TYPE slipstream_gateway_{name} " in text
        gateway.put([route()], [])
        where = {"model": "agents/coder", "track": "stable"}
        for name in ("outstanding_requests", "retries_total", "ready_replicas"):
            assert await gateway.metric(f"slipstream_gateway_{name}", **where) == 0
        for operation in ("watch ModelRoute", "read Secret", "renew the Lease", "acknowledge"):
            errors = "slipstream_gateway_cluster_errors_total"
            assert await gateway.metric(errors, operation=operation) == 0
        gateway.put([], [])
        async with gateway.client.get(gateway.url + "/metrics") as answer:
            assert 'ready_replicas{model="agents/coder"' not in await answer.text()


def codes(gateway: Front, model: str, track: str) -> set[str]:
    """The codes that are counted for a model and a track."""
    return {
        sample.labels["code"]
        for family in gateway.metrics.requests.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
        and (sample.labels["model"], sample.labels["track"]) == (model, track)
    }


async def test_every_status_is_counted_from_the_start_and_no_engine_makes_one_up() -> None:
    status = 200

    async def answer_so(request: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=status)

    async with (
        engine("a", answer_so) as a,
        front([route()], [service_slice({"a": a.port})]) as gateway,
    ):
        model = "agents/coder"
        before = {
            pair: codes(gateway, *pair) for pair in ((model, "stable"), (model, ""), ("", ""))
        }
        assert {"200", "400", "404", "429", "499", "500", "502", "503", "504"} <= before[
            model, "stable"
        ]
        assert {"499", "500", "503"} <= before[model, ""]
        assert {"400", "404", "408", "413", "417", "499", "500", "503"} <= before["", ""]
        for status in (200, 201, 299, 400, 418, 429, 451, 500, 503, 507, 599):
            async with gateway.post(CHAT) as answer:
                assert answer.status == status
        for body in (b"{", b'{"model": "nobody"}'):
            async with gateway.post(body) as answer:
                assert answer.status in (400, 404)
        gateway.put([route()], [])
        async with gateway.post(CHAT) as answer:
            assert answer.status == 503
        for pair, known in before.items():
            assert codes(gateway, *pair) == known
        other = {"model": model, "track": "stable", "code": "other"}
        assert await gateway.metric("slipstream_gateway_requests_total", **other) == 6


async def test_a_deleted_models_metrics_go_with_it_and_a_tracks_stay() -> None:
    both = route(weights={"stable": 5_000, "canary": 5_000})
    async with (
        engine("a") as a,
        front([both], [service_slice({"a": a.port})]) as gateway,
    ):
        gateway.put([route()], [service_slice({"a": a.port})])
        assert codes(gateway, "agents/coder", "canary"), "a canary comes again"
        async with gateway.post(CHAT) as answer:
            assert answer.status == 200
        gateway.put([], [])
        # A request that outlived its model.
        gateway.metrics.count_request("agents/coder", "stable", 200)
        gateway.put([route(name="other")], [])
        async with gateway.client.get(gateway.url + "/metrics") as answer:
            text = await answer.text()
        assert 'model="agents/coder"' not in text
        assert 'model="agents/other"' in text


async def test_metrics_hold_no_word_of_a_client() -> None:
    async with engine("a") as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        for body in ({"model": "attack-1"}, {**CHAT, "user": "alice-the-tenant"}):
            async with gateway.post(body, headers={"x-slipstream-session": "alice"}) as answer:
                await answer.read()
        async with gateway.client.get(gateway.url + "/metrics") as answer:
            text = await answer.text()
        assert "attack-1" not in text
        assert "alice" not in text


async def test_logs_hold_one_line_a_request_and_nothing_of_its_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with engine("a") as a, front([route()], [service_slice({"a": a.port})]) as gateway:
        body = {"model": "coder", "messages": [{"role": "user", "content": "my password is x"}]}
        async with gateway.post(body, headers={"authorization": "Bearer sk-1"}) as answer:
            await answer.read()
        async with gateway.post({"model": "private-name"}) as answer:
            await answer.read()
    lines = [record for record in caplog.records if record.name == "slipstream.gateway.request"]
    written = [JsonFormatter().format(record) for record in lines]
    fields = [json.loads(line) for line in written]
    assert [(it["status"], it.get("model"), it.get("pod")) for it in fields] == [
        (200, "agents/coder", "a"),
        (404, None, None),
    ]
    for secret in ("password", "sk-1", TOKEN, "private-name"):
        assert secret not in "".join(written) + caplog.text


async def test_observations_need_a_token_and_show_only_its_namespace() -> None:
    async with engine("a") as a, front() as gateway:
        routes = [route(), route(namespace="other", name="m", names=())]
        slices = [
            service_slice({"a": a.port}),
            service_slice({"b": a.port}, namespace="other", service="m-stable"),
        ]
        gateway.view.tokens.set(SCOPE, ("other", "t"), Tokens("other", "o", ("o",)))
        gateway.view.tokens.set(SCOPE, ("slipstream", "t"), Tokens("slipstream", "s", ("s",)))
        gateway.put(routes, slices)
        for model in ("coder", "other/m", "coder"):
            async with gateway.post({**CHAT, "model": model}) as answer:
                assert answer.status == 200

        async def read(token: str, **query: Any) -> Any:
            async with gateway.client.get(
                gateway.url + "/internal/v1/observations",
                headers={"x-slipstream-token": token} if token else {},
                params=query,
            ) as answer:
                return (answer.status, await answer.json())

        for wrong in ("", "x", "TOKEN"):
            assert (await read(wrong))[0] == 401
        for token, ids in ((TOKEN, [1, 3]), ("old-token", [1, 3]), ("o", [2]), ("s", [1, 2, 3])):
            status, page = await read(token)
            assert status == 200
            assert [it["id"] for it in page["observations"]] == ids
            assert page["next"] == 3
        _, page = await read("s", after=1, limit=1)
        assert ([it["id"] for it in page["observations"]], page["next"]) == ([2], 2)
        for bad in ({"after": "x"}, {"after": -1}, {"limit": 0}, {"limit": 100_000}):
            assert (await read("s", **bad))[0] == 400


async def test_a_drain_finishes_streams_and_takes_no_new_ones() -> None:
    go_on = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(event("one"))
        await asyncio.wait_for(go_on.wait(), WAIT_S)
        await response.write(DONE)
        return response

    async with (
        engine("a", slowly) as a,
        front([route()], [service_slice({"a": a.port})], drain_timeout_s=10) as gateway,
    ):
        answer = await gateway.post({**CHAT, "stream": True})
        assert await answer.content.readany() == event("one")
        draining = asyncio.create_task(gateway.server.drain(0.3))
        await eventually(lambda: gateway.server.is_draining)
        async with gateway.client.get(gateway.url + "/ready") as ready:
            assert ready.status == 503
            assert ready.headers["connection"] == "close"
        await asyncio.sleep(0.5)
        with pytest.raises(OSError, match="Cannot connect"):
            await gateway.client.get(gateway.url + "/health")
        assert not draining.done()
        go_on.set()
        assert await answer.content.read() == DONE
        await asyncio.wait_for(draining, 5)


async def test_a_drain_ends_with_its_timeout_and_tells_whom_it_cuts() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/completions":
            await asyncio.sleep(WAIT_S)
        response = await begin_stream(request)
        await response.write(event("one"))
        await asyncio.sleep(WAIT_S)
        return response

    async with (
        engine("a", endless) as a,
        front([route()], [service_slice({"a": a.port})], drain_timeout_s=1) as gateway,
    ):
        answer = await gateway.post({**CHAT, "stream": True})
        assert await answer.content.readany() == event("one")
        waiting = asyncio.create_task(gateway.post(CHAT, path="/v1/completions").__aenter__())
        await eventually(lambda: len(a.seen) == 2)
        rest = asyncio.create_task(read_broken(answer))
        begun_s = time.monotonic()
        await asyncio.wait_for(gateway.server.drain(0), 5)
        assert time.monotonic() - begun_s < 3
        told = await rest
        assert json.loads(told.removeprefix(b"data: "))["error"]["code"] == "gateway_shutdown"
        before_its_head = await waiting
        assert (before_its_head.status, before_its_head.headers["retry-after"]) == (503, "5")
        assert (await before_its_head.json())["error"]["code"] == "gateway_shutdown"
        await asyncio.wait_for(a.gone.wait(), 2)
        where = {"model": "agents/coder", "track": "stable"}
        assert await gateway.metric("slipstream_gateway_requests_total", **where, code="503") == 2
        assert await gateway.metric("slipstream_gateway_engine_errors_total", **where) == 0
        assert await gateway.metric("slipstream_gateway_client_disconnects_total", **where) == 0
        answer.close()
        before_its_head.close()


async def test_a_body_that_still_arrives_when_the_drain_begins_is_answered() -> None:
    async with (
        engine("a") as a,
        front([route()], [service_slice({"a": a.port})], drain_timeout_s=10) as gateway,
    ):
        body = json.dumps(CHAT).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head(body) + body[:10])
        await eventually(lambda: bool(gateway.proxy.num_flights))
        draining = asyncio.create_task(gateway.server.drain(0))
        await eventually(lambda: gateway.server.is_draining)
        await asyncio.sleep(0.2)
        writer.write(body[10:])
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer.lower()
        await asyncio.wait_for(draining, 5)
        writer.close()
