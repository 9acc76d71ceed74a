"""The routing table: which models there are, under which names, on which replicas.

Pure and frozen; knows no cluster, no request and no clock. A new table replaces the old one whole.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slipstream_api import names


@dataclass(frozen=True, slots=True)
class TrackSpec:
    """One track as its ModelRoute states it. `weight` in basis points."""

    name: str
    revision: str
    service: str
    port: int
    weight: int
    draining_pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Route:
    """What the gateway uses of one ModelRoute. `created_at` is RFC 3339: it sorts as text.
    `is_gone`: deleted, and followed for a moment longer."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_at: str
    names: tuple[str, ...]
    tracks: tuple[TrackSpec, ...]
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One Pod of an EndpointSlice. `port` is None where the slice names none."""

    pod: str
    address: str
    port: int | None
    is_ready: bool


@dataclass(frozen=True, slots=True)
class ServiceSlice:
    """What the gateway uses of one EndpointSlice."""

    namespace: str
    name: str
    service: str
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine that may be sent a request."""

    pod: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Track:
    name: str
    revision: str
    weight: int
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """One model; `names` are those that lead to it, without the contested ones it lost."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_at: str
    names: tuple[str, ...]
    tracks: tuple[Track, ...]

    @property
    def qualified_name(self) -> str:
        return names.qualified_name(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class RoutingTable:
    models: tuple[Model, ...]
    by_name: Mapping[str, Model]


EMPTY = RoutingTable(models=(), by_name=MappingProxyType({}))


def build(routes: Iterable[Route], slices: Iterable[ServiceSlice]) -> RoutingTable:
    """The table of these objects.

    A qualified name always leads to its own model. Any other name that several routes claim
    belongs to the oldest of them (then the first by namespace/name), so that all gateways agree
    also while the operator has not yet settled the contest. A deleted route keeps no name that
    another one has.
    """
    ordered = sorted(
        routes, key=lambda route: (route.is_gone, route.created_at, route.namespace, route.name)
    )
    owner: dict[str, Route] = {
        names.qualified_name(route.namespace, route.name): route for route in ordered
    }
    for route in ordered:
        for name in route.names:
            owner.setdefault(name, route)
    endpoints = _by_service(slices)
    models = tuple(_model(route, owner, endpoints) for route in ordered)
    by_route = {(model.namespace, model.name): model for model in models}
    by_name = {name: by_route[route.namespace, route.name] for name, route in owner.items()}
    return RoutingTable(models=models, by_name=MappingProxyType(by_name))


def _model(
    route: Route,
    owner: Mapping[str, Route],
    endpoints: Mapping[tuple[str, str], Mapping[str, Endpoint]],
) -> Model:
    qualified = names.qualified_name(route.namespace, route.name)
    own = [name for name in dict.fromkeys((*route.names, qualified)) if owner[name] is route]
    return Model(
        namespace=route.namespace,
        name=route.name,
        uid=route.uid,
        generation=route.generation,
        created_at=route.created_at,
        names=tuple(own),
        tracks=tuple(
            Track(
                name=spec.name,
                revision=spec.revision,
                weight=spec.weight,
                replicas=_replicas(spec, endpoints.get((route.namespace, spec.service), {})),
            )
            for spec in route.tracks
        ),
    )


def _replicas(spec: TrackSpec, endpoints: Mapping[str, Endpoint]) -> tuple[Replica, ...]:
    return tuple(
        Replica(pod=endpoint.pod, address=endpoint.address, port=endpoint.port or spec.port)
        for _, endpoint in sorted(endpoints.items())
        if endpoint.is_ready and endpoint.pod not in spec.draining_pods
    )


def _by_service(
    slices: Iterable[ServiceSlice],
) -> dict[tuple[str, str], dict[str, Endpoint]]:
    """Every Pod once: a slice controller that moves a Pod shows it twice for a moment, and a
    dual-stack Service always does."""
    services: dict[tuple[str, str], dict[str, Endpoint]] = {}
    for part in sorted(slices, key=lambda part: (part.namespace, part.name)):
        pods = services.setdefault((part.namespace, part.service), {})
        for endpoint in part.endpoints:
            known = pods.get(endpoint.pod)
            if known is None or (endpoint.is_ready and not known.is_ready):
                pods[endpoint.pod] = endpoint
    return services
