"""What the watches have told so far: the newest known version of every object in scope.

Knows no network: watches, lists and answers to our own writes feed it, in any order. Order comes
from resource versions, which the API server defines as comparable numbers (Kubernetes 1.35).
Gateways' signs of life are noted here, by this process's clock (`signs`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slipstream_api import names
from slipstream_operator import claims, documents, kinds
from slipstream_operator.documents import Document
from slipstream_operator.kinds import Kind
from slipstream_operator.observed import (
    Observed,
    Refusal,
    acknowledged,
    gateway_entries,
    gateway_lease,
)
from slipstream_operator.signs import Signs

Key = tuple[str, str]  # namespace, model
_Name = tuple[str, str]


def _version(document: Mapping[str, Any]) -> int:
    return documents.order(documents.version(document))


class Cache:
    """Objects by kind and name, and children by model. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._objects: dict[str, dict[_Name, Document]] = {k.kind: {} for k in kinds.WATCHED}
        self._gone: dict[str, dict[_Name, int]] = {k.kind: {} for k in kinds.WATCHED}
        self._children: dict[tuple[str, Key], set[_Name]] = defaultdict(set)
        self._signs = Signs()

    def feed(self, kind: Kind, document: Document, *, deleted: bool = False) -> bool:
        """Take one version of one object; whether it was news."""
        where = documents.where(document)
        version = _version(document)
        known = self._objects[kind.kind].get(where)
        if known is not None and version and version <= _version(known):
            # A deletion carries a version of its own; an equal one is a repetition.
            return False
        if version and version <= self._gone[kind.kind].get(where, -1):
            return False
        if deleted:
            self._gone[kind.kind][where] = version
            self._lose(kind, where)
            return known is not None
        self._put(kind, where, document)
        return True

    def take(self, kind: Kind, document: Document, *, deleted: bool = False) -> set[Key]:
        """Feed, and name the models that news concerns: by what was known before, too, since
        someone may wait for a name that it held."""
        before = self.get(kind, *documents.where(document))
        if not self.feed(kind, document, deleted=deleted):
            return set()
        keys = self.concerned(kind, document)
        return keys | self.concerned(kind, before) if before is not None else keys

    def replace(
        self,
        kind: Kind,
        items: Iterable[Document],
        version: str,
        *,
        namespace: str | None = None,
    ) -> list[Document]:
        """Take a whole list (of one namespace or of all); returns what was news or is missing.

        Watches tell nothing of deletions that fell into a gap: a list does.
        """
        at = documents.order(version)
        news: list[Document] = []
        listed: set[_Name] = set()
        for document in items:
            listed.add(documents.where(document))
            if self.feed(kind, document):
                news.append(document)
        for where, document in list(self._objects[kind.kind].items()):
            if namespace is not None and where[0] != namespace:
                continue
            if where not in listed and _version(document) <= at:
                self._lose(kind, where)
                news.append(document)
        gone = self._gone[kind.kind]
        for where in [w for w, v in gone.items() if v <= at and namespace in (None, w[0])]:
            del gone[where]
        return news

    def get(self, kind: Kind, namespace: str, name: str) -> Document | None:
        return self._objects[kind.kind].get((namespace, name))

    def all(self, kind: Kind) -> tuple[Document, ...]:
        return tuple(self._objects[kind.kind].values())

    def models(self) -> list[Key]:
        return list(self._objects[kinds.MODEL.kind])

    def observe(self, key: Key, refusals: Mapping[str, Refusal]) -> Observed:
        """One model's snapshot."""
        namespace, model = key
        models = self.all(kinds.MODEL)
        now = self._clock()
        leases = (
            gateway_lease(document, self._signs.lease_silent_s(where, now))
            for where, document in self._objects[kinds.LEASE.kind].items()
        )
        return Observed(
            pods=self._of(kinds.POD, key),
            config_maps=self._of(kinds.CONFIG_MAP, key),
            services=self._of(kinds.SERVICE, key),
            revisions=self._of(kinds.REVISION, key),
            policies=self._of(kinds.POLICY, key),
            route=self.get(kinds.ROUTE, namespace, model),
            token=self.get(kinds.SECRET, namespace, names.TOKEN_SECRET),
            claims=tuple(
                claims.claim(m, self.get(kinds.ROUTE, *documents.where(m)))
                for m in models
                if not documents.is_terminating(m)
            ),
            token_owners=tuple(m for m in models if documents.namespace(m) == namespace),
            gateways=tuple(lease for lease in leases if lease is not None),
            entries=gateway_entries(self._signs.entries_silent_s(key, now)),
            refusals=dict(refusals),
        )

    def concerned(self, kind: Kind, document: Document) -> set[Key]:
        """The models whose plan may change with this object."""
        namespace, name = documents.where(document)
        if kind is kinds.LEASE:
            return set()  # gateways renew theirs all the time; drains wait by a timer
        if kind is kinds.SECRET:
            return {key for key in self.models() if key[0] == namespace}
        if kind in (kinds.MODEL, kinds.ROUTE):
            return {(namespace, name)} | self._rivals(kind, document)
        model = documents.label(document, names.LABEL_MODEL)
        return {(namespace, model)} if model is not None else set()

    def _rivals(self, kind: Kind, document: Document) -> set[Key]:
        """Models that share a client-visible name with this one, and those of its namespace
        when it comes or goes (they own the token together)."""
        if kind is kinds.ROUTE:
            wanted = set((document.get("spec") or {}).get("names") or [])
        else:
            wanted = set(claims.claim(document, None).wanted)
        rivals: set[Key] = set()
        for model in self.all(kinds.MODEL):
            if wanted & set(claims.claim(model, None).wanted):
                rivals.add(documents.where(model))
        return rivals

    def _of(self, kind: Kind, key: Key) -> tuple[Document, ...]:
        objects = self._objects[kind.kind]
        return tuple(objects[where] for where in sorted(self._children[kind.kind, key]))

    def _put(self, kind: Kind, where: _Name, document: Document) -> None:
        self._drop(kind, where)
        document["metadata"].pop("managedFields", None)  # large, and of no use here
        self._objects[kind.kind][where] = document
        if kind is kinds.LEASE:
            self._signs.lease_changed(where, self._clock())
        elif kind is kinds.ROUTE:
            self._signs.route_says(where, acknowledged(document), self._clock())
        model = documents.label(document, names.LABEL_MODEL)
        if model is not None:
            self._children[kind.kind, (where[0], model)].add(where)

    def _lose(self, kind: Kind, where: _Name) -> None:
        """The object is there no more."""
        self._drop(kind, where)
        if kind is kinds.LEASE:
            self._signs.lease_gone(where, self._clock())
        elif kind is kinds.ROUTE:
            self._signs.route_gone(where)

    def _drop(self, kind: Kind, where: _Name) -> None:
        document = self._objects[kind.kind].pop(where, None)
        model = documents.label(document, names.LABEL_MODEL) if document else None
        if model is not None:
            self._children[kind.kind, (where[0], model)].discard(where)
