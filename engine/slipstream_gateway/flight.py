"""One request while it lasts, and what is told of it at its end: metrics, a record, a log line."""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from http import HTTPStatus

from slipstream_api.observation import ErrorClass, Observation, Ring
from slipstream_gateway import openai
from slipstream_gateway.choice import Target
from slipstream_gateway.metrics import CLIENT_CLOSED, NONE, Metrics
from slipstream_gateway.reading import Facts, Reading
from slipstream_gateway.table import Model

log = logging.getLogger("slipstream.gateway.request")

_MS = 1000.0
_FAILURES_OF_ENGINES = frozenset(
    {
        ErrorClass.ENGINE_UNREACHABLE,
        ErrorClass.ENGINE_DROPPED,
        ErrorClass.ENGINE_TIMEOUT,
        ErrorClass.ENGINE_BROKE,
        ErrorClass.ENGINE_FAILED,
    }
)


@dataclass(slots=True, eq=False)
class Flight:
    """What is known of one request by now. `session` is the keyed hash that the engine got."""

    started_s: float
    request_id: str
    task: asyncio.Task[object]
    digest: bytes = b""
    offered_tools: frozenset[str] | None = None
    model: Model | None = None
    target: Target | None = None
    session: str | None = None
    status: int = 0
    attempts: int = 0
    streamed: bool = False
    reading: Reading | None = None
    error_class: ErrorClass | None = None
    # Set with the task's cancellation: the gateway ends this request, and says so to the client.
    is_cut: bool = False
    tried: set[str] = field(default_factory=set)

    @property
    def has_left(self) -> bool:
        """Whether the client went away."""
        return self.error_class is ErrorClass.CLIENT_DISCONNECT

    def fail(self, error_class: ErrorClass) -> None:
        """The request ends so, whatever status its answer began with."""
        self.error_class = error_class
        self.status = CLIENT_CLOSED if self.has_left else openai.failed(error_class).status

    def ttft_s(self) -> float | None:
        """From arrival to the first event with something generated, of a stream."""
        first_s = None if self.reading is None else self.reading.first_token_s
        return None if first_s is None else first_s - self.started_s


class Recorder:
    """Where finished requests are told."""

    def __init__(self, metrics: Metrics, ring: Ring) -> None:
        self._metrics = metrics
        self._ring = ring

    def record(self, flight: Flight) -> None:
        duration_s = time.monotonic() - flight.started_s
        model = NONE if flight.model is None else flight.model.qualified_name
        track = NONE if flight.target is None else flight.target.track.name
        ttft_s = flight.ttft_s()
        self._count(flight, model, track, duration_s, ttft_s)
        if flight.target is not None:
            self._ring.append(_observation(flight, flight.target, duration_s, ttft_s))
        log.info(
            "request",
            extra={
                "request_id": flight.request_id,
                "model": model or None,
                "track": track or None,
                "pod": None if flight.target is None else flight.target.replica.pod,
                "status": flight.status,
                "duration_s": round(duration_s, 4),
                "ttft_s": None if ttft_s is None else round(ttft_s, 4),
                "streamed": flight.streamed,
                "attempts": flight.attempts,
                "error_class": flight.error_class,
            },
        )

    def _count(
        self, flight: Flight, model: str, track: str, duration_s: float, ttft_s: float | None
    ) -> None:
        metrics = self._metrics
        metrics.count_request(model, track, flight.status)
        if flight.target is None:
            return
        metrics.duration.labels(model, track).observe(duration_s)
        if ttft_s is not None:
            metrics.ttft.labels(model, track).observe(ttft_s)
        metrics.retries.labels(model, track).inc(max(0, flight.attempts - 1))
        metrics.fallbacks.labels(model, track).inc(flight.target.fell_back)
        metrics.disconnects.labels(model, track).inc(flight.has_left)
        metrics.engine_errors.labels(model, track).inc(flight.error_class in _FAILURES_OF_ENGINES)


def refusal(status: int) -> ErrorClass | None:
    """What an engine's status says of the engine; a client's mistake says nothing."""
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return ErrorClass.ENGINE_REFUSED
    is_fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return ErrorClass.ENGINE_FAILED if is_fault else None


def _observation(
    flight: Flight, target: Target, duration_s: float, ttft_s: float | None
) -> Observation:
    reading = flight.reading
    facts = Facts() if reading is None else reading.facts()
    return Observation(
        time_unix_s=time.time(),
        disconnect=flight.has_left,
        namespace=target.model.namespace,
        model=target.model.name,
        track=target.track.name,
        revision=target.track.revision,
        session=flight.session,
        status=flight.status,
        streamed=flight.streamed,
        duration_ms=duration_s * _MS,
        ttft_ms=None if ttft_s is None else ttft_s * _MS,
        tpot_ms=_tpot_ms(reading, facts.output_tokens),
        input_tokens=facts.input_tokens,
        output_tokens=facts.output_tokens,
        cached_tokens=facts.cached_tokens,
        finish_reason=facts.finish_reason,
        tool_call_class=facts.tool_call_class,
        error_class=flight.error_class,
    )


def _tpot_ms(reading: Reading | None, output_tokens: int | None) -> float | None:
    """Mean time between two tokens of a stream; one of fewer than two has none.

    Nor has one that began with a tool call: it comes when all of it is there.
    """
    if reading is None or reading.first_token_s is None or reading.last_event_s is None:
        return None
    if reading.began_with_call or output_tokens is None or output_tokens < 2:
        return None
    return (reading.last_event_s - reading.first_token_s) / (output_tokens - 1) * _MS
