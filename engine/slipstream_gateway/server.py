"""The HTTP surface: paths, error shapes, request ids, probes. Decides nothing about routing."""

import asyncio
import errno
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from slipstream_api import names, observation
from slipstream_api.config import GatewayConfig
from slipstream_api.observation import Ring
from slipstream_gateway import headers, openai
from slipstream_gateway.cluster import Identity
from slipstream_gateway.metrics import Metrics
from slipstream_gateway.openai import ApiError
from slipstream_gateway.proxy import REQUEST_ID, Proxy, error_response
from slipstream_gateway.view import View

_http_log = logging.getLogger("slipstream.gateway.http")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# How long a new connection may take to ask something. nginx's default.
_FIRST_REQUEST_S = 60.0
# Between two requests of a connection: longer than the load balancers in front keep theirs open
# (600 s is the longest of the large clouds), so that it is their end that closes it.
_KEEP_ALIVE_S = 620.0
# For what is no request to a model: a page of metrics.
_CLOSE_S = 1.0


class Server:
    """The paths of one gateway. `is_draining`: this process is on its way out."""

    def __init__(
        self,
        config: GatewayConfig,
        identity: Identity,
        view: View,
        proxy: Proxy,
        metrics: Metrics,
        ring: Ring,
        *,
        first_request_s: float = _FIRST_REQUEST_S,
    ) -> None:
        self._first_request_s = first_request_s
        self._config = config
        self._identity = identity
        self._view = view
        self._proxy = proxy
        self._metrics = metrics
        self._ring = ring
        self._runner = web.AppRunner(
            self._application(),
            # A client that goes away ends its handler, and with it the engine's work.
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE_S,
            logger=_http_log,
            shutdown_timeout=_CLOSE_S,
        )
        self._asked: set[asyncio.BaseProtocol] = set()
        self._sweep: asyncio.Task[None] | None = None
        self.is_draining = False

    async def start(self) -> int:
        """Accept connections; the port."""
        await self._runner.setup()
        self._sweep = asyncio.create_task(self._close_silent_connections())
        listener = _listen(self._config.port)
        port: int = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()
        return port

    async def drain(self, unready_grace_s: float) -> None:
        """Stop being ready, then accepting; end when every answer has ended, or with the drain
        timeout, which cuts the rest off and tells their clients."""
        self.is_draining = True
        await asyncio.sleep(unready_grace_s)
        for site in self._runner.sites:
            await site.stop()
        await self._proxy.finish(self._config.drain_timeout_s)
        await self.close()

    async def close(self) -> None:
        """Cut what is under way, and close every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
        await self._proxy.finish(0.0)
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        app = web.Application(
            middlewares=[self._shape], client_max_size=self._config.max_body_bytes
        )
        app.on_response_prepare.append(self._finish_headers)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self._proxy.handle, expect_handler=_leave_to_proxy)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._expose_metrics)
        app.router.add_get("/internal/v1/observations", self._observations)
        return app

    @web.middleware
    async def _shape(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Every request has an id, every error the shape that clients parse."""
        self._asked.add(request.protocol)
        sent = request.headers.get(names.HEADER_REQUEST_ID, "")
        request[REQUEST_ID] = headers.usable_request_id(sent) or uuid.uuid4().hex
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < HTTPStatus.BAD_REQUEST:
                raise
            message = f"{request.method} {request.path[:128]}: {error.reason}"
            response = self._error(ApiError(error.status, message, "invalid_request_error"))
            if "allow" in error.headers:
                response.headers["allow"] = error.headers["allow"]
            return response

    async def _finish_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers[names.HEADER_REQUEST_ID] = request.get(REQUEST_ID, "")
        if self.is_draining:
            # The next request of this connection belongs to another gateway.
            response.headers["connection"] = "close"
            response.force_close()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(openai.list_models(self._view.table))

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        card = openai.model_card(self._view.table, name)
        if card is None:
            return self._error(openai.model_not_found(name, self._view.table))
        return web.json_response(card)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        if self.is_draining:
            return web.json_response({"status": "draining"}, status=503)
        if not self._view.is_in_use:
            return web.json_response({"status": "listing the cluster"}, status=503)
        return web.json_response({"status": "ok", "models": len(self._view.table.models)})

    async def _expose_metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.dump(),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _observations(self, request: web.Request) -> web.Response:
        """The gateway's own namespace's token reads everything, another one its namespace."""
        presented = request.headers.get(names.HEADER_TOKEN, "")
        allowed = self._view.namespaces_of_token(presented) if presented else frozenset()
        if not allowed:
            message = "This path needs the internal token of a served namespace."
            return self._error(ApiError(401, message, "authentication_error"))
        try:
            after, limit = observation.read_query(request.query)
        except ValueError as error:
            return self._error(openai.invalid(str(error)))
        scope = None if self._identity.namespace in allowed else allowed
        return web.json_response(self._ring.after(after, limit, scope))

    async def _close_silent_connections(self) -> None:
        """End connections that never asked anything, or dribble their first request, for ever."""
        silent_since_s: dict[web.RequestHandler, float] = {}
        while True:
            await asyncio.sleep(self._first_request_s / 4)
            now_s = time.monotonic()
            server = self._runner.server
            connections = set() if server is None else set(server.connections)
            self._asked &= connections
            silent_since_s = {it: silent_since_s.get(it, now_s) for it in connections - self._asked}
            for connection, since_s in silent_since_s.items():
                if now_s - since_s >= self._first_request_s:
                    connection.force_close()

    def _error(self, error: ApiError) -> web.Response:
        return error_response(error, self._config.retry_after_s)


async def _leave_to_proxy(request: web.Request) -> None:
    """`Expect: 100-continue` is answered where it is known whether the body is wanted."""


def _without_words(record: logging.LogRecord) -> bool:
    """The HTTP server quotes what it could not parse, which may be a client's key."""
    error = record.exc_info[1] if record.exc_info else None
    record.msg, record.args = "the HTTP server: %s", (type(error).__name__,)
    record.exc_info = None
    return True


_http_log.addFilter(_without_words)


def _listen(port: int) -> socket.socket:
    """A listener for IPv4 and IPv6, or for IPv4 alone where the node has no other."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return socket.create_server(("0.0.0.0", port), backlog=1024)  # noqa: S104  (a Pod's address)
