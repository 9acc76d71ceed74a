"""Tells the cluster about this gateway: that it lives, and which generations it has in use."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http import HTTPStatus

from slipstream_gateway.cluster import Cluster, ClusterError, Identity
from slipstream_gateway.metrics import Metrics
from slipstream_gateway.view import Acknowledgement, Key, View

log = logging.getLogger("slipstream.gateway.reporter")

_PARALLEL_WRITES = 8
_RETRY_S = 1.0
_FAREWELL_S = 3.0


class Reporter:
    """Owns this gateway's Lease and its entries in the routes' status."""

    def __init__(
        self, view: View, identity: Identity, metrics: Metrics, *, lease_duration_s: int
    ) -> None:
        self._view = view
        self._metrics = metrics
        self._lease_duration_s = lease_duration_s
        self._door = Cluster(identity)
        self._acquired_at: str | None = None
        self.has_lease = asyncio.Event()

    async def close(self) -> None:
        await self._door.close()

    async def keep_lease(self) -> None:
        """Renew the Lease for ever: every third of its duration, sooner after a failure."""
        while True:
            renewed = await self._attempt("renew the Lease", self._renew)
            if renewed:
                self.has_lease.set()
            await asyncio.sleep(self._lease_duration_s / 3 if renewed else _RETRY_S)

    async def keep_acknowledging(self) -> None:
        """Report every generation that came into use, for ever."""
        while True:
            await self._view.changed.wait()
            self._view.changed.clear()
            pending = self._view.unacknowledged()
            limit = asyncio.Semaphore(_PARALLEL_WRITES)
            done = await asyncio.gather(*(self._acknowledge(item, limit) for item in pending))
            if not all(done):
                await asyncio.sleep(_RETRY_S)
                self._view.changed.set()

    async def say_farewell(self) -> None:
        """Leave nothing that the operator would wait for. The Lease goes first: without it the
        entries mean nothing, and they go only as far as it is quick."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._attempt("delete the Lease", self._door.delete_lease)
                limit = asyncio.Semaphore(_PARALLEL_WRITES)
                keys = [(model.namespace, model.name) for model in self._view.table.models]
                await asyncio.gather(*(self._withdraw(key, limit) for key in keys))
        except TimeoutError:
            log.warning("the API server was too slow for a farewell; the Lease runs out by itself")

    async def _renew(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._acquired_at = self._acquired_at or now
        await self._door.write_lease(
            duration_s=self._lease_duration_s, acquired_at=self._acquired_at, renewed_at=now
        )

    async def _acknowledge(self, item: Acknowledgement, limit: asyncio.Semaphore) -> bool:
        async with limit:
            done = await self._attempt("acknowledge", lambda: self._door.acknowledge(item))
        if done:
            self._view.note_acknowledged(item)
            self._metrics.acknowledgements.inc()
        return done

    async def _withdraw(self, key: Key, limit: asyncio.Semaphore) -> None:
        async with limit:
            await self._attempt("withdraw", lambda: self._door.withdraw(*key))

    async def _attempt(self, what: str, write: Callable[[], Awaitable[None]]) -> bool:
        try:
            await write()
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return True  # deleted meanwhile: nothing to say about it
            self._metrics.cluster_errors.labels(what).inc()
            log.warning("could not %s: %s", what, error)
            return False
        return True
