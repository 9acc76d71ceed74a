"""Keeps a view current: lists, watches, and does both again after whatever went wrong.

While the API server is away the view stays as it is, and routing goes on with it.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream_gateway import cluster, documents
from slipstream_gateway.cluster import Cluster, ClusterError, Document, Expired, Identity, Kind
from slipstream_gateway.metrics import Metrics
from slipstream_gateway.view import Key, View

log = logging.getLogger("slipstream.gateway.watcher")

_BACKOFF_MIN_S = 0.2
_BACKOFF_MAX_S = 10.0
# How long a deleted route is followed on. The operator makes one that a person deleted again within
# a second; after the deletion of a model its names answer so much longer, with a 503 at last.
_HOLD_S = 3.0


class _Sink(Protocol):
    """A view's store of one kind."""

    def replace(self, scope: str, items: Any) -> None: ...

    def set(self, scope: str, key: Key, item: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class _Feed:
    """One kind: how its documents are read and where they go."""

    kind: Kind
    parse: Callable[[Document], Any]
    sink: _Sink


class Watcher:
    def __init__(self, view: View, identity: Identity, metrics: Metrics) -> None:
        self._view = view
        self._identity = identity
        self._metrics = metrics
        self._feeds = (
            _Feed(cluster.ROUTES, lambda it: documents.route(it, identity.key), view.routes),
            _Feed(cluster.SLICES, documents.service_slice, view.slices),
            _Feed(cluster.TOKENS, documents.tokens, view.tokens),
        )

    async def follow(self, scope: str) -> None:
        """Keep everything of one scope current, for ever."""
        door = Cluster(self._identity)  # its connections are held by its watches
        try:
            async with asyncio.TaskGroup() as group:
                for feed in self._feeds:
                    group.create_task(self._follow_kind(door, feed, scope))
        finally:
            await door.close()

    async def put_into_use(self) -> None:
        """Make every change of the view the table in use, for ever."""
        while True:
            await self._view.stale.wait()
            if self._view.refresh():
                self._metrics.show(self._view.table)

    async def _follow_kind(self, door: Cluster, feed: _Feed, scope: str) -> None:
        backoff_s = _BACKOFF_MIN_S
        while True:
            try:
                version = await self._list(door, feed, scope)
                backoff_s = _BACKOFF_MIN_S
                await self._watch(door, feed, scope, version)
            except Expired:
                await asyncio.sleep(_BACKOFF_MIN_S)
            except ClusterError as error:
                self._metrics.cluster_errors.labels(f"watch {feed.kind.name}").inc()
                log.warning("watch of %s in %s: %s", feed.kind.name, scope, error)
                # Spread, so that all gateways do not come back in the same moment.
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311
                backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)

    async def _list(self, door: Cluster, feed: _Feed, scope: str) -> str:
        version, found = await door.list_all(feed.kind, scope)
        items = {_key(document): self._parse(feed, document) for document in found}
        feed.sink.replace(scope, {key: item for key, item in items.items() if item is not None})
        self._metrics.note_contact(feed.kind.name)
        self._view.stale.set()
        return version

    async def _watch(self, door: Cluster, feed: _Feed, scope: str, version: str) -> None:
        async for is_there, document in door.watch(feed.kind, scope, version):
            if feed.kind is cluster.ROUTES and not is_there:
                self._hold(scope, _key(document))
                continue
            item = self._parse(feed, document) if is_there else None
            feed.sink.set(scope, _key(document), item)
            self._metrics.note_contact(feed.kind.name)
            self._view.stale.set()

    def _hold(self, scope: str, key: Key) -> None:
        held = self._view.hold_route(scope, key)
        if held is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(_HOLD_S, self._view.let_go, scope, key, held)
        self._metrics.note_contact(cluster.ROUTES.name)

    def _parse(self, feed: _Feed, document: Document) -> Any:
        try:
            return feed.parse(document)
        except documents.DocumentError as error:
            self._metrics.cluster_errors.labels(f"read {feed.kind.name}").inc()
            log.error("%s; passed over", error)
            return None


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return metadata["namespace"], metadata["name"]
