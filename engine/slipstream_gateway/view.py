"""What this gateway believes of the cluster: fed by watches, read by every request.

Knows no Kubernetes client and no HTTP. One event loop owns it, so nothing here is locked.
"""

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from slipstream_gateway import table
from slipstream_gateway.table import Route, RoutingTable, ServiceSlice

Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class SeenRoute:
    """A route, and the generation that the API server knows this gateway to have taken over."""

    route: Route
    acknowledged: int | None


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A generation that is in use and not yet reported."""

    namespace: str
    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """The internal token of one namespace: what is sent, and all that is accepted meanwhile."""

    namespace: str
    current: str | None = field(repr=False)
    accepted: tuple[str, ...] = field(repr=False)


Item = TypeVar("Item", SeenRoute, ServiceSlice, Tokens)


@dataclass(slots=True)
class _Store(Generic[Item]):
    """The objects of one kind, by the scope that a watch covers."""

    scopes: dict[str, dict[Key, Item]] = field(default_factory=dict)

    def replace(self, scope: str, items: Mapping[Key, Item]) -> None:
        self.scopes[scope] = dict(items)

    def set(self, scope: str, key: Key, item: Item | None) -> None:
        if item is None:
            self.scopes[scope].pop(key, None)
        else:
            self.scopes[scope][key] = item

    def values(self) -> list[Item]:
        return [item for items in self.scopes.values() for item in items.values()]


class View:
    """The stores, and the table made of them. `changed` wakes whoever acts on a new table."""

    def __init__(self, scopes: Sequence[str]) -> None:
        self._expected = frozenset(scopes)
        self.routes: _Store[SeenRoute] = _Store()
        self.slices: _Store[ServiceSlice] = _Store()
        self.tokens: _Store[Tokens] = _Store()
        self.table: RoutingTable = table.EMPTY
        self._token_of: dict[str, str] = {}
        self.is_in_use = False
        self.stale = asyncio.Event()
        self.changed = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether every watch has listed at least once."""
        return all(
            self._expected <= store.scopes.keys()
            for store in (self.routes, self.slices, self.tokens)
        )

    def refresh(self) -> bool:
        """Put the stores into use. Whether the table became another one.

        Not before everything was listed once: routes without their slices would turn requests
        away that a moment later have a replica.
        """
        self.stale.clear()
        if not self.is_complete:
            return False
        for tokens in self.tokens.values():
            if tokens.current is not None:
                self._token_of[tokens.namespace] = tokens.current
        fresh = table.build((seen.route for seen in self.routes.values()), self.slices.values())
        is_new = fresh != self.table or not self.is_in_use
        if is_new:
            self.table = fresh
        self.is_in_use = True
        self.changed.set()
        return is_new

    def unacknowledged(self) -> list[Acknowledgement]:
        """Generations of the table in use that the API server does not know of yet."""
        known = {
            (seen.route.namespace, seen.route.name, seen.route.uid): seen.acknowledged
            for seen in self.routes.values()
        }
        return [
            Acknowledgement(model.namespace, model.name, model.generation)
            for model in self.table.models
            if known.get((model.namespace, model.name, model.uid), model.generation)
            != model.generation
        ]

    def note_acknowledged(self, done: Acknowledgement) -> None:
        """Remember a write until its own watch event confirms it."""
        for items in self.routes.scopes.values():
            seen = items.get((done.namespace, done.name))
            if seen is not None:
                items[done.namespace, done.name] = replace(seen, acknowledged=done.generation)

    def hold_route(self, scope: str, key: Key) -> Route | None:
        """A route was deleted: follow it on, until `let_go`, behind all others that claim its
        names. None: it was not known."""
        seen = self.routes.scopes[scope].get(key)
        if seen is None:
            return None
        held = replace(seen.route, is_gone=True)
        self.routes.set(scope, key, SeenRoute(held, acknowledged=held.generation))
        self.stale.set()
        return held

    def let_go(self, scope: str, key: Key, held: Route) -> None:
        """Follow a deleted route no longer, unless it was made again or has gone meanwhile."""
        seen = self.routes.scopes[scope].get(key)
        if seen is not None and seen.route is held:
            self.routes.set(scope, key, None)
            self.stale.set()

    def token(self, namespace: str) -> str | None:
        """What engines of this namespace believe; None before it had a Secret.

        Whatever is `current` is sent at once: the operator lets every engine accept a key for
        minutes before it makes it that. A Secret that is gone leaves its files in the engines'
        Pods, so its last token stays good.
        """
        return self._token_of.get(namespace)

    def namespaces_of_token(self, presented: str) -> frozenset[str]:
        """The namespaces whose internal token this is, compared in constant time."""
        value = presented.encode("utf-8", "surrogateescape")
        return frozenset(
            tokens.namespace
            for tokens in self.tokens.values()
            if any(hmac.compare_digest(value, known.encode()) for known in tokens.accepted)
        )
