"""A small cluster in memory for tests of plan(): objects, kubelet, gateways, a watch cache.

Stands for outside systems only: the API server's writes, Pod lifecycles, acknowledgements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from slipstream_api import names
from slipstream_operator import claims, documents
from slipstream_operator.documents import Document
from slipstream_operator.gateways import Withdrawal
from slipstream_operator.observed import (
    Observed,
    acknowledged,
    gateway_entries,
    gateway_lease,
)
from slipstream_operator.plan import Plan, plan
from slipstream_operator.rotation import Pace
from slipstream_operator.settings import Clients, Settings

START = datetime(2026, 11, 1, 12, 0, 0, tzinfo=UTC)
NAMESPACE = "agents"
TOKEN = "Y3VycmVudA=="

Key = tuple[str, str]  # kind, name


def settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {
        "engine_image": "registry.example/engine:1",
        "engine_resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
        "pod_defaults": {},
        "drain_acknowledge_s": 10,
        "drain_timeout_s": 60,
        "token_pace": Pace(rotate_after_s=None, settle_s=600),
        "clients": Clients("system", ()),
    }
    return Settings(**{**values, **changes})


def model(name: str = "coder", *, generation: int = 1, **spec: Any) -> Document:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "InferenceModel",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "generation": generation,
            "creationTimestamp": "2026-11-01T11:00:00Z",
        },
        "spec": {"model": {"source": "file:///models/tiny.gguf"}, **spec},
    }


def merged(observed: Document, applied: Document) -> Document:
    """Server-side apply, as far as our documents need it: what we say wins, the rest stays."""
    result = dict(observed)
    for key, value in applied.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


@dataclass
class World:
    """`objects` is the truth; `cache` is what the operator saw of it, perhaps some time ago.

    Documents are never changed in place: both may hold the same one.
    """

    now: datetime = START
    objects: dict[Key, Document] = field(default_factory=dict)
    cache: dict[Key, Document] = field(default_factory=dict)
    settings: Settings = field(default_factory=settings)
    writes: int = 0
    _uids: int = 0

    def put(self, document: Document) -> None:
        self.objects[document["kind"], documents.name(document)] = document

    def model(self, name: str = "coder") -> Document:
        return self.objects["InferenceModel", name]

    def of(self, kind: str) -> list[Document]:
        return [d for (k, _), d in sorted(self.objects.items()) if k == kind]

    def pods(self) -> list[Document]:
        return self.of("Pod")

    def route(self, name: str = "coder") -> Document | None:
        return self.objects.get(("ModelRoute", name))

    def edit(self, name: str = "coder", **spec: Any) -> None:
        """A user's edit: another generation where the spec differs."""
        document = self.model(name)
        wanted = {**document["spec"], **spec}
        if wanted != document["spec"]:
            generation = documents.generation(document) + 1
            metadata = {**document["metadata"], "generation": generation}
            self.put({**document, "metadata": metadata, "spec": wanted})

    # The operator

    def sync(self) -> None:
        """The watch catches up."""
        self.cache = dict(self.objects)

    def observe(self, name: str = "coder") -> Observed:
        return observe(list(self.cache.values()), name, self.now)

    def plan(self, name: str = "coder") -> Plan:
        seen = self.cache["InferenceModel", name]
        return plan(seen, self.observe(name), self.settings, self.now, TOKEN)

    def steps(self, decided: Plan, name: str = "coder") -> list[tuple[str, Any]]:
        """One pass as single writes, in order; an operator may die between any two."""
        result: list[tuple[str, Any]] = [("create", d) for d in decided.create]
        result += [("apply", d) for d in decided.apply]
        if decided.status is not None:
            result.append(("status", decided.status))
        result += [("delete", r) for r in decided.delete]
        result += [("withdraw", w) for w in decided.withdraw]
        return result

    def carry_out(self, verb: str, what: Any, name: str = "coder") -> None:
        self.writes += 1
        if verb == "create":
            self._create(what)
        elif verb == "apply":
            self._apply(what)
        elif verb == "delete":
            self._delete(what)
        elif verb == "withdraw":
            self._withdraw(what)
        else:
            self.put({**self.model(name), "status": what})
            self.cache["InferenceModel", name] = self.model(name)

    def reconcile(self, name: str = "coder") -> Plan:
        """One whole pass on a fresh cache."""
        self.sync()
        decided = self.plan(name)
        for verb, what in self.steps(decided, name):
            self.carry_out(verb, what, name)
        return decided

    def settle(self, name: str = "coder", limit: int = 40) -> None:
        """Pass after pass, with healthy Pods, obedient gateways and time, until nothing changes."""
        for _ in range(limit):
            self.finish_deletions()
            for pod in self.pods():
                self.set_ready(documents.name(pod), True)
            self.acknowledge()
            before = self.writes
            decided = self.reconcile(name)
            if self.writes == before and decided.requeue_after_s is None:
                return
            self.now += timedelta(seconds=decided.requeue_after_s or 1)
        raise AssertionError(f"no fixed point: {decided}")

    # The API server and the kubelet

    def _uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids}"

    def _create(self, document: Document) -> None:
        key = (document["kind"], documents.name(document))
        if key not in self.objects:
            self._store_new(document)

    def _store_new(self, document: Document) -> None:
        metadata = {
            **document["metadata"],
            "uid": self._uid(),
            "creationTimestamp": documents.format_time(self.now),
            "generation": 1,
        }
        self._both({**document, "metadata": metadata})

    def _both(self, document: Document) -> None:
        """The API server's answer to a write is in the operator's cache at once."""
        self.put(document)
        self.cache[document["kind"], documents.name(document)] = document

    def _apply(self, document: Document) -> None:
        key = (document["kind"], documents.name(document))
        present = self.objects.get(key)
        if present is None:
            self._store_new(document)
            return
        stored = merged(present, document)
        if stored.get("spec") != present.get("spec"):
            stored["metadata"]["generation"] = documents.generation(present) + 1
        self._both(stored)

    def _delete(self, ref: documents.Ref) -> None:
        present = self.objects.get((ref.kind, ref.name))
        if present is None or (ref.uid is not None and documents.uid(present) != ref.uid):
            return
        if ref.kind == "Pod" and not documents.is_finished(present):
            deleted = {"deletionTimestamp": documents.format_time(self.now)}
            self._both({**present, "metadata": {**present["metadata"], **deleted}})
        else:
            del self.objects[ref.kind, ref.name]
            self.cache.pop((ref.kind, ref.name), None)

    def _withdraw(self, what: Withdrawal) -> None:
        present = self.objects.get(("ModelRoute", what.route.name))
        if present is not None and documents.uid(present) == what.route.uid:
            entries = (present.get("status") or {}).get("gateways") or []
            kept = [e for e in entries if (e["namespace"], e["name"]) != what.gateway]
            self._both({**present, "status": {"gateways": kept}})

    def finish_deletions(self) -> None:
        for pod in self.pods():
            if documents.is_terminating(pod):
                del self.objects["Pod", documents.name(pod)]

    def set_ready(self, name: str, ready: bool) -> None:
        pod = self.objects.get(("Pod", name))
        if pod is None or documents.is_finished(pod):
            return
        old = documents.pod_condition(pod, "Ready")
        wanted = "True" if ready else "False"
        if old is not None and old["status"] == wanted:
            return
        condition = {
            "type": "Ready",
            "status": wanted,
            "lastTransitionTime": documents.format_time(self.now),
        }
        self.put({**pod, "status": {"phase": "Running", "conditions": [condition]}})

    def fail(self, name: str) -> None:
        """Evicted: the Pod ends for good."""
        pod = self.objects.get(("Pod", name))
        if pod is not None:
            status = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
            self.put({**pod, "status": status})

    def vanish(self, name: str) -> None:
        self.objects.pop(("Pod", name), None)

    # Gateways

    def add_gateway(self, name: str, renewed_at: datetime | None = None) -> None:
        """Without a time its Lease is renewed whenever one looks."""
        renewed = (
            "2099-01-01T00:00:00Z" if renewed_at is None else documents.format_time(renewed_at)
        )
        self.put(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": name,
                    "namespace": "system",
                    "labels": {names.LABEL_COMPONENT: "gateway"},
                },
                "spec": {"leaseDurationSeconds": 20, "renewTime": renewed},
            }
        )

    def acknowledge(self, route: str = "coder") -> None:
        """Every gateway takes over the route as it is."""
        document = self.route(route)
        if document is None:
            return
        entries = [
            {
                "name": documents.name(lease),
                "namespace": documents.namespace(lease),
                "observedGeneration": documents.generation(document),
            }
            for lease in self.of("Lease")
        ]
        self.put({**document, "status": {"gateways": entries}})


def silent_s(lease: Document, now: datetime) -> float:
    """How long the watch has brought no newer version: here gateways and we share a clock."""
    return max(0.0, documents.seconds_since(lease["spec"]["renewTime"], now) or 0.0)


def observe(
    everything: list[Document],
    name: str,
    now: datetime,
    entries_silent_s: Mapping[str, float] | None = None,
) -> Observed:
    """The snapshot of one model out of a list of documents. `entries_silent_s`: of gateways
    ("namespace/name") without a Lease; otherwise their entries are new."""

    def children(kind: str) -> tuple[Document, ...]:
        return tuple(
            d
            for d in everything
            if d["kind"] == kind and documents.label(d, names.LABEL_MODEL) == name
        )

    models = [d for d in everything if d["kind"] == "InferenceModel"]
    routes = {documents.name(d): d for d in everything if d["kind"] == "ModelRoute"}
    leases = [gateway_lease(d, silent_s(d, now)) for d in everything if d["kind"] == "Lease"]
    silent_by_lease = {
        documents.where(d): silent_s(d, now) for d in everything if d["kind"] == "Lease"
    }
    entries = {
        gateway: silent_by_lease.get(gateway, (entries_silent_s or {}).get("/".join(gateway), 0.0))
        for gateway in acknowledged(routes.get(name) or {})
    }
    return Observed(
        pods=children("Pod"),
        config_maps=children("ConfigMap"),
        services=children("Service"),
        revisions=children("ControllerRevision"),
        policies=children("NetworkPolicy"),
        route=routes.get(name),
        token=next((d for d in everything if d["kind"] == "Secret"), None),
        claims=tuple(claims.claim(m, routes.get(documents.name(m))) for m in models),
        token_owners=tuple(models),
        gateways=tuple(lease for lease in leases if lease is not None),
        entries=gateway_entries(entries),
    )
