"""An engine as the gateway sees one (an outside system, over real sockets), and a gateway without
a cluster: its view is filled by hand."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slipstream_api.config import GatewayConfig
from slipstream_api.observation import Ring
from slipstream_gateway.cluster import Identity
from slipstream_gateway.flight import Recorder
from slipstream_gateway.metrics import Metrics
from slipstream_gateway.proxy import Proxy
from slipstream_gateway.server import Server
from slipstream_gateway.table import Endpoint, Route, ServiceSlice, TrackSpec
from slipstream_gateway.upstream import Engines
from slipstream_gateway.view import SeenRoute, Tokens, View

SCOPE = "*"
TOKEN = "token-of-agents"
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]
WAIT_S = 10.0


def event(text: str, *, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return data({"choices": [choice], **more})


def data(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def plain(request: web.Request) -> web.StreamResponse:
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    choice = {"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}
    return web.json_response({"choices": [choice], "usage": usage})


def streaming(*chunks: bytes) -> "Behaviour":
    """An engine's answer in these chunks, and its normal end."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    return answer


def breaking(*chunks: bytes) -> "Behaviour":
    """The same, and then a connection that is cut."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request)
        for chunk in chunks:
            await response.write(chunk)
        assert request.transport is not None
        request.transport.close()
        return response

    return answer


async def begin_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    return response


@dataclass
class Engine:
    """Answers by its behaviour; keeps what it was sent."""

    name: str
    behaviour: Behaviour = plain
    port: int = 0
    site: web.BaseSite | None = None
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop_listening(self) -> None:
        """What is left of a process that died."""
        assert self.site is not None
        await self.site.stop()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(({k.lower(): v for k, v in request.headers.items()}, body))
        try:
            return await self.behaviour(request)
        except asyncio.CancelledError:
            self.gone.set()
            raise


@asynccontextmanager
async def engine(
    name: str, behaviour: Behaviour = plain, *, host: str = "127.0.0.1"
) -> AsyncIterator[Engine]:
    made = Engine(name, behaviour)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", made.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    made.site = web.TCPSite(runner, host, 0)
    await made.site.start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()


def route(
    *,
    namespace: str = "agents",
    name: str = "coder",
    names: tuple[str, ...] = ("coder", "fast-coder"),
    weights: dict[str, int] | None = None,
    created_at: str = "2026-01-01T00:00:00Z",
    generation: int = 1,
    draining: frozenset[str] = frozenset(),
) -> Route:
    return Route(
        namespace=namespace,
        name=name,
        uid=f"uid-{namespace}-{name}",
        generation=generation,
        created_at=created_at,
        names=names,
        tracks=tuple(
            TrackSpec(track, f"rev-{track}", f"{name}-{track}", 8000, weight, draining)
            for track, weight in (weights or {"stable": 10_000}).items()
        ),
    )


def service_slice(
    pods: dict[str, int],
    *,
    namespace: str = "agents",
    service: str = "coder-stable",
    ready: bool = True,
) -> ServiceSlice:
    """`pods`: name -> port on this machine."""
    endpoints = tuple(Endpoint(pod, "127.0.0.1", port, ready) for pod, port in pods.items())
    return ServiceSlice(namespace, f"{service}-x", service, endpoints)


@dataclass
class Front:
    """A gateway's HTTP side, and a client of it."""

    view: View
    proxy: Proxy
    server: Server
    metrics: Metrics
    client: aiohttp.ClientSession
    url: str
    port: int

    def put(self, routes: list[Route], slices: list[ServiceSlice]) -> None:
        """What watches would have brought."""
        seen = {(it.namespace, it.name): SeenRoute(it, None) for it in routes}
        self.view.routes.replace(SCOPE, seen)
        self.view.slices.replace(SCOPE, {(it.namespace, it.name): it for it in slices})
        self.view.refresh()
        self.metrics.show(self.view.table)

    def post(self, body: Any, path: str = "/v1/chat/completions", **more: Any) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        return self.client.post(self.url + path, data=io.BytesIO(data), headers=headers, **more)

    async def raw(self, *sent: bytes) -> bytes:
        """What a connection of its own brings for these bytes until the gateway closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for part in sent:
                writer.write(part)
                await writer.drain()
            return await asyncio.wait_for(reader.read(), WAIT_S)
        finally:
            writer.close()

    async def observations(self, **query: Any) -> list[dict[str, Any]]:
        async with self.client.get(
            self.url + "/internal/v1/observations",
            params=query,
            headers={"x-slipstream-token": TOKEN},
        ) as answer:
            assert answer.status == 200, await answer.text()
            found: list[dict[str, Any]] = (await answer.json())["observations"]
            return found

    async def metric(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(name, labels)
        assert value is not None, f"no {name}{labels}"
        return value


@asynccontextmanager
async def front(
    routes: list[Route] | None = None,
    slices: list[ServiceSlice] | None = None,
    *,
    token: str | None = TOKEN,
    first_request_s: float = 60.0,
    **config: Any,
) -> AsyncIterator[Front]:
    settings = GatewayConfig(schema_version=1, port=0, **{"drain_timeout_s": 2, **config})
    view = View([SCOPE])
    metrics = Metrics()
    engines = Engines(
        connect_timeout_s=settings.connect_timeout_s, read_timeout_s=settings.read_timeout_s
    )
    ring = Ring(settings.observations, "gateway-0/test")
    proxy = Proxy(settings, view, engines, metrics, Recorder(metrics, ring))
    identity = Identity("gateway-0", "slipstream")
    server = Server(settings, identity, view, proxy, metrics, ring, first_request_s=first_request_s)
    port = await server.start()
    view.tokens.replace(SCOPE, {})
    if token is not None:
        view.tokens.set(SCOPE, ("agents", "t"), Tokens("agents", token, (token, "old-token")))
    async with asyncio.timeout(30), aiohttp.ClientSession() as client:
        made = Front(view, proxy, server, metrics, client, f"http://127.0.0.1:{port}", port)
        if routes is not None:
            made.put(routes, slices or [])
        try:
            yield made
        finally:
            await server.close()
            await engines.close()


async def read_broken(answer: aiohttp.ClientResponse) -> bytes:
    """What an answer brought before its connection ended without its end."""
    received = bytearray()

    async def read_on() -> None:
        while chunk := await answer.content.readany():
            received.extend(chunk)

    with pytest.raises(aiohttp.ClientPayloadError):
        await read_on()
    return bytes(received)


def head(body: bytes, *more: str, path: str = "/v1/chat/completions") -> bytes:
    """The head of a request with this body, for connections written by hand."""
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode()


async def eventually(condition: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    """Wait until something is so; the time is only a bound."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  (a remote state)
            await asyncio.sleep(0.01)


CHAT = {"model": "coder", "messages": [{"role": "user", "content": "hi"}]}
