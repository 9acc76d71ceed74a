"""Spans of requests: what they hold, whose trace they continue, and that no text is among it."""

import asyncio
import gzip
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from slipstream_api import config as configs
from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine.tracing import Tracing
from tests.engine import fakerank, served, side
from tests.engine.side import CHAT, PLAIN

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]
_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
_PARENT = {"traceparent": f"00-{_TRACE}-00f067aa0ba902b7-01"}
_SECRET = "xylophone"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def _finished(tracing: Tracing, exporter: InMemorySpanExporter) -> tuple[ReadableSpan, ...]:
    tracing.stop()
    return exporter.get_finished_spans()


async def test_without_an_endpoint_nothing_is_traced() -> None:
    assert Tracing.start(side.config()) is None


async def test_a_span_names_the_operation_its_settings_and_its_counts(
    exporter: InMemorySpanExporter,
) -> None:
    tracing = Tracing(exporter, side.config())
    async with side.serving(tracing) as running, running.client() as client:
        body = side.chat(_SECRET, n=2, top_p=0.9, seed=3, max_tokens=8, stop=["never"])
        answer = await client.post(CHAT, json={**body, "temperature": 0.5}, headers=_PARENT)
        plain = {"model": "tiny", "prompt": _SECRET, "max_tokens": 3, "stream": True}
        await client.post(PLAIN, json=plain)
    chat, completion = _finished(tracing, exporter)
    assert (chat.name, chat.kind) == ("chat tiny", SpanKind.SERVER)
    assert chat.context is not None and chat.parent is not None
    assert f"{chat.context.trace_id:032x}" == _TRACE
    assert f"{chat.parent.span_id:016x}" == "00f067aa0ba902b7"
    attributes = dict(chat.attributes or {})
    waited_s = attributes.pop("gen_ai.response.time_to_first_chunk")
    assert isinstance(waited_s, float) and 0 < waited_s < 10
    usage = answer.json()["usage"]
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "slipstream",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": False,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 3,
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
    }
    assert completion.name == "text_completion tiny"
    assert completion.parent is None
    for span in (chat, completion):
        assert _SECRET not in span.to_json()


@pytest.mark.parametrize(
    ("content", "fields", "error"),
    [
        (_SECRET, {"deadline_ms": 200}, "deadline_exceeded"),
        (_SECRET, {"deadline_ms": 200, "stream": True}, "deadline_exceeded"),
        ("<fail>", {}, "RankError"),
        (_SECRET * 9000, {}, "context_length_exceeded"),
    ],
    ids=["late", "late in a stream", "rank", "too long"],
)
async def test_a_span_of_a_failed_request_names_the_error(
    exporter: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    fields: dict[str, Any],
    error: str,
) -> None:
    monkeypatch.setenv(fakerank.STEP_S, "0.02")
    tracing = Tracing(exporter, side.config())
    async with side.serving(tracing) as running, running.client() as client:
        body = side.chat(content, max_tokens=2000, ignore_eos=True, **fields)
        if "stream" in fields:
            # The stream is cut: what it says until then does not matter here.
            async with client.stream("POST", CHAT, json=body) as response:
                await side.until(lambda: running.engine.num_outstanding == 0)
                assert response.status_code == 200
        else:
            assert (await client.post(CHAT, json=body)).status_code >= 400
    (span,) = _finished(tracing, exporter)
    assert span.attributes is not None
    assert span.attributes["error.type"] == error
    assert span.status.status_code is StatusCode.ERROR
    assert not span.events
    assert _SECRET not in span.to_json()


class _Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[ExportTraceServiceRequest] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, _Collector)
        self.server.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the library's name)
        """Quiet."""


@pytest.fixture
def collector() -> Iterator[_Collector]:
    with _Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_spans_reach_a_collector_before_the_process_ends(collector: _Collector) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_address[1]}/v1/traces"
    tracing = Tracing.start(side.config(tracing={"otlpEndpoint": endpoint}))
    assert tracing is not None
    async with side.serving(tracing) as running, running.client() as client:
        await client.post(CHAT, json=side.chat(_SECRET))
    await asyncio.to_thread(tracing.stop)
    (batch,) = collector.received[0].resource_spans
    resource = {a.key: a.value.string_value for a in batch.resource.attributes}
    assert resource["service.name"] == "slipstream-engine"
    assert (resource["slipstream.model"], resource["slipstream.revision"]) == ("tiny", "r1")
    (span,) = batch.scope_spans[0].spans
    assert span.name == "chat tiny"
    assert _SECRET.encode() not in collector.received[0].SerializeToString()


async def test_a_collector_that_is_not_there_neither_hurts_nor_holds_up() -> None:
    tracing = Tracing.start(side.config(tracing={"otlpEndpoint": "http://127.0.0.1:9/v1/traces"}))
    assert tracing is not None
    async with side.serving(tracing) as running, running.client() as client:
        assert (await client.post(CHAT, json=side.chat())).status_code == 200
    async with asyncio.timeout(6):
        await asyncio.to_thread(tracing.stop)


async def test_an_address_that_is_none_is_refused_by_its_field() -> None:
    document = served.config(Path("m"), tracing={"otlpEndpoint": "collector:4318"})
    with pytest.raises(ConfigError) as caught:
        configs.parse(EngineConfig, json.dumps(document), origin="here")
    assert caught.value.field == "tracing.otlpEndpoint"


async def test_an_address_without_the_library_is_refused_by_its_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"slipstream\[tracing\]") as caught:
        Tracing.start(side.config(tracing={"otlpEndpoint": "http://collector:4318/v1/traces"}))
    assert caught.value.field == "tracing.otlpEndpoint"
