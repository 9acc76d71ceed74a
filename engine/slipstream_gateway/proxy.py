"""One request from arrival to the last byte: choose, forward, stream, and say how it ended.

Knows no cluster. The body's bytes pass unchanged in both directions, chunk by chunk.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp
from aiohttp import web

from slipstream_api import names
from slipstream_api.config import GatewayConfig
from slipstream_gateway import choice, headers, openai, session
from slipstream_gateway.choice import NotFound, NothingReady, Target
from slipstream_gateway.metrics import NONE, Metrics
from slipstream_gateway.observations import Observation, Ring, Usage
from slipstream_gateway.openai import ApiError
from slipstream_gateway.table import Model
from slipstream_gateway.tail import Tail
from slipstream_gateway.upstream import EngineError, Engines, Unreachable
from slipstream_gateway.view import View

log = logging.getLogger("slipstream.gateway.request")

REQUEST_ID = web.RequestKey("request_id", str)

# How long a client may take to send its body.
_BODY_TIMEOUT_S = 120.0
# Draining or loading, and full: another replica may have room.
_TURNED_AWAY = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
_MAX_ATTEMPTS = 2
# What proxies log for a client that went away; never sent to anybody.
_CLIENT_CLOSED = 499
_EVENT_STREAM = "text/event-stream"


class _ClientGone(Exception):  # noqa: N818
    """The client's connection ended before its answer did."""


class _EngineBroke(Exception):  # noqa: N818
    """The engine's connection ended, or fell silent, in the middle of an answer."""


@dataclass(slots=True)
class _Flight:
    """One request while it lasts, and what is to be recorded of it."""

    started_s: float
    request_id: str
    digest: bytes = b""
    model: Model | None = None
    target: Target | None = None
    status: int = 0
    attempts: int = 0
    streamed: bool = False
    ttft_s: float | None = None
    usage: Usage | None = None
    error_class: str | None = None
    disconnect: bool = False
    tried: set[str] = field(default_factory=set)


class Proxy:
    """Forwards requests by the view's table; counts what is outstanding at each replica."""

    def __init__(
        self, config: GatewayConfig, view: View, engines: Engines, metrics: Metrics, ring: Ring
    ) -> None:
        self._config = config
        self._view = view
        self._engines = engines
        self._metrics = metrics
        self._ring = ring
        self._outstanding: Counter[str] = Counter()
        # Where a namespace has no token yet: hashes that mean something to this process only.
        self._own_key = secrets.token_bytes(32)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        flight = _Flight(started_s=time.monotonic(), request_id=request[REQUEST_ID])
        try:
            return await self._answer(request, flight)
        except asyncio.CancelledError:
            # Without a transport it was the client; with one, this process ends its streams.
            flight.disconnect = request.transport is None
            flight.error_class = "client_disconnect" if flight.disconnect else "gateway_shutdown"
            flight.status = flight.status or _CLIENT_CLOSED
            raise
        finally:
            self._record(flight)

    async def _answer(self, request: web.Request, flight: _Flight) -> web.StreamResponse:
        body = await self._read(request)
        if isinstance(body, ApiError):
            return self.refuse(flight, body)
        envelope = openai.parse(body)
        if isinstance(envelope, ApiError):
            return self.refuse(flight, envelope)
        flight.digest = session.session_digest(
            request.headers.get(names.HEADER_SESSION, ""),
            request.headers.get("authorization", ""),
            envelope.body,
        )
        return await self._forward(request, flight, envelope.model, body)

    async def _read(self, request: web.Request) -> bytes | ApiError:
        limit_bytes = self._config.max_body_bytes
        if (request.content_length or 0) > limit_bytes:
            return openai.too_large(limit_bytes)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            return openai.too_large(limit_bytes)
        except TimeoutError:
            message = f"The body did not arrive within {_BODY_TIMEOUT_S:.0f} seconds."
            return ApiError(408, message, "invalid_request_error", code="request_timeout")
        except web.RequestPayloadError as error:
            return openai.invalid(f"The body could not be read: {error}")

    async def _forward(
        self, request: web.Request, flight: _Flight, name: str, body: bytes
    ) -> web.StreamResponse:
        failure: ApiError | None = None
        while True:
            target = self._choose(flight, name)
            if isinstance(target, NotFound):
                return self.refuse(flight, openai.model_not_found(name, self._view.table))
            flight.model = target.model
            if isinstance(target, NothingReady):
                return self.refuse(flight, failure or openai.nothing_ready(target.model))
            flight.target = target
            flight.attempts += 1
            with self._counted(target):
                try:
                    answer = await self._engines.post(
                        target.replica, request.path, body, self._headers(request, flight, target)
                    )
                except EngineError as error:
                    flight.error_class = error.error_class
                    failure = openai.engine_failed(error.error_class)
                    if isinstance(error, Unreachable):
                        flight.tried.add(choice.replica_key(target.model, target.replica))
                    if error.is_retriable and flight.attempts < _MAX_ATTEMPTS:
                        continue
                    return self.refuse(flight, failure)
                try:
                    if answer.status in _TURNED_AWAY and self._can_move(flight, target, name):
                        continue
                    flight.error_class = None
                    return await self._relay(request, flight, answer)
                finally:
                    # What was read to its end is back in the pool already; the rest is cut, so
                    # that the engine stops computing for nobody.
                    answer.close()

    def _choose(self, flight: _Flight, name: str) -> choice.Resolution:
        return choice.resolve(
            self._view.table,
            name,
            flight.digest,
            self._outstanding,
            excluded=frozenset(flight.tried),
        )

    def _can_move(self, flight: _Flight, target: Target, name: str) -> bool:
        """Whether another replica may take what this one, full or draining, turned away."""
        if flight.attempts >= _MAX_ATTEMPTS:
            return False
        flight.tried.add(choice.replica_key(target.model, target.replica))
        return isinstance(self._choose(flight, name), Target)

    @contextmanager
    def _counted(self, target: Target) -> Iterator[None]:
        key = choice.replica_key(target.model, target.replica)
        gauge = self._metrics.outstanding.labels(target.model.qualified_name, target.track.name)
        self._outstanding[key] += 1
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()
            self._outstanding[key] -= 1
            if not self._outstanding[key]:
                del self._outstanding[key]

    def _headers(self, request: web.Request, flight: _Flight, target: Target) -> dict[str, str]:
        return headers.to_engine(
            request.headers,
            token=self._view.token(target.model.namespace, time.monotonic()),
            model=target.model.qualified_name,
            session=self._session_hash(flight, target.model),
            request_id=flight.request_id,
        )

    def _session_hash(self, flight: _Flight, model: Model) -> str:
        """Equal in all gateways and engines of a namespace until its token is rotated."""
        token = self._view.token(model.namespace, time.monotonic())
        key = self._own_key if token is None else hashlib.sha256(token.encode()).digest()
        return session.keyed_hash(flight.digest, key)

    async def _relay(
        self, request: web.Request, flight: _Flight, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in headers.to_client(answer.headers.items(), request_id=flight.request_id):
            response.headers.add(name, value)
        response.content_length = answer.content_length
        flight.status = answer.status
        flight.streamed = answer.content_type == _EVENT_STREAM
        tail = Tail(is_event_stream=flight.streamed)
        if flight.streamed:
            # Understood by nginx, which otherwise collects a stream before it passes it on.
            response.headers.setdefault("x-accel-buffering", "no")
        try:
            await self._pass_on(request, response, flight, answer, tail)
        except _ClientGone:
            flight.disconnect = True
            flight.error_class = "client_disconnect"
            if request.transport is not None:
                request.transport.abort()  # it takes no more bytes, of an ending neither
        except _EngineBroke:
            flight.error_class = "engine_broke"
            await self._break_off(request, response, tail, is_event_stream=flight.streamed)
        flight.usage = tail.usage()
        return response

    async def _pass_on(
        self,
        request: web.Request,
        response: web.StreamResponse,
        flight: _Flight,
        answer: aiohttp.ClientResponse,
        tail: Tail,
    ) -> None:
        try:
            await response.prepare(request)
        except ConnectionError as error:
            raise _ClientGone from error
        while True:
            try:
                chunk = await answer.content.readany()
            except (aiohttp.ClientError, OSError) as error:  # OSError: TimeoutError is one
                raise _EngineBroke from error
            if not chunk:
                break
            if flight.ttft_s is None and flight.streamed:
                flight.ttft_s = time.monotonic() - flight.started_s
            tail.feed(chunk)
            try:
                async with asyncio.timeout(self._config.read_timeout_s):
                    await response.write(chunk)
            except (ConnectionError, TimeoutError) as error:
                raise _ClientGone from error
        try:
            await response.write_eof()
        except ConnectionError as error:
            raise _ClientGone from error

    async def _break_off(
        self,
        request: web.Request,
        response: web.StreamResponse,
        tail: Tail,
        *,
        is_event_stream: bool,
    ) -> None:
        """End an answer so that nobody takes it for a whole one: an error event where events are
        spoken, then a connection that closes before the body's own end."""
        transport = request.transport
        if transport is None:
            return
        if is_event_stream:
            event = openai.engine_failed("engine_broke").event()
            try:
                await response.write(event if tail.is_between_events else b"\n\n" + event)
            except ConnectionError:
                return
        transport.close()

    def refuse(self, flight: _Flight, error: ApiError) -> web.Response:
        flight.status = error.status
        return error_response(error, self._config.retry_after_s)

    def _record(self, flight: _Flight) -> None:
        duration_s = time.monotonic() - flight.started_s
        model = NONE if flight.model is None else flight.model.qualified_name
        target = flight.target
        track = NONE if target is None else target.track.name
        self._count(flight, model, track, duration_s)
        if target is not None:
            self._ring.append(
                Observation(
                    time_s=round(time.time(), 3),
                    namespace=target.model.namespace,
                    model=target.model.name,
                    track=track,
                    revision=target.track.revision,
                    session=self._session_hash(flight, target.model),
                    status=flight.status,
                    duration_s=round(duration_s, 6),
                    streamed=flight.streamed,
                    disconnect=flight.disconnect,
                    ttft_s=None if flight.ttft_s is None else round(flight.ttft_s, 6),
                    error_class=flight.error_class,
                    usage=flight.usage,
                )
            )
        log.info(
            "request",
            extra={
                "request_id": flight.request_id,
                "model": model or None,
                "track": track or None,
                "pod": None if target is None else target.replica.pod,
                "status": flight.status,
                "duration_s": round(duration_s, 4),
                "ttft_s": None if flight.ttft_s is None else round(flight.ttft_s, 4),
                "streamed": flight.streamed,
                "attempts": flight.attempts,
                "error_class": flight.error_class,
            },
        )

    def _count(self, flight: _Flight, model: str, track: str, duration_s: float) -> None:
        metrics = self._metrics
        code = _CLIENT_CLOSED if flight.disconnect else flight.status
        metrics.requests.labels(model, track, str(code)).inc()
        if flight.target is None:
            return
        metrics.duration.labels(model, track).observe(duration_s)
        if flight.ttft_s is not None:
            metrics.ttft.labels(model, track).observe(flight.ttft_s)
        metrics.retries.labels(model, track).inc(max(0, flight.attempts - 1))
        metrics.fallbacks.labels(model, track).inc(flight.target.fell_back)
        metrics.disconnects.labels(model, track).inc(flight.disconnect)
        has_failed = (flight.error_class or "").startswith("engine_")
        metrics.engine_errors.labels(model, track).inc(has_failed)


def error_response(error: ApiError, retry_after_s: int) -> web.Response:
    """An error as OpenAI's clients read it; with 503, when to come back."""
    response = web.Response(status=error.status, body=error.dump(), content_type="application/json")
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["retry-after"] = str(retry_after_s)
    if error.status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        response.force_close()  # the rest of the body is not worth reading
    return response
