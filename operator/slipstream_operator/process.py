"""The running operator: watches, queue, workers, lease and health put together."""

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from slipstream_api.config import OperatorConfig
from slipstream_operator import cluster as clusters
from slipstream_operator import documents, handlers, kinds
from slipstream_operator.cache import Cache, Key
from slipstream_operator.cluster import (
    Cluster,
    ClusterError,
    ConflictError,
    NotLeaderError,
    RefusedError,
    UnavailableError,
)
from slipstream_operator.documents import Document
from slipstream_operator.election import Election, clock
from slipstream_operator.health import Health
from slipstream_operator.heartbeat import Heartbeat, Stream
from slipstream_operator.kinds import Kind
from slipstream_operator.leader import Timing
from slipstream_operator.listing import Listing
from slipstream_operator.metrics import Metrics
from slipstream_operator.queue import WorkQueue
from slipstream_operator.reconciler import Reconciler
from slipstream_operator.settings import from_config

log = logging.getLogger(__name__)

_WORKERS = 8
# Events come in bursts: one pass answers all of a burst.
_GATHER_S = 0.05
_RELIST_PAUSE_S = 1.0
_SHUTDOWN_S = 10.0
_CHASE_PAUSE_S = 15.0
_CHASE_AFTER_S = 60.0


class Operator:
    """One process. `handlers` feeds it; workers drain the queue while the Lease is held."""

    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._rng = random.Random(secrets.randbits(64))  # noqa: S311  (jitter, not a secret)
        self._me = f"{os.environ.get('POD_NAME') or os.uname().nodename}_{secrets.token_hex(4)}"
        self._metrics = Metrics()
        self._cache = Cache(clock)
        self._queue: WorkQueue[Key] = WorkQueue(clock, self._rng)
        self._heartbeat = Heartbeat()
        self._timing = Timing(float(config.lease_duration_s))
        self._election = Election(
            namespace=config.operator_namespace,
            name=config.lease_name,
            me=self._me,
            timing=self._timing,
            on_change=self._on_leadership,
            on_version=lambda lease: self._told(kinds.LEASE, lease),
        )
        self._may_work = asyncio.Event()
        self._is_closing = False
        self._busy: set[asyncio.Task[None]] = set()
        self._listing = Listing(kinds.WATCHED)
        self._relist = asyncio.Event()
        self._health = Health(
            self._metrics, self._heartbeat, is_synced=lambda: self._listing.is_complete
        )

    async def run(self) -> None:
        """Until SIGTERM, or until something fails for good."""
        self._cluster = Cluster(
            clusters.load_config(),
            window_s=self._election.window_s,
            write_timeout_s=self._timing.write_timeout_s,
            metrics=self._metrics,
            user_agent=f"slipstream-operator/{self._me}",
        )
        self._reconciler = Reconciler(
            self._cluster,
            self._cache,
            from_config(self._config),
            self._metrics,
            instance=self._me,
            on_written=self._on_written,
        )
        server = await self._health.serve(self._config.metrics_port)
        await self._wait_for_kinds()
        workers = [self._work() for _ in range(_WORKERS)]
        others = [
            self._health.sample(),
            self._election.run(self._cluster),
            self._keep_listed(),
            self._chase(),
            self._resync(),
            handlers.watch(self, self._scope()),
        ]
        try:
            await self._run_all(workers, others)
        finally:
            await server.cleanup()
            await self._cluster.close()

    async def _run_all(
        self, workers: list[Coroutine[Any, Any, None]], others: list[Coroutine[Any, Any, None]]
    ) -> None:
        working = [asyncio.create_task(c) for c in workers]
        running = [asyncio.create_task(c) for c in others]
        try:
            # kopf ends on SIGTERM; anything else that ends has failed.
            done, _ = await asyncio.wait([*working, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._close(working)
            await _stop(running)
        for task in done:
            task.result()

    async def _close(self, workers: list[asyncio.Task[None]]) -> None:
        """Let passes end, then give the Lease back, so that a standby goes on at once."""
        self._is_closing = True
        await _stop([task for task in workers if task not in self._busy])
        unfinished = {task for task in workers if not task.done()}
        if unfinished:
            _, unfinished = await asyncio.wait(unfinished, timeout=_SHUTDOWN_S)
        if unfinished:
            log.warning("passes did not end; the lease runs out by itself")
            await _stop(list(unfinished))
            return
        try:
            await self._election.release(self._cluster)
        except ClusterError as error:
            log.warning("the lease runs out by itself: %s", error)

    # What the watches bring, and what we know without them

    def on_event(self, kind: Kind, document: Document, *, deleted: bool) -> None:
        self._heartbeat.seen(self._stream(kind, document), documents.version(document))
        if kind is kinds.LEASE and self._is_own_lease(document):
            self._election.nudge()
            if not self._listing.is_complete:
                self._relist.set()
        if kind is not kinds.LEASE and not self._is_ours(documents.namespace(document)):
            return
        self._wake(self._cache.take(kind, document, deleted=deleted))

    def on_listed(self, kind: Kind) -> None:
        self._listing.mark(kind)
        self._relist.set()

    def _on_written(self, key: Key, document: Document) -> None:
        """The answer to a write of this model's pass: known at once, not when the watch brings
        it."""
        kind = kinds.of(document)
        self._told(kind, document)
        self._wake(self._cache.take(kind, document), own=key)

    def _told(self, kind: Kind, document: Document) -> None:
        """This version exists: the watch must bring it, too."""
        version = documents.version(document)
        self._heartbeat.told(self._stream(kind, document), version, clock())

    def _stream(self, kind: Kind, document: Document) -> Stream:
        is_one_for_all = self._config.namespaces is None
        return kind.kind, None if is_one_for_all else documents.namespace(document)

    def _wake(self, keys: Iterable[Key], *, own: Key | None = None) -> None:
        for key in keys:
            self._queue.add(key, _GATHER_S, is_own=key == own)
        self._metrics.queue_depth.set(len(self._queue))

    def _is_own_lease(self, document: Document) -> bool:
        where = documents.namespace(document), documents.name(document)
        return where == (self._config.operator_namespace, self._config.lease_name)

    def _is_ours(self, namespace: str) -> bool:
        """In namespaced mode the operator's own namespace is watched for Leases only."""
        return self._config.namespaces is None or namespace in self._config.namespaces

    def _scope(self, kind: Kind | None = None) -> list[str] | None:
        """The namespaces to look at; None: all."""
        if self._config.namespaces is None:
            return None
        if kind is None or kind is kinds.LEASE:
            return sorted({*self._config.namespaces, self._config.operator_namespace})
        return self._config.namespaces

    def _namespaces(self, kind: Kind) -> Sequence[str | None]:
        return self._scope(kind) or [None]

    # Listings

    async def _wait_for_kinds(self) -> None:
        """kopf watches only kinds that are served when it starts."""
        while True:
            try:
                for kind in kinds.WATCHED:
                    for namespace in self._namespaces(kind):
                        await self._cluster.list(kind, namespace)
                return
            except ClusterError as error:
                log.warning("not ready to start: %s", error)
                await asyncio.sleep(_RELIST_PAUSE_S)

    async def _keep_listed(self) -> None:
        """Our own list after each of kopf's: it also tells what was deleted in a gap."""
        while True:
            await self._relist.wait()
            self._relist.clear()
            # Handlers run only once kopf has listed every kind, so nothing falls between.
            taken = self._listing.take()
            try:
                for kind in taken:
                    await self._list(kind)
            except ClusterError as error:
                log.warning("listing: %s", error)
                self._listing.failed(taken)
                self._relist.set()
                await asyncio.sleep(_RELIST_PAUSE_S)
                continue
            if not self._listing.is_complete:
                log.info("caches are complete", extra={"models": len(self._cache.models())})
            self._listing.succeeded()
            if self._listing.is_current:
                self._begin()
            else:
                self._relist.set()
            await asyncio.sleep(_RELIST_PAUSE_S)

    async def _list(self, kind: Kind) -> None:
        for namespace in self._namespaces(kind):
            items, version = await self._cluster.list(kind, namespace)
            for document in self._cache.replace(kind, items, version, namespace=namespace):
                if self._cache.get(kind, *documents.where(document)) is document:
                    self._told(kind, document)
                self._wake(self._cache.concerned(kind, document))
            newest = max(map(documents.version, items), key=documents.order, default="0")
            self._heartbeat.listed((kind.kind, namespace), newest, version)

    async def _chase(self) -> None:
        """List what a watch owes for long: it repairs the caches, and tells a watch that is dead
        (then liveness ends this process) from one whose object has gone."""
        while True:
            await asyncio.sleep(_CHASE_PAUSE_S)
            late = self._heartbeat.most_late(clock())
            if late is not None and late.age_s > _CHASE_AFTER_S and self._listing.is_complete:
                log.warning("%s", late)
                self._listing.mark(kinds.by_name(late.stream[0]))
                self._relist.set()

    async def _resync(self) -> None:
        """Everything once in a while, spread out, in case a watch lied."""
        while True:
            await asyncio.sleep(self._config.resync_s * self._rng.uniform(0.8, 1.2))
            if not self._listing.is_complete:
                continue
            self._listing.mark_all()
            self._relist.set()
            for key in self._cache.models():
                self._queue.add(key, self._rng.uniform(0, self._config.resync_s / 10))

    # Leadership

    def _on_leadership(self, is_leader: bool) -> None:
        self._metrics.leader.set(1 if is_leader else 0)
        self._may_work.clear()
        if not is_leader:
            return
        # The predecessor's last writes may not have come through the watches yet, nor be in a
        # list that is under way: everything again, and only then work.
        self._listing.mark_all()
        if self._listing.is_complete:
            self._relist.set()

    def _begin(self) -> None:
        """Everything is listed: work, if the Lease is held and work has not begun."""
        if self._may_work.is_set() or self._election.window_s() <= 0:
            return
        for key in self._cache.models():
            self._queue.add(key)
        self._may_work.set()

    # Passes

    async def _work(self) -> None:
        me = asyncio.current_task()
        while not self._is_closing:
            await self._may_work.wait()
            key = await self._queue.get()
            if not self._may_work.is_set():
                self._queue.finish(key, 0.0)
                continue
            if me is not None:
                self._busy.add(me)
            await self._pass(key)
            if me is not None:
                self._busy.discard(me)
            self._metrics.queue_depth.set(len(self._queue))
            self._metrics.count_models(self._cache.all(kinds.MODEL))

    async def _pass(self, key: Key) -> None:
        name = "/".join(key)
        try:
            again_after_s = await self._reconciler.reconcile(key)
        except NotLeaderError as error:
            self._metrics.errors.labels("not_leader").inc()
            log.info("%s: %s", name, error)
            self._queue.finish(key, None)  # the next holder passes over every model
        except ConflictError as error:
            # The snapshot was old: the watch brings the newer one.
            log.info("%s: %s", name, error)
            self._queue.fail(key)
        except RefusedError as error:
            self._metrics.errors.labels("refused").inc()
            wait_s = self._queue.fail(key)
            log.warning("%s: refused, again in %.1f s: %s", name, wait_s, error)
        except UnavailableError as error:
            self._metrics.errors.labels("unavailable").inc()
            wait_s = self._queue.fail(key)
            log.warning("%s: again in %.1f s: %s", name, wait_s, error)
        except Exception:
            # One model's surprise must not stop the others; it is counted and told in full.
            self._metrics.errors.labels("bug").inc()
            wait_s = self._queue.fail(key)
            log.exception("%s: unexpected, again in %.1f s", name, wait_s)
        else:
            if self._cache.get(kinds.MODEL, *key) is None:
                self._queue.forget(key)
            else:
                self._queue.finish(key, again_after_s)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_SHUTDOWN_S)
