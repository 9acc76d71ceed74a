"""What this gateway measures. Labels are models and tracks of the table, never a client's words.

Every metric is there from the start; those of a model come with its route.
"""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from slipstream_gateway.table import RoutingTable

# Requests that reached no model or no track.
NONE = ""
_KINDS = ("ModelRoute", "EndpointSlice", "Secret")
_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        where = ("model", "track")
        registry = self.registry
        self.requests = Counter(
            "slipstream_gateway_requests",
            "Finished requests by model, track and status code (499: the client went away).",
            (*where, "code"),
            registry=registry,
        )
        self.ttft = Histogram(
            "slipstream_gateway_time_to_first_token_seconds",
            "From a streamed request's arrival to the first byte of its answer's body.",
            where,
            buckets=_TTFT_BUCKETS_S,
            registry=registry,
        )
        self.duration = Histogram(
            "slipstream_gateway_request_duration_seconds",
            "From a request's arrival to the end of its answer.",
            where,
            buckets=_DURATION_BUCKETS_S,
            registry=registry,
        )
        self.outstanding = Gauge(
            "slipstream_gateway_outstanding_requests",
            "Requests of this gateway that an engine is answering.",
            where,
            registry=registry,
        )
        self.ready_replicas = Gauge(
            "slipstream_gateway_ready_replicas",
            "Replicas that may be sent requests.",
            where,
            registry=registry,
        )
        self.models = Gauge(
            "slipstream_gateway_models", "Models in the routing table.", registry=registry
        )
        self.retries = Counter(
            "slipstream_gateway_retries",
            "Requests that were sent a second time, before any byte of an answer.",
            where,
            registry=registry,
        )
        self.fallbacks = Counter(
            "slipstream_gateway_track_fallbacks",
            "Requests whose session's own track had no replica, by the track that answered.",
            where,
            registry=registry,
        )
        self.disconnects = Counter(
            "slipstream_gateway_client_disconnects",
            "Requests whose client went away before the end.",
            where,
            registry=registry,
        )
        self.engine_errors = Counter(
            "slipstream_gateway_engine_errors",
            "Requests that an engine did not answer to the end.",
            where,
            registry=registry,
        )
        self.acknowledgements = Counter(
            "slipstream_gateway_acknowledgements",
            "ModelRoute generations reported as taken over.",
            registry=registry,
        )
        self.cluster_errors = Counter(
            "slipstream_gateway_cluster_errors",
            "Failed conversations with the Kubernetes API.",
            ("operation",),
            registry=registry,
        )
        self._contacts = _Contacts()
        registry.register(self._contacts)
        for code in ("200", "404", "503"):
            self.requests.labels(NONE, NONE, code)
        self._shown: set[tuple[str, str]] = set()

    def note_contact(self, kind: str) -> None:
        """The API server said something about this kind."""
        self._contacts.last_s[kind] = time.monotonic()

    def show(self, table: RoutingTable) -> None:
        """Bring the gauges to a new table; a model's metrics start as 0."""
        pairs = {
            (model.qualified_name, track.name): len(track.replicas)
            for model in table.models
            for track in model.tracks
        }
        for gone in self._shown - pairs.keys():
            self.ready_replicas.remove(*gone)
        for (model, track), num_ready in pairs.items():
            self.ready_replicas.labels(model, track).set(num_ready)
            self.requests.labels(model, track, "200")
            for metric in (self.ttft, self.duration, self.outstanding):
                metric.labels(model, track)
            for counter in (self.retries, self.fallbacks, self.disconnects, self.engine_errors):
                counter.labels(model, track)
        self._shown = set(pairs)
        self.models.set(len(table.models))

    def dump(self) -> bytes:
        return generate_latest(self.registry)


class _Contacts(Collector):
    """How long the API server has been silent: computed when it is asked for."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self.last_s: dict[str, float] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "slipstream_gateway_watch_age_seconds",
            "Since the last list or event of a kind; an idle watch is renewed within minutes.",
            labels=("kind",),
        )
        now_s = time.monotonic()
        for kind in _KINDS:
            family.add_metric((kind,), now_s - self.last_s.get(kind, self._started_s))
        yield family
