"""The operator's metrics, one registry per process; every series exists from the start."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from slipstream_operator import kinds

VERBS = ("create", "apply", "delete", "status")


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_s = Histogram(
            "slipstream_operator_reconcile_seconds",
            "Duration of one pass over one model.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.errors = Counter(
            "slipstream_operator_reconcile_errors",
            "Passes that failed, by cause.",
            ["cause"],
            registry=self.registry,
        )
        self.writes = Counter(
            "slipstream_operator_writes",
            "Requests that change the cluster.",
            ["verb", "kind"],
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "slipstream_operator_queue_depth",
            "Models that wait for a pass.",
            registry=self.registry,
        )
        self.leader = Gauge(
            "slipstream_operator_leader", "1 while this process may write.", registry=self.registry
        )
        self.models = Gauge(
            "slipstream_operator_models",
            "InferenceModels by their Ready condition.",
            ["ready"],
            registry=self.registry,
        )
        self.loop_lag_s = Gauge(
            "slipstream_operator_loop_lag_seconds",
            "How late the event loop woke last.",
            registry=self.registry,
        )
        self.watch_age_s = Gauge(
            "slipstream_operator_watch_age_seconds",
            "How long the watch that is most behind owes what is known to have been written.",
            registry=self.registry,
        )
        for cause in ("refused", "unavailable", "not_leader", "bug"):
            self.errors.labels(cause)
        for ready in ("True", "False", "Unknown"):
            self.models.labels(ready)
        for kind in (k for k in kinds.WATCHED if k not in (kinds.MODEL, kinds.LEASE)):
            for verb in VERBS[:3]:
                self.writes.labels(verb, kind.kind)
        self.writes.labels("status", kinds.MODEL.kind)
        self.writes.labels("withdraw", kinds.ROUTE.kind)
        self.writes.labels("create", kinds.EVENT.kind)

    def count_models(self, models: Iterable[Mapping[str, Any]]) -> None:
        counts = {"True": 0, "False": 0, "Unknown": 0}
        for model in models:
            conditions = (model.get("status") or {}).get("conditions") or []
            ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), None)
            counts[ready if ready in counts else "Unknown"] += 1
        for ready, count in counts.items():
            self.models.labels(ready).set(count)
