"""Kubernetes objects into the gateway's own frozen types. Pure; knows no client."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from slipstream_api import names
from slipstream_api.modelroute import ModelRouteSpec, ModelRouteStatus
from slipstream_gateway.table import Endpoint, Route, ServiceSlice, TrackSpec
from slipstream_gateway.view import Key, SeenRoute, Tokens

LABEL_SERVICE = "kubernetes.io/service-name"

Document = Mapping[str, Any]


class DocumentError(Exception):
    """An object that this gateway cannot read: newer than itself, or broken."""


def route(document: Document, gateway: Key) -> SeenRoute:
    """A ModelRoute, and what it says of this gateway. Fields that a newer operator added are passed
    over: gateways are upgraded one after the other. Raises DocumentError."""
    metadata = document["metadata"]
    try:
        spec = ModelRouteSpec.model_validate(document.get("spec"), extra="ignore")
        status = ModelRouteStatus.model_validate(document.get("status") or {}, extra="ignore")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DocumentError(
            f"ModelRoute {metadata['namespace']}/{metadata['name']}: {field}: {first['msg']}"
        ) from error
    own = [entry for entry in status.gateways if (entry.namespace, entry.name) == gateway]
    return SeenRoute(
        route=Route(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            generation=metadata.get("generation", 0),
            created_at=metadata.get("creationTimestamp") or "",
            names=tuple(spec.names),
            tracks=tuple(
                TrackSpec(
                    name=track.name,
                    revision=track.revision,
                    service=track.service,
                    port=track.port,
                    weight=track.weight,
                    draining_pods=frozenset(track.draining_pods),
                )
                for track in spec.tracks
            ),
        ),
        acknowledged=own[0].observed_generation if own else None,
    )


def service_slice(document: Document) -> ServiceSlice:
    """An EndpointSlice."""
    metadata = document["metadata"]
    port = _port(document.get("ports") or ())
    return ServiceSlice(
        namespace=metadata["namespace"],
        name=metadata["name"],
        service=(metadata.get("labels") or {}).get(LABEL_SERVICE, ""),
        endpoints=tuple(_endpoint(item, port) for item in document.get("endpoints") or ()),
    )


def tokens(document: Document) -> Tokens:
    """The internal token Secret. Raises DocumentError."""
    metadata = document["metadata"]
    data = document.get("data") or {}
    try:
        values = {
            key: base64.b64decode(data[key], validate=True).decode().strip()
            for key in names.TOKEN_KEYS
            if data.get(key)
        }
    except (binascii.Error, UnicodeDecodeError) as error:
        raise DocumentError(
            f"Secret {metadata['namespace']}/{metadata['name']}: not base64 of text"
        ) from error
    return Tokens(
        namespace=metadata["namespace"],
        current=values.get(names.TOKEN_KEYS[0]),
        accepted=tuple(value for value in values.values() if value),
    )


def _port(ports: Any) -> int | None:
    """The port that the engines listen on; a slice of one port needs no name."""
    named = [port for port in ports if port.get("name") == names.ENGINE_PORT_NAME]
    chosen = named or (list(ports) if len(ports) == 1 else [])
    return chosen[0].get("port") if chosen else None


def _endpoint(item: Document, port: int | None) -> Endpoint:
    conditions = item.get("conditions") or {}
    address = item["addresses"][0]
    # Kubernetes: an absent `ready` means ready. A terminating Pod may still be serving, but what
    # it is sent now it might not finish.
    is_ready = conditions.get("ready") is not False and not conditions.get("terminating")
    pod = (item.get("targetRef") or {}).get("name") or address
    return Endpoint(pod=pod, address=address, port=port, is_ready=is_ready)
