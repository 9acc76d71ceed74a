"""One request from arrival to its answer: read, choose, send, and once more where that is safe.

Knows no cluster. The body's bytes pass unchanged in both directions.
"""

import asyncio
import hashlib
import logging
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import cast

from aiohttp import web

from slipstream_api import names
from slipstream_api.config import GatewayConfig
from slipstream_api.jsonbounds import JsonBounds
from slipstream_api.observation import ErrorClass
from slipstream_gateway import choice, headers, openai, session, toolcalls
from slipstream_gateway.choice import NotFound, Target
from slipstream_gateway.flight import Flight, Recorder
from slipstream_gateway.metrics import Metrics
from slipstream_gateway.openai import ApiError
from slipstream_gateway.relay import relay
from slipstream_gateway.upstream import EngineError, Engines, Remedy, Unreachable
from slipstream_gateway.view import View

log = logging.getLogger("slipstream.gateway.proxy")

REQUEST_ID = web.RequestKey("request_id", str)

# How long a client may take to send its body.
_BODY_TIMEOUT_S = 120.0
# More than the longest contexts hold, and read within half a second: 31 MB of lists took ten.
_BOUNDS = JsonBounds(num_opened=500_000, num_texts=1_000_000, num_values=2_000_000)
# Draining or loading, and full: another replica may have room.
_TURNED_AWAY = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
_MAX_ATTEMPTS = 2
# How long requests that are cut may take to tell their clients.
_CUT_S = 3.0


class Proxy:
    """Forwards requests by the view's table; counts what is outstanding at each replica."""

    def __init__(
        self,
        config: GatewayConfig,
        view: View,
        engines: Engines,
        metrics: Metrics,
        recorder: Recorder,
    ) -> None:
        self._config = config
        self._view = view
        self._engines = engines
        self._metrics = metrics
        self._recorder = recorder
        self._outstanding: Counter[str] = Counter()
        self._flights: set[Flight] = set()

    @property
    def num_flights(self) -> int:
        """Requests that have no whole answer yet."""
        return len(self._flights)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        flight = Flight(
            started_s=time.monotonic(),
            request_id=request[REQUEST_ID],
            task=cast(asyncio.Task[object], asyncio.current_task()),
        )
        self._flights.add(flight)
        try:
            return await self._answer(request, flight)
        except asyncio.CancelledError:
            if request.transport is None:
                flight.fail(ErrorClass.CLIENT_DISCONNECT)
                raise
            flight.fail(ErrorClass.GATEWAY_SHUTDOWN)
            if not flight.is_cut:
                raise
            flight.task.uncancel()
            return self.refuse(flight, openai.failed(ErrorClass.GATEWAY_SHUTDOWN))
        except ConnectionError:
            flight.fail(ErrorClass.CLIENT_DISCONNECT)
            return web.Response(status=flight.status)  # to nobody
        except Exception as error:
            # Neither its words nor its locals: they may hold what the client sent.
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error(
                "a request failed",
                extra={"request_id": flight.request_id, "type": type(error).__name__, "at": where},
            )
            flight.fail(ErrorClass.GATEWAY_FAILED)
            return self.refuse(flight, openai.failed(ErrorClass.GATEWAY_FAILED))
        finally:
            self._flights.discard(flight)
            self._recorder.record(flight)

    async def finish(self, timeout_s: float) -> None:
        """Wait until no request is left; cut those that are left then, and tell their clients."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_landed()
        except TimeoutError:
            for flight in self._flights:
                flight.is_cut = True
                flight.task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CUT_S):
                    await self._all_landed()

    async def _all_landed(self) -> None:
        while self._flights:
            await asyncio.wait([flight.task for flight in self._flights])

    async def _answer(self, request: web.Request, flight: Flight) -> web.StreamResponse:
        body = await self._read(request)
        if isinstance(body, ApiError):
            return self.refuse(flight, body)
        envelope = openai.parse(body)
        if isinstance(envelope, ApiError):
            return self.refuse(flight, envelope)
        flight.digest = session.session_digest(
            request.headers.get(names.HEADER_SESSION, ""), _tenant(request), envelope.body
        )
        flight.offered_tools = toolcalls.offered(envelope.body)
        return await self._forward(request, flight, envelope.model, body)

    async def _read(self, request: web.Request) -> bytes | ApiError:
        limit_bytes = self._config.max_body_bytes
        if (request.content_length or 0) > limit_bytes:
            return openai.too_large(limit_bytes)
        expected = request.headers.get("expect")
        if expected is not None:
            if expected.lower() != "100-continue":
                return ApiError(417, "Only 100-continue may be expected.", "invalid_request_error")
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # nothing of the answer itself
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                body = await request.read()
            excess = _BOUNDS.excess(body)
            return body if excess is None else openai.too_many(excess)
        except web.HTTPRequestEntityTooLarge:
            return openai.too_large(limit_bytes)
        except TimeoutError:
            message = f"The body did not arrive within {_BODY_TIMEOUT_S:.0f} seconds."
            return ApiError(408, message, "invalid_request_error", code="request_timeout")
        except web.RequestPayloadError:
            return openai.invalid("The body could not be read: its length or encoding is wrong.")

    async def _forward(
        self, request: web.Request, flight: Flight, name: str, body: bytes
    ) -> web.StreamResponse:
        failure: ApiError | None = None
        again: Target | None = None  # its engine may have closed a connection as idle
        while True:
            target = again or self._choose(flight, name)
            if isinstance(target, NotFound):
                return self.refuse(flight, openai.model_not_found(name, self._view.table))
            flight.model = target.model
            if not isinstance(target, Target):
                return self.refuse(flight, failure or openai.nothing_ready(target.model))
            token = self._view.token(target.model.namespace)
            if token is None:
                return self.refuse(flight, openai.no_token(target.model.namespace))
            self._send_off(flight, target, token)
            with self._counted(target):
                try:
                    upstream = await self._engines.post(
                        target.replica,
                        request.path,
                        body,
                        _headers(request, flight, target, token),
                        is_fresh=again is not None,
                    )
                except EngineError as error:
                    # An engine that ended a connection and takes no other one is gone.
                    is_gone = again is not None and isinstance(error, Unreachable)
                    flight.error_class = ErrorClass.ENGINE_DROPPED if is_gone else error.error_class
                    failure = openai.failed(flight.error_class)
                    if error.remedy is Remedy.NONE or flight.attempts == _MAX_ATTEMPTS:
                        return self.refuse(flight, failure)
                    again = target if error.remedy is Remedy.SAME_AGAIN else None
                    if again is None:
                        flight.tried.add(choice.replica_key(target.model, target.replica))
                    continue
                try:
                    if upstream.status in _TURNED_AWAY and self._can_move(flight, target, name):
                        again = None
                        continue
                    return await relay(
                        request,
                        flight,
                        upstream,
                        write_timeout_s=self._config.read_timeout_s,
                        retry_after_s=self._config.retry_after_s,
                    )
                finally:
                    # What was read to its end is back in the pool already; the rest is cut, so
                    # that the engine stops computing for nobody.
                    upstream.close()

    def _choose(self, flight: Flight, name: str) -> choice.Resolution:
        return choice.resolve(
            self._view.table,
            name,
            flight.digest,
            self._outstanding,
            excluded=frozenset(flight.tried),
        )

    def _can_move(self, flight: Flight, target: Target, name: str) -> bool:
        """Whether another replica may take what this one, full or draining, turned away."""
        if flight.attempts >= _MAX_ATTEMPTS:
            return False
        flight.tried.add(choice.replica_key(target.model, target.replica))
        return isinstance(self._choose(flight, name), Target)

    def _send_off(self, flight: Flight, target: Target, token: str) -> None:
        flight.target = target
        flight.attempts += 1
        # Equal in all gateways and engines of a namespace until its token is rotated.
        key = hashlib.sha256(token.encode()).digest()
        flight.session = session.keyed_hash(flight.digest, key)

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

    def refuse(self, flight: Flight, error: ApiError) -> web.Response:
        flight.status = error.status
        return error_response(error, self._config.retry_after_s)


def _tenant(request: web.Request) -> str:
    """Whoever has the credential; empty where there is none."""
    return request.headers.get("authorization", "")


def _headers(request: web.Request, flight: Flight, target: Target, token: str) -> dict[str, str]:
    return headers.to_engine(
        request.headers,
        token=token,
        model=target.model.qualified_name,
        track=target.track.name,
        session=flight.session or "",
        cache_salt=session.cache_salt(_tenant(request)),
        request_id=flight.request_id,
    )


def error_response(error: ApiError, retry_after_s: int) -> web.Response:
    """An error as OpenAI's clients read it; with 503, when to come back."""
    response = web.Response(status=error.status, body=error.dump(), content_type="application/json")
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["retry-after"] = str(retry_after_s)
    if error.status in (
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.EXPECTATION_FAILED,
    ):
        response.force_close()  # the rest of the body is not worth reading
    return response
