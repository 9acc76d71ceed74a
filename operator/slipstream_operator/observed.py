"""What one pass sees of one model: a frozen snapshot, taken from the watch caches.

Knows no cluster: `cache.observe` fills it, tests fill it from YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipstream_api import names
from slipstream_operator import documents
from slipstream_operator.claims import Claim
from slipstream_operator.documents import Document


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server's answer to a write that it will not take."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class GatewayLease:
    """A gateway's sign of life: how long it holds, and how long ago it came, by our own clock."""

    namespace: str
    name: str
    duration_s: float
    silent_s: float

    @property
    def is_alive(self) -> bool:
        return self.silent_s < self.duration_s


@dataclass(frozen=True, slots=True)
class GatewayEntry:
    """A gateway's entry in the route's status, and how long nothing was seen of that gateway (a
    Lease that changed, an entry that is new or says something new), by our own clock."""

    namespace: str
    name: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that plan() may look at beside the model itself."""

    pods: tuple[Document, ...] = ()
    config_maps: tuple[Document, ...] = ()
    services: tuple[Document, ...] = ()
    revisions: tuple[Document, ...] = ()  # ControllerRevisions
    policies: tuple[Document, ...] = ()  # NetworkPolicies
    route: Document | None = None
    token: Document | None = None
    claims: tuple[Claim, ...] = ()  # of every model in scope, this one included
    token_owners: tuple[Document, ...] = ()  # every model of this namespace
    gateways: tuple[GatewayLease, ...] = ()
    entries: tuple[GatewayEntry, ...] = ()  # of the route's status
    # Object ("Kind/name") -> why its last write was refused; gone once a write succeeds.
    refusals: Mapping[str, Refusal] = field(default_factory=dict)


def gateway_lease(document: Mapping[str, Any], silent_s: float) -> GatewayLease | None:
    """A gateway's Lease, or None for any other one."""
    duration_s = (document.get("spec") or {}).get("leaseDurationSeconds")
    is_gateway = documents.label(document, names.LABEL_COMPONENT) == "gateway"
    if not is_gateway or not isinstance(duration_s, int):
        return None
    return GatewayLease(*documents.where(document), float(duration_s), silent_s)


def acknowledged(route: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """The generation of a route that each gateway (namespace, name) says to have in use."""
    entries = ((route.get("status") or {}).get("gateways")) or []
    return {
        (str(e.get("namespace")), str(e.get("name"))): int(e.get("observedGeneration", 0))
        for e in entries
    }


def gateway_entries(silent_s: Mapping[tuple[str, str], float]) -> tuple[GatewayEntry, ...]:
    """In the order of their names, so that equal snapshots give equal plans."""
    return tuple(GatewayEntry(*gateway, silent_s[gateway]) for gateway in sorted(silent_s))
