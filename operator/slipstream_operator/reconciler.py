"""One pass over one model: snapshot, plan, writes, status. Decides nothing itself."""

import base64
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

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
        now = datetime.now(UTC)
        token = _fresh_token()
        decided = plan(model, observed, self._settings, now, token)
        refusals = await self._carry_out(key, decided)
        if refusals != observed.refusals:
            self._refusals[key] = refusals
            told = plan(model, replace(observed, refusals=refusals), self._settings, now, token)
            decided = replace(decided, status=told.status, events=told.events)
        await self._report(key, model, decided)
        if refusals:
            what, refusal = next(iter(refusals.items()))
            raise RefusedError(refusal.code, f"{what}: {refusal.message}")
        return decided.requeue_after_s

    async def _carry_out(self, key: Key, decided: Plan) -> dict[str, Refusal]:
        """Writes in order. A refused one does not keep the others from being written."""
        refusals: dict[str, Refusal] = {}

        async def attempt(what: str, write: Awaitable[None]) -> None:
            try:
                await write
            except RefusedError as error:
                refusals[what] = Refusal(error.code, error.message)
                log.warning("refused %s: %s", what, error)

        for document in decided.create:
            await attempt(_what(document), self._create(key, document))
        for document in decided.apply:
            await attempt(_what(document), self._apply(key, document))
        for ref in decided.delete:
            # Named apart: a Pod that must not be deleted says nothing against its template.
            await attempt(f"deletion of {ref.kind}/{ref.name}", self._delete(key, ref))
        for withdrawal in decided.withdraw:
            await attempt(str(withdrawal), self._withdraw(key, withdrawal))
        return refusals

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

    async def _report(self, key: Key, model: Document, decided: Plan) -> None:
        if decided.status is None:
            return
        self._on_written(key, await self._cluster.write_status(model, decided.status))
        for event in decided.events:
            try:
                await self._cluster.create(self._event(model, event))
            except (ConflictError, RefusedError) as error:
                # An event is a courtesy; a namespace that goes away takes none.
                log.info("no event for %s: %s", documents.name(model), error)

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


def _what(document: Document) -> str:
    return f"{document['kind']}/{documents.name(document)}"


def _fresh_token() -> str:
    """Base64 of base64: what a Secret's `data` holds, printable when mounted."""
    return base64.b64encode(secrets.token_urlsafe(_TOKEN_BYTES).encode()).decode()
