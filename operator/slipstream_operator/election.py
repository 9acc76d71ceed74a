"""Holding the Lease: reads and writes it as `leader` decides; tells when holding begins and ends.

The only writer of the Lease in this process; knows nothing of models.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from slipstream_api import names
from slipstream_operator import kinds, leader
from slipstream_operator.cluster import Cluster, ClusterError, ConflictError
from slipstream_operator.documents import Document
from slipstream_operator.leader import Action, Sighting, Timing

log = logging.getLogger(__name__)


def clock() -> float:
    """Monotonic seconds that also pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election:
    """`on_change(True)` when this process may write from now on, `on_change(False)` after.

    `on_version` gets every version of the Lease that was read or written here, past the watch.
    """

    def __init__(
        self,
        *,
        namespace: str,
        name: str,
        me: str,
        timing: Timing,
        on_change: Callable[[bool], None],
        on_version: Callable[[Document], None],
    ) -> None:
        self._namespace = namespace
        self._name = name
        self._me = me
        self._timing = timing
        self._on_change = on_change
        self._on_version = on_version
        self._renewed_at: float | None = None
        self._sighting: Sighting | None = None
        self._is_leader = False
        self._wake = asyncio.Event()

    def window_s(self) -> float:
        return leader.write_window_s(self._renewed_at, self._timing, clock())

    def nudge(self) -> None:
        """The Lease changed: look at once."""
        self._wake.set()

    async def run(self, cluster: Cluster) -> None:
        """Until cancelled."""
        while True:
            started = clock()
            try:
                await self._round(cluster)
            except ConflictError:
                self._renewed_at = None
            except ClusterError as error:
                log.warning("lease: %s", error)
            self._report()
            wait_s = max(0.05, started + self._timing.retry_s - clock())
            self._wake.clear()
            try:
                # A standby reacts to a released Lease at once; a holder keeps its own pace.
                async with asyncio.timeout(wait_s):
                    await (asyncio.Event() if self._is_leader else self._wake).wait()
            except TimeoutError:
                continue

    async def release(self, cluster: Cluster) -> None:
        """Give the Lease back so that a standby need not wait; no write may be under way."""
        if self.window_s() <= 0:
            return
        self._renewed_at = None
        self._report()
        lease = await cluster.get(kinds.LEASE, self._namespace, self._name)
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._me:
            return
        lease["spec"].pop("holderIdentity")
        await cluster.put_lease(lease, timeout_s=self._timing.write_timeout_s)

    async def _round(self, cluster: Cluster) -> None:
        timeout_s = self._timing.write_timeout_s
        lease = await cluster.get(kinds.LEASE, self._namespace, self._name, timeout_s=timeout_s)
        if lease is not None:
            self._on_version(lease)
        self._sighting = leader.sight(lease, self._sighting, clock())
        action = leader.decide(lease, self._me, self._sighting, clock())
        if action is Action.WAIT:
            self._renewed_at = None
            return
        # The others count from when they see the record, which is later than this.
        started = clock()
        written = await cluster.put_lease(self._record(lease, action), timeout_s=timeout_s)
        self._on_version(written)
        self._sighting = leader.sight(written, self._sighting, clock())
        self._renewed_at = started

    def _record(self, lease: Document | None, action: Action) -> Document:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = dict((lease or {}).get("spec") or {})
        if action is not Action.RENEW:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec["holderIdentity"] = self._me
        spec["leaseDurationSeconds"] = int(self._timing.duration_s)
        spec["renewTime"] = now
        metadata: Document = {
            "name": self._name,
            "namespace": self._namespace,
            "labels": {
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_COMPONENT: "operator",
            },
        }
        if lease is not None:
            metadata = {**lease["metadata"], "labels": metadata["labels"]}
            metadata.pop("managedFields", None)
        return {
            "apiVersion": kinds.LEASE.api_version,
            "kind": kinds.LEASE.kind,
            "metadata": metadata,
            "spec": spec,
        }

    def _report(self) -> None:
        is_leader = self.window_s() > 0
        if is_leader != self._is_leader:
            self._is_leader = is_leader
            log.info("leading" if is_leader else "not leading", extra={"identity": self._me})
            self._on_change(is_leader)
