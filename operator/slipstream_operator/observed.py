"""What one pass sees of one model: a frozen snapshot, taken from the watch caches.

Knows no cluster: `cache.observe` fills it, tests fill it from YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
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
    """A gateway that said it lives; `expires` by its own clock."""

    namespace: str
    name: str
    expires: datetime


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that plan() may look at beside the model itself."""

    pods: tuple[Document, ...] = ()
    config_maps: tuple[Document, ...] = ()
    services: tuple[Document, ...] = ()
    revisions: tuple[Document, ...] = ()  # ControllerRevisions
    route: Document | None = None
    token: Document | None = None
    claims: tuple[Claim, ...] = ()  # of every model in scope, this one included
    token_owners: tuple[Document, ...] = ()  # every model of this namespace
    gateways: tuple[GatewayLease, ...] = ()
    # Object ("Kind/name") -> why its last write was refused; gone once a write succeeds.
    refusals: Mapping[str, Refusal] = field(default_factory=dict)


def gateway_lease(document: Mapping[str, Any]) -> GatewayLease | None:
    """A gateway's Lease, or None for any other one or one that was never renewed."""
    spec = document.get("spec") or {}
    renewed = documents.parse_time(spec.get("renewTime"))
    duration_s = spec.get("leaseDurationSeconds")
    is_gateway = documents.label(document, names.LABEL_COMPONENT) == "gateway"
    if not is_gateway or renewed is None or not isinstance(duration_s, int):
        return None
    return GatewayLease(
        namespace=documents.namespace(document),
        name=documents.name(document),
        expires=documents.after(renewed, duration_s),
    )
