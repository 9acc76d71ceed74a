"""One pass over one model: snapshot, plan, writes, status. Decides nothing itself."""

import base64
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from slipstream_operator import documents, kinds
from slipstream_operator.cache import Cache, Key
from slipstream_operator.cluster import Cluster, ConflictError, RefusedError
from slipstream_operator.documents import Document
from slipstream_operator.gateways import Withdrawal
from slipstream_operator.metrics import Metrics
from slipstream_operator.observed import Refusal
from slipstream_operator.plan import Event, Plan, plan
from slipstream_operator.settings import Settings

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32

Write = Callable[[], Awaitable[None]]


class Reconciler:
    """Keeps nothing between passes but what the API server last refused.

    `on_written` gets the answer to every write, and the model whose pass wrote it.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        settings: Settings,
        metrics: Metrics,
        *,
        instance: str,
        on_written: Callable[[Key, Document], None],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._settings = settings
        self._metrics = metrics
        self._instance = instance
        self._on_written = on_written
        self._refusals: dict[Key, dict[str, Refusal]] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Seconds until the next pass is due, or None when only a change calls for one.

        Raises ClusterError; RefusedError only after the status tells of the refusal.
        """
        started = time.perf_counter()
        try:
            return await self._reconcile(key)
        finally:
            self._metrics.reconcile_s.observe(time.perf_counter() - started)

    async def _reconcile(self, key: Key) -> float | None:
        model = self._cache.get(kinds.MODEL, *key)
        if model is None:
            self._refusals.pop(key, None)
            return None
        observed = self._cache.observe(key, self._refusals.get(key, {}))
        decide = partial(
            plan, settings=self._settings, now=datetime.now(UTC), fresh_token=_fresh_token()
        )
        decided = decide(model, observed)
        removals = self._removals(key, decided)
        refused = await _attempt(self._writes(key, decided))
        # The status does not wait for deletions, which may be many. What was refused of them last
        # time counts until they were tried again.
        told = refused | {what: r for what, r in observed.refusals.items() if what in removals}
        self._refusals[key] = told
        seen = replace(observed, refusals=told)
        model = await self._report(
            key, model, decided if told == observed.refusals else decide(model, seen)
        )
        refused |= await _attempt(removals)
        self._refusals[key] = refused
        if refused != told:
            await self._report(key, model, decide(model, replace(observed, refusals=refused)))
        if refused:
            what, refusal = next(iter(refused.items()))
            raise RefusedError(refusal.code, f"{what}: {refusal.message}")
        return decided.requeue_after_s

    def _writes(self, key: Key, decided: Plan) -> dict[str, Write]:
        """What is made and changed, in order."""
        creations: dict[str, Write] = {
            _what(d): partial(self._create, key, d) for d in decided.create
        }
        return creations | {_what(d): partial(self._apply, key, d) for d in decided.apply}

    def _removals(self, key: Key, decided: Plan) -> dict[str, Write]:
        # Named apart: a Pod that must not be deleted says nothing against its template.
        deletions: dict[str, Write] = {
            f"deletion of {ref.kind}/{ref.name}": partial(self._delete, key, ref)
            for ref in decided.delete
        }
        return deletions | {str(w): partial(self._withdraw, key, w) for w in decided.withdraw}

    async def _apply(self, key: Key, document: Document) -> None:
        self._on_written(key, await self._cluster.apply(document))

    async def _delete(self, key: Key, ref: documents.Ref) -> None:
        answer = await self._cluster.delete(ref)
        log.info("deleted %s", ref)
        if answer is not None and documents.is_terminating(answer):
            self._on_written(key, answer)

    async def _withdraw(self, key: Key, withdrawal: Withdrawal) -> None:
        self._on_written(key, await self._cluster.withdraw(withdrawal))
        log.info("withdrew %s", withdrawal)

    async def _create(self, key: Key, document: Document) -> None:
        try:
            self._on_written(key, await self._cluster.create(document))
        except ConflictError:
            kind = kinds.of(document)
            present = await self._cluster.get(kind, *documents.where(document))
            if present is not None:
                document = {"apiVersion": kind.api_version, "kind": kind.kind, **present}
                self._on_written(key, document)

    async def _report(self, key: Key, model: Document, decided: Plan) -> Document:
        """Write the status, where it differs; the model with it."""
        if decided.status is None:
            return model
        told = await self._cluster.write_status(model, decided.status)
        self._on_written(key, told)
        for event in decided.events:
            try:
                await self._cluster.create(self._event(model, event))
            except (ConflictError, RefusedError) as error:
                # An event is a courtesy; a namespace that goes away takes none.
                log.info("no event for %s: %s", documents.name(model), error)
        return told

    def _event(self, model: Document, event: Event) -> Document:
        return {
            "apiVersion": kinds.EVENT.api_version,
            "kind": kinds.EVENT.kind,
            "metadata": {
                "name": f"{documents.name(model)}.{secrets.token_hex(8)}",
                "namespace": documents.namespace(model),
            },
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": event.type,
            "reason": event.reason,
            "action": event.action,
            "note": event.note,
            "regarding": {
                "apiVersion": kinds.MODEL.api_version,
                "kind": kinds.MODEL.kind,
                "name": documents.name(model),
                "namespace": documents.namespace(model),
                "uid": documents.uid(model),
            },
            "reportingController": "slipstream.dev/operator",
            "reportingInstance": self._instance[:128],
        }


async def _attempt(writes: Mapping[str, Write]) -> dict[str, Refusal]:
    """Each in turn. A refused one does not keep the others from being written."""
    refusals: dict[str, Refusal] = {}
    for what, write in writes.items():
        try:
            await write()
        except RefusedError as error:
            refusals[what] = Refusal(error.code, error.message)
            log.warning("refused %s: %s", what, error)
    return refusals


def _what(document: Document) -> str:
    return f"{document['kind']}/{documents.name(document)}"


def _fresh_token() -> str:
    """Base64 of base64: what a Secret's `data` holds, printable when mounted."""
    return base64.b64encode(secrets.token_urlsafe(_TOKEN_BYTES).encode()).decode()
