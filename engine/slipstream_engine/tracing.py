"""One OpenTelemetry span a request, under the names of the GenAI conventions; off by default.

The only module that knows OpenTelemetry, which is imported when an endpoint is configured. Spans
hold settings, counts and times: no text of prompts, answers or stop strings, and no tenant.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine.answers import Answer
from slipstream_engine.apierror import ApiError
from slipstream_engine.protocol import ChatRequest, CompletionRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

# One export, retries and all; also how long the end of the process may wait for the last one.
_EXPORT_S = 2.0
_MAX_QUEUED_SPANS = 512
_Attributes = dict[str, Any]


class RequestSpan:
    """What a handler tells the span of its request; means nothing where tracing is off."""

    answer: Answer | None = None
    response_id: str | None = None


class Tracing:
    """Make it with `start`; `stop` sends what is left."""

    def __init__(self, exporter: "SpanExporter", config: EngineConfig) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create(
            {
                "service.name": "slipstream-engine",
                "service.namespace": config.model.namespace,
                "slipstream.model": config.model.name,
                "slipstream.revision": config.revision,
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=_MAX_QUEUED_SPANS)
        )
        self._tracer = self._provider.get_tracer("slipstream_engine")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def start(cls, config: EngineConfig) -> "Tracing | None":
        """None without an endpoint. Raises ConfigError where the library is not installed."""
        endpoint = config.tracing.otlp_endpoint
        if endpoint is None:
            return None
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            message = f"traces need the extra slipstream[tracing]: {error}"
            raise ConfigError(message, "tracing.otlpEndpoint") from error
        return cls(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_S), config)

    @contextmanager
    def span(
        self, headers: Mapping[str, str], document: ChatRequest | CompletionRequest
    ) -> Iterator[RequestSpan]:
        """The caller's trace (W3C `traceparent`) goes on in it."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        asked = _of_request(document)
        known = RequestSpan()
        with self._tracer.start_as_current_span(
            f"{asked['gen_ai.operation.name']} {document.model}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=asked,
            # Both would hold messages of exceptions.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield known
            except BaseException as error:
                span.set_attribute("error.type", _error_type(error))
                span.set_status(Status(StatusCode.ERROR))
                raise
            finally:
                span.set_attributes(_of_answer(known))

    def stop(self) -> None:
        """Send what is left; waits for it, a few seconds at most."""
        self._provider.shutdown()


@contextmanager
def request_span(
    tracing: Tracing | None,
    headers: Mapping[str, str],
    document: ChatRequest | CompletionRequest,
) -> Iterator[RequestSpan]:
    if tracing is None:
        yield RequestSpan()
        return
    with tracing.span(headers, document) as span:
        yield span


def _of_request(document: ChatRequest | CompletionRequest) -> _Attributes:
    is_chat = isinstance(document, ChatRequest)
    attributes = {
        "gen_ai.operation.name": "chat" if is_chat else "text_completion",
        "gen_ai.provider.name": "slipstream",
        "gen_ai.request.model": document.model,
        "gen_ai.request.stream": bool(document.stream),
        "gen_ai.request.choice.count": document.num_choices,
        "gen_ai.request.max_tokens": document.limit,
        "gen_ai.request.temperature": document.temperature,
        "gen_ai.request.top_p": document.top_p,
        "gen_ai.request.top_k": document.top_k,
        "gen_ai.request.presence_penalty": document.presence_penalty,
        "gen_ai.request.frequency_penalty": document.frequency_penalty,
        "gen_ai.request.seed": document.seed,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _of_answer(known: RequestSpan) -> _Attributes:
    attributes: _Attributes = {"gen_ai.response.id": known.response_id}
    if (answer := known.answer) is not None:
        usage = answer.usage()
        attributes |= {
            "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
            "gen_ai.usage.output_tokens": usage.num_completion_tokens,
            "gen_ai.response.finish_reasons": [
                choice.reason for choice in answer.choices if choice.reason is not None
            ],
        }
        if answer.first_s is not None:
            waited_s = answer.first_s - answer.question.origin.arrival_s
            attributes["gen_ai.response.time_to_first_chunk"] = waited_s
    return {name: value for name, value in attributes.items() if value is not None}


def _error_type(error: BaseException) -> str:
    if isinstance(error, ApiError):
        return error.code or str(error.status)
    if isinstance(error, asyncio.CancelledError | ConnectionError):
        return "client_disconnect"
    return type(error).__name__
