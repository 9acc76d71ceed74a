"""Endpoints for the gateway, the operator and the judge; refused without the internal token."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from slipstream_api import names
from slipstream_engine.apierror import ApiError
from slipstream_engine.engine import Engine

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(engine: Engine) -> list[web.RouteDef]:
    handlers = _Internal(engine)
    return [
        web.get("/internal/v1/identity", handlers.guarded(handlers.identity)),
        web.get("/internal/v1/load", handlers.guarded(handlers.load)),
        web.post("/internal/v1/drain", handlers.guarded(handlers.drain)),
        web.get("/internal/v1/observations", handlers.guarded(handlers.observations)),
    ]


class _Internal:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def guarded(self, handler: _Handler) -> _Handler:
        async def check(request: web.Request) -> web.StreamResponse:
            tokens = self._engine.tokens
            if tokens is not None and not tokens.is_valid(request.headers.get(names.HEADER_TOKEN)):
                raise ApiError(
                    401,
                    f"{names.HEADER_TOKEN} is missing or not valid",
                    type_="authentication_error",
                    code="invalid_token",
                )
            return await handler(request)

        return check

    async def identity(self, _: web.Request) -> web.Response:
        config, loaded = self._engine.config, self._engine.loaded()
        document: dict[str, Any] = {
            "namespace": config.model.namespace,
            "model": config.model.name,
            "revision": config.revision,
            "dtype": config.dtype,
            "kernels": "reference",
            "page_tokens": config.pages.page_tokens,
        }
        if loaded is not None:
            document |= {
                "architecture": loaded.architecture,
                "max_context": loaded.max_context,
                "num_pages": loaded.num_pages,
                "page_bytes": loaded.page_bytes,
                "threads": loaded.threads,
                "load_s": round(loaded.load_s, 3),
            }
        return web.json_response(document)

    async def load(self, _: web.Request) -> web.Response:
        load = self._engine.rank.load
        return web.json_response(
            {
                "state": self._engine.current_state,
                "outstanding": self._engine.num_outstanding,
                "running": load.num_running,
                "waiting": load.num_waiting,
                "pages_used": load.num_pages_used,
                "pages": load.num_pages,
            }
        )

    async def drain(self, request: web.Request) -> web.Response:
        """Takes no new requests from now on; the ones under way go on. Cannot be undone."""
        self._engine.begin_draining()
        return await self.load(request)

    async def observations(self, request: web.Request) -> web.Response:
        text = request.query.get("after", "0")
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise ApiError(400, "after: a number, 0 or more", param="after", code="invalid_value")
        return web.json_response(self._engine.observations.after(int(text)))
