"""The server's metrics, all of them; every series exists, as zero, from the start.

They count pages and bytes, and name neither keys nor tenants.
"""

from enum import Enum, auto
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from slipstream_kvstore.codec import Found, Stored
from slipstream_kvstore.store import Store

_Outcome = TypeVar("_Outcome", bound=Enum)


class Ended(Enum):
    """Why a connection ended before its client closed it."""

    # More connections than allowed.
    LIMIT = auto()
    TOKEN = auto()
    VERSION = auto()
    PROTOCOL = auto()
    DEADLINE = auto()
    IDLE = auto()
    NETWORK = auto()
    BUG = auto()


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.found = self._counter(
            "slipstream_cache_get_pages", "Pages asked for, by what became of them.", Found
        )
        self.stored = self._counter(
            "slipstream_cache_set_pages", "Pages sent here, by what became of them.", Stored
        )
        self.ended = self._counter(
            "slipstream_cache_connections_ended",
            "Connections that this side ended, or that broke, by reason.",
            Ended,
        )
        exists = Counter(
            "slipstream_cache_exists_pages",
            "Pages asked about, by whether they were there.",
            ("outcome",),
            registry=self.registry,
        )
        self.exists = {True: exists.labels("hit"), False: exists.labels("miss")}
        evicted = Counter(
            "slipstream_cache_evicted_pages",
            "Pages evicted: the store was full, or its tenant's share was.",
            ("reason",),
            registry=self.registry,
        )
        self.evicted_by_capacity = evicted.labels("capacity")
        self.evicted_by_quota = evicted.labels("quota")
        self.sent_bytes = Counter(
            "slipstream_cache_sent_bytes", "Bytes of pages sent.", registry=self.registry
        )
        self.received_bytes = Counter(
            "slipstream_cache_received_bytes", "Bytes of pages stored.", registry=self.registry
        )
        self.connections = self._gauge("connections", "Open connections.")
        self._in_flight_bytes = self._gauge(
            "in_flight_bytes", "Bytes of pages that are being sent or received."
        )
        self._used_bytes = self._gauge("used_bytes", "Bytes that the stored pages count.")
        self._capacity_bytes = self._gauge("capacity_bytes", "Bytes that they may count.")
        self._pages = self._gauge("pages", "Stored pages.")
        self._tenants = self._gauge("tenants", "Tenants with a page or more.")

    def text(self, store: Store, in_flight_bytes: int) -> bytes:
        """What Prometheus reads."""
        self._in_flight_bytes.set(in_flight_bytes)
        self._used_bytes.set(store.used_bytes)
        self._capacity_bytes.set(store.max_bytes)
        self._pages.set(len(store))
        self._tenants.set(store.num_tenants)
        return generate_latest(self.registry)

    def _gauge(self, name: str, help_: str) -> Gauge:
        return Gauge(f"slipstream_cache_{name}", help_, registry=self.registry)

    def _counter(self, name: str, help_: str, outcomes: type[_Outcome]) -> dict[_Outcome, Counter]:
        label = "reason" if outcomes is Ended else "outcome"
        family = Counter(name, help_, (label,), registry=self.registry)
        return {outcome: family.labels(outcome.name.lower()) for outcome in outcomes}
