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
# What proxies count for a client that went away; never sent to anybody.
CLIENT_CLOSED = 499
# Every status that a request can come to, of this gateway and of its engines; what else an engine
# answers is counted as one of `other`, so that it cannot make up labels.
_CODES: tuple[str, ...] = (
    "200",
    "400",
    "401",
    "403",
    "404",
    "408",
    "413",
    "417",
    "422",
    "429",
    "499",
)
_CODES += ("500", "501", "502", "503", "504", "other")
# Those of requests without a model, and of those whose model had no replica for them.
_CODES_WITHOUT_MODEL = ("400", "404", "408", "413", "417", "499", "500", "503")
_CODES_WITHOUT_TRACK = ("499", "500", "503")
_KINDS = ("ModelRoute", "EndpointSlice", "Secret")
_OPERATIONS = (
    *(f"{verb} {kind}" for verb in ("watch", "read") for kind in _KINDS),
    "renew the Lease",
    "delete the Lease",
    "acknowledge",
    "withdraw",
)
_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        where = ("model", "track")
        registry = self.registry
        self.requests = Counter(
            "slipstream_gateway_requests",
            "Finished requests by model, track and what they came to: a status code, 499 where the"
            " client went away, 502 to 504 also where an answer broke off.",
            (*where, "code"),
            registry=registry,
        )
        self.ttft = Histogram(
            "slipstream_gateway_time_to_first_token_seconds",
            "From a streamed request's arrival to the first event with something generated.",
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
            "Requests that an engine failed, or did not answer to the end.",
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
        # These keep what they counted while the model lives: a track comes back with a rollout.
        self._of_tracks: tuple[Counter | Gauge | Histogram, ...] = (
            self.ttft,
            self.duration,
            self.outstanding,
            self.retries,
            self.fallbacks,
            self.disconnects,
            self.engine_errors,
        )
        self._contacts = _Contacts()
        registry.register(self._contacts)
        for operation in _OPERATIONS:
            self.cluster_errors.labels(operation)
        for code in _CODES_WITHOUT_MODEL:
            self.requests.labels(NONE, NONE, code)
        self._shown: set[tuple[str, str]] = set()
        # Also those that a late request of a deleted model brought back.
        self._labelled: set[str] = set()

    def count_request(self, model: str, track: str, status: int) -> None:
        """One finished request; `track` is NONE where no replica was chosen, `model` where none
        was found."""
        code = str(status)
        self.requests.labels(model, track, code if code in _CODES else "other").inc()
        if model != NONE:
            self._labelled.add(model)

    def note_contact(self, kind: str) -> None:
        """The API server said something about this kind."""
        self._contacts.last_s[kind] = time.monotonic()

    def show(self, table: RoutingTable) -> None:
        """Bring the gauges to a new table; a model's metrics start as 0 and end with it."""
        pairs = {
            (model.qualified_name, track.name): len(track.replicas)
            for model in table.models
            for track in model.tracks
        }
        for gone in self._shown - pairs.keys():
            self.ready_replicas.remove(*gone)
        for (model, track), num_ready in pairs.items():
            self.ready_replicas.labels(model, track).set(num_ready)
            for code in _CODES:
                self.requests.labels(model, track, code)
            for metric in self._of_tracks:
                metric.labels(model, track)
        models = {model.qualified_name for model in table.models}
        for model in models:
            for code in _CODES_WITHOUT_TRACK:
                self.requests.labels(model, NONE, code)
        for gone_model in self._labelled - models:
            for each in (self.requests, *self._of_tracks):
                each.remove_by_labels({"model": gone_model})
        self._labelled = set(models)
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
