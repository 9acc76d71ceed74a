"""A pass against an API server that refuses some writes: the others go on, the status tells why."""

import asyncio
from typing import Any, cast

import pytest

from slipstream_operator import children, documents, kinds
from slipstream_operator.cache import Cache
from slipstream_operator.cluster import (
    Cluster,
    ClusterError,
    ConflictError,
    RefusedError,
    UnavailableError,
    answer_error,
)
from slipstream_operator.documents import Document, Ref
from slipstream_operator.gateways import FORGOTTEN_AFTER_S, Withdrawal
from slipstream_operator.metrics import Metrics
from slipstream_operator.reconciler import Reconciler
from slipstream_operator.rotation import Keys
from tests.operator import world

KEY = (world.NAMESPACE, "coder")


class Refusing:
    """The API server's writes: refuses one verb on one kind, takes and keeps the rest."""

    def __init__(self, verb: str, kind: str, error: ClusterError | None = None) -> None:
        self._refused = (verb, kind)
        self._error = error or RefusedError(403, "the quota of this namespace is used up")
        self.taken: list[tuple[str, str]] = []
        self.statuses: list[dict[str, Any]] = []

    async def create(self, document: Document) -> Document:
        return self._take("create", document)

    async def apply(self, document: Document) -> Document:
        return self._take("apply", document)

    async def delete(self, ref: Ref) -> None:
        self._judge("delete", ref.kind)

    async def withdraw(self, withdrawal: Withdrawal) -> Document:
        self._judge("withdraw", withdrawal.route.kind)
        return route()

    async def write_status(self, model: Document, status: dict[str, Any]) -> Document:
        self.statuses.append(status)
        return self._take("status", {**model, "status": status})

    def _take(self, verb: str, document: Document) -> Document:
        self._judge(verb, document["kind"])
        return {**document, "metadata": {**document["metadata"], "uid": "uid-of-server"}}

    def _judge(self, verb: str, kind: str) -> None:
        if (verb, kind) == self._refused:
            raise self._error
        self.taken.append((verb, kind))


class Guarding(Refusing):
    """An API server whose Secret is newer than the operator's snapshot of it."""

    def __init__(self, secret: Document) -> None:
        super().__init__("", "")
        self.secret = secret

    async def apply(self, document: Document) -> Document:
        if document["kind"] == "Secret":
            wanted = document["metadata"].get("resourceVersion")
            if wanted not in (None, self.secret["metadata"]["resourceVersion"]):
                raise ConflictError("the object has been modified")
            self.secret = document
        return await super().apply(document)


def route(*gateways: str) -> Document:
    entries = [{"namespace": "s", "name": name, "observedGeneration": 1} for name in gateways]
    made = children.route(
        world.model(),
        client_names=["coder"],
        revision="0123456789",
        draining_pods=[],
        draining_since=None,
    )
    metadata = {**made["metadata"], "uid": "uid-route"}
    return {**made, "metadata": metadata, "status": {"gateways": entries}}


def start(api: Refusing, *objects: Document, after_s: float = 0.0) -> tuple[Cache, Reconciler]:
    now = 0.0
    cache = Cache(lambda: now)
    for document in objects:
        cache.feed(kinds.of(document), document)
    now = after_s
    return cache, Reconciler(
        cast(Cluster, api),
        cache,
        world.settings(),
        Metrics(),
        instance="test",
        on_written=lambda *_: None,
    )


def reconcile(api: Refusing, *objects: Document, after_s: float = 0.0) -> None:
    _, reconciler = start(api, *objects, after_s=after_s)
    asyncio.run(reconciler.reconcile(KEY))


def reason(status: dict[str, Any], type_: str) -> tuple[str, str]:
    found = next(c for c in status["conditions"] if c["type"] == type_)
    return found["reason"], found["message"]


def test_a_refused_secret_is_told_and_keeps_no_other_write_back() -> None:
    api = Refusing("create", "Secret")
    with pytest.raises(RefusedError):
        reconcile(api, world.model())
    assert ("apply", "Pod") in api.taken
    told, message = reason(api.statuses[-1], "Degraded")
    assert told == "WriteRefused"
    assert "Secret/" in message
    assert "quota" in message


def finished_pod() -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "coder-0123456789-0",
            "namespace": world.NAMESPACE,
            "uid": "uid-old",
            "labels": {
                "slipstream.dev/model": "coder",
                "slipstream.dev/revision": "0123456789",
            },
        },
        "spec": {},
        "status": {"phase": "Failed"},
    }


def test_a_refused_deletion_is_told_and_is_no_fault_of_the_template() -> None:
    api = Refusing("delete", "Pod")
    finished = finished_pod()
    with pytest.raises(RefusedError):
        reconcile(api, world.model(), finished)
    status = api.statuses[-1]
    assert reason(status, "Accepted")[0] == "Valid"
    told, message = reason(status, "Degraded")
    assert told == "WriteRefused"
    assert documents.name(finished) in message


def test_the_status_does_not_wait_for_deletions() -> None:
    """A scale-down from 64 took 20 s, in which the status told what no longer mattered."""
    api = Refusing("", "")
    reconcile(api, world.model(), finished_pod())
    deletion = api.taken.index(("delete", "Pod"))
    assert api.taken.index(("status", "InferenceModel")) < deletion
    assert len(api.statuses) == 1


HOOK = 'Internal error occurred: failed calling webhook "w": service "nope" not found'


def test_a_refusal_of_the_last_pass_is_told_until_its_deletion_was_tried_again() -> None:
    api = Refusing("delete", "Pod")
    cache, reconciler = start(api, world.model(), finished_pod())
    for _ in range(2):
        with pytest.raises(RefusedError):
            asyncio.run(reconciler.reconcile(KEY))
        cache.feed(kinds.MODEL, {**world.model(), "status": api.statuses[-1]})
    told = [reason(status, "Degraded")[0] for status in api.statuses]
    # Before the first deletion nothing was known; the second pass has nothing new to say.
    assert told == ["Healthy", "WriteRefused"]


def test_a_webhook_that_does_not_answer_is_told_and_is_no_fault_of_the_template() -> None:
    api = Refusing("apply", "Pod", answer_error(500, HOOK, "PATCH /pods"))
    with pytest.raises(RefusedError):
        reconcile(api, world.model())
    status = api.statuses[-1]
    assert reason(status, "Accepted")[0] == "Valid"
    told, message = reason(status, "Degraded")
    assert told == "WriteRefused"
    assert HOOK in message


def test_a_quantity_that_is_none_is_the_templates_fault_although_the_answer_is_500() -> None:
    words = "failed to convert new object (…): quantities must match the regular expression"
    api = Refusing("apply", "Pod", answer_error(500, words, "PATCH /pods"))
    with pytest.raises(RefusedError):
        reconcile(api, world.model())
    told, message = reason(api.statuses[-1], "Accepted")
    assert told == "InvalidPodTemplate"
    assert "quantities" in message


def test_another_internal_error_is_tried_again_and_tells_nothing_about_the_model() -> None:
    api = Refusing("apply", "Pod", answer_error(500, "etcdserver: leader changed", "PATCH /pods"))
    with pytest.raises(UnavailableError):
        reconcile(api, world.model())
    assert api.statuses == []


def test_an_entry_that_may_not_be_taken_out_is_told_and_keeps_no_other_write_back() -> None:
    api = Refusing("withdraw", "ModelRoute")
    with pytest.raises(RefusedError):
        reconcile(api, world.model(), route("dead"), after_s=FORGOTTEN_AFTER_S + 1)
    assert ("apply", "Pod") in api.taken
    status = api.statuses[-1]
    assert reason(status, "Accepted")[0] == "Valid"
    told, message = reason(status, "Degraded")
    assert told == "WriteRefused"
    assert "entry of gateway s/dead in ModelRoute agents/coder" in message


def test_each_dead_gateways_entry_is_taken_out_for_itself() -> None:
    api = Refusing("", "")
    reconcile(api, world.model(), route("dead", "gone"), after_s=FORGOTTEN_AFTER_S + 1)
    assert api.taken.count(("withdraw", "ModelRoute")) == 2
    young = Refusing("", "")
    reconcile(young, world.model(), route("dead", "gone"), after_s=FORGOTTEN_AFTER_S)
    assert ("withdraw", "ModelRoute") not in young.taken


def test_a_new_owner_of_the_token_brings_no_old_keys_back() -> None:
    def secret(version: str, data: dict[str, str]) -> Document:
        keys = Keys(data, "2026-11-01T12:00:00Z")
        made = children.token_secret(world.NAMESPACE, [], keys, observed=None)
        return {**made, "metadata": {**made["metadata"], "resourceVersion": version}}

    rotated = secret("8", {"current": "new", "previous": "old"})
    api = Guarding(rotated)
    with pytest.raises(ConflictError):
        reconcile(api, world.model(), secret("7", {"current": "old", "next": "new"}))
    assert api.secret == rotated
