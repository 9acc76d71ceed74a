"""The HTTP surface: paths, error shapes, request ids, probes. Decides nothing about routing."""

import asyncio
import errno
import socket
import uuid
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from slipstream_api import names
from slipstream_api.config import GatewayConfig
from slipstream_gateway import headers, openai
from slipstream_gateway.cluster import Identity
from slipstream_gateway.metrics import Metrics
from slipstream_gateway.observations import Ring
from slipstream_gateway.openai import ApiError
from slipstream_gateway.proxy import REQUEST_ID, Proxy, error_response
from slipstream_gateway.view import View

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_OBSERVATIONS_PER_PAGE = 1000


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
    ) -> None:
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
            shutdown_timeout=config.drain_timeout_s,
        )
        self.is_draining = False

    async def start(self) -> int:
        """Accept connections; the port."""
        await self._runner.setup()
        listener = _listen(self._config.port)
        port: int = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()
        return port

    async def drain(self, unready_grace_s: float) -> None:
        """Stop being ready, then accepting; end when every answer has ended, or with the drain
        timeout, which cuts the rest off."""
        self.is_draining = True
        await asyncio.sleep(unready_grace_s)
        await self.close()

    async def close(self) -> None:
        await self._runner.cleanup()

    def _application(self) -> web.Application:
        app = web.Application(
            middlewares=[self._shape], client_max_size=self._config.max_body_bytes
        )
        app.on_response_prepare.append(self._finish_headers)
        app.router.add_post("/v1/chat/completions", self._proxy.handle)
        app.router.add_post("/v1/completions", self._proxy.handle)
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
            after = int(request.query.get("after", "0"))
            limit = int(request.query.get("limit", str(_OBSERVATIONS_PER_PAGE)))
        except ValueError:
            return self._error(openai.invalid("after and limit must be whole numbers."))
        if after < 0 or not 1 <= limit <= _OBSERVATIONS_PER_PAGE:
            return self._error(
                openai.invalid(f"after must be ≥ 0, limit 1 to {_OBSERVATIONS_PER_PAGE}.")
            )
        scope = None if self._identity.namespace in allowed else allowed
        return web.json_response(self._ring.after(after, limit, scope))

    def _error(self, error: ApiError) -> web.Response:
        return error_response(error, self._config.retry_after_s)


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
