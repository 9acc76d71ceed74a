"""Endpoints for the gateway, the operator and the judge; refused without the internal token."""

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from slipstream_api import names, observation
from slipstream_engine.apierror import ApiError
from slipstream_engine.engine import Engine

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(engine: Engine) -> list[web.RouteDef]:
    handlers = _Internal(engine)
    return [
        web.get("/internal/v1/identity", handlers.guarded(handlers.identity)),
        web.get("/internal/v1/load", handlers.guarded(handlers.load)),
        web.post("/internal/v1/drain", handlers.guarded(handlers.drain)),
        web.post("/internal/v1/forget", handlers.guarded(handlers.forget)),
        web.get("/internal/v1/observations", handlers.guarded(handlers.observations)),
    ]


def is_own_host(address: str | None) -> bool:
    """Whether a peer's address can only be this host's."""
    try:
        peer = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    mapped = peer.ipv4_mapped if isinstance(peer, ipaddress.IPv6Address) else None
    return (mapped or peer).is_loopback


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
        config, serving = self._engine.config, self._engine.serving_or_none()
        document: dict[str, Any] = {
            "namespace": config.model.namespace,
            "model": config.model.name,
            "revision": config.revision,
            "dtype": config.dtype,
            "page_tokens": config.pages.page_tokens,
            "speculator": config.speculator.model_dump(mode="json", by_alias=True),
            # Null until it is known: reading a large checkpoint takes minutes.
            "checkpoint_digest": self._engine.digest(),
        }
        if serving is not None:
            loaded, namespace = serving.loaded, serving.namespace
            document |= {
                "architecture": loaded.architecture,
                "max_context": loaded.max_context,
                "num_pages": loaded.num_pages,
                "page_bytes": loaded.page_bytes,
                "threads": loaded.threads,
                "load_s": round(loaded.load_s, 3),
                "kernels": loaded.kernels,
                "kernel_bundle": namespace.kernel_bundle,
                "weights_digest": namespace.weights_digest,
                "engine_build": namespace.engine_build,
                "layout": msgspec.to_builtins(namespace.layout),
                "split": msgspec.to_builtins(namespace.split),
                "page_namespace": self._engine.root_key(None).hex(),
            }
        return web.json_response(document)

    async def load(self, _: web.Request) -> web.Response:
        load, speed = self._engine.rank.load, self._engine.pace.prefill_tokens_per_s
        document: dict[str, Any] = {
            "state": self._engine.current_state,
            "outstanding": self._engine.num_outstanding,
            "running": load.num_running,
            "waiting": load.num_waiting,
            "pages_used": load.num_pages_used,
            "pages_cached": load.num_pages_cached,
            "pages": load.num_pages,
        }
        if speed is not None:
            document["prefill_tokens_per_s"] = round(speed, 1)
        return web.json_response(document)

    def _refuse_strangers(self, request: web.Request) -> None:
        if self._engine.tokens is None and not is_own_host(request.remote):
            raise ApiError(
                403,
                "without an internal token only this host may do this",
                type_="authentication_error",
                code="not_allowed",
            )

    async def drain(self, request: web.Request) -> web.Response:
        """Takes no new requests from now on; the ones under way go on. Cannot be undone.

        Where no token could be asked for, only this host may do it.
        """
        self._refuse_strangers(request)
        self._engine.begin_draining()
        return await self.load(request)

    async def forget(self, request: web.Request) -> web.Response:
        """Nothing is drafted any more from the past answers of a tenant, whom its salt names.

        Without a salt it is everybody who has none. Raises ApiError (503) while loading.
        """
        self._refuse_strangers(request)
        self._engine.forget(request.headers.get(names.HEADER_CACHE_SALT))
        return web.json_response({"forgotten": True})

    async def observations(self, request: web.Request) -> web.Response:
        try:
            after, limit = observation.read_query(request.query)
        except ValueError as error:
            name = str(error).partition(":")[0]
            raise ApiError(400, str(error), param=name, code="invalid_value") from error
        return web.json_response(self._engine.observations.after(after, limit))
