"""Which Pods of a model to start and stop, and where its requests go: pure, one step per call.

The new revision comes up beside the old one; requests move when it can carry them; the old one
leaves after every gateway knows. Knows Pods and a route, not how either is written.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from slipstream_api import names
from slipstream_operator import children, documents
from slipstream_operator.documents import Document
from slipstream_operator.observed import GatewayLease, acknowledged

# An old replica that has not been ready for so long gives its devices to the new revision.
BROKEN_AFTER_S = 30


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a step is decided from."""

    target: str
    desired: int
    pods: tuple[Document, ...]
    route: Document | None
    gateways: tuple[GatewayLease, ...]
    drain_acknowledge_s: int


@dataclass(frozen=True, slots=True)
class Step:
    """`create` holds (revision, ordinal); `routed` is where requests go from now on."""

    routed: str
    create: tuple[tuple[str, int], ...]
    delete: tuple[Document, ...]
    draining: frozenset[str]
    draining_since: str | None
    requeue_after_s: float | None


@dataclass(frozen=True, slots=True)
class _Drain:
    """What the gateways have been told, and whether they all know."""

    routed: str | None
    pods: frozenset[str]
    since: str | None
    is_done: bool
    remaining_s: float


def routed_revision(route: Document | None) -> str | None:
    for track in _tracks(route):
        if track.get("name") == names.TRACK_STABLE:
            return str(track.get("revision"))
    return None


def serving_revision(route: Document | None, pods: Iterable[Document]) -> str | None:
    """The revision that requests go to. A route that was deleted by hand is made again for the one
    that carried them: that with the most ready Pods."""
    if route is not None:
        return routed_revision(route)
    ready = Counter(
        revision
        for p in pods
        if documents.is_ready(p)
        and (revision := documents.label(p, names.LABEL_REVISION)) is not None
    )
    return max(ready, key=lambda revision: (ready[revision], revision), default=None)


def _tracks(route: Document | None) -> Sequence[Document]:
    return ((route or {}).get("spec") or {}).get("tracks") or []


def live(pods: Iterable[Document], revision: str) -> list[Document]:
    """The Pods of a revision that run or may still run, by ordinal."""
    found = [
        p
        for p in pods
        if documents.label(p, names.LABEL_REVISION) == revision
        and not documents.is_terminating(p)
        and not documents.is_finished(p)
    ]
    return sorted(found, key=ordinal)


def ordinal(pod: Document) -> int:
    text = documents.name(pod).rpartition("-")[2]
    return int(text) if text.isdecimal() else -1


def next_step(fleet: Fleet, now: datetime) -> Step:
    """Called again after every change; the same fleet and time give the same step."""
    drain = _drain(fleet, now)
    routed = _routed(fleet, drain.routed)
    create: list[tuple[str, int]] = []
    delete = [p for p in fleet.pods if documents.is_finished(p) and not documents.is_terminating(p)]
    draining: set[str] = set()
    waits: list[float] = []

    for revision in sorted({fleet.target, routed}):
        create += [(revision, o) for o in _missing(fleet, revision, routed)]
        for victim in _surplus(fleet, revision, drain.pods):
            is_routed = revision in (routed, drain.routed)
            name = documents.name(victim)
            if not is_routed or not documents.is_ready(victim):
                delete.append(victim)
            elif name in drain.pods and drain.is_done:
                delete.append(victim)
                draining.add(name)
            else:
                draining.add(name)
                waits.append(drain.remaining_s)
    delete += _broken(fleet, routed, now, waits)
    delete += _abandoned(fleet, routed, drain, waits)

    moved = drain.routed is not None and routed != drain.routed
    is_new = moved or bool(draining - drain.pods)
    return Step(
        routed=routed,
        create=tuple(create),
        delete=tuple(delete),
        draining=frozenset(draining),
        draining_since=documents.format_time(now) if is_new else drain.since,
        requeue_after_s=min(waits, default=None),
    )


def _drain(fleet: Fleet, now: datetime) -> _Drain:
    route = fleet.route
    if route is None:
        serving = serving_revision(None, fleet.pods)
        return _Drain(serving, frozenset(), None, True, 0.0)
    pods = frozenset(str(p) for t in _tracks(route) for p in t.get("drainingPods") or [])
    since = documents.annotation(route, children.ANNOTATION_DRAINING_SINCE)
    age_s = documents.seconds_since(since, now)
    # Without a time nothing was ever drained here.
    remaining_s = 0.0 if age_s is None else max(0.0, fleet.drain_acknowledge_s - age_s)
    is_done = remaining_s == 0.0 or has_acknowledged(route, fleet.gateways)
    return _Drain(routed_revision(route), pods, since, is_done, max(remaining_s, 0.5))


def has_acknowledged(route: Document, gateways: Iterable[GatewayLease]) -> bool:
    """Whether every living gateway has taken over this generation of the route."""
    seen = acknowledged(route)
    wanted = documents.generation(route)
    return all(seen.get((g.namespace, g.name), -1) >= wanted for g in gateways if g.is_alive)


def _routed(fleet: Fleet, current: str | None) -> str:
    """Requests move once the new revision carries as much as the old one does."""
    if current is None or current == fleet.target:
        return fleet.target
    ready_new = sum(documents.is_ready(p) for p in live(fleet.pods, fleet.target))
    ready_old = sum(documents.is_ready(p) for p in live(fleet.pods, current))
    enough = ready_new >= max(1, min(fleet.desired, ready_old))
    return fleet.target if enough or fleet.desired == 0 else current


def _missing(fleet: Fleet, revision: str, routed: str) -> list[int]:
    """The ordinals to start. A finished Pod keeps its name until its successor takes it."""
    present = live(fleet.pods, revision)
    of_revision = [p for p in fleet.pods if documents.label(p, names.LABEL_REVISION) == revision]
    is_old = revision == routed != fleet.target
    if is_old and not any(documents.is_ready(p) for p in present):
        return []  # it serves nobody: the new revision is the repair
    finished = [
        p for p in of_revision if documents.is_finished(p) and not documents.is_terminating(p)
    ]
    count = fleet.desired - len(present) - len(finished)
    used = {ordinal(p) for p in of_revision}
    free = (o for o in range(fleet.desired + len(used) + 1) if o not in used)
    return [o for o, _ in zip(free, range(count), strict=False)]


def _surplus(fleet: Fleet, revision: str, draining: frozenset[str]) -> list[Document]:
    """The victims of a scale-down: those already draining, then unready ones, then the last."""
    present = live(fleet.pods, revision)
    count = max(0, len(present) - fleet.desired)
    ranked = sorted(
        present,
        key=lambda p: (documents.name(p) not in draining, documents.is_ready(p), -ordinal(p)),
    )
    return ranked[:count]


def _broken(fleet: Fleet, routed: str, now: datetime, waits: list[float]) -> list[Document]:
    """Old replicas that a replacement need not wait for; they may hold what it lacks."""
    if routed == fleet.target:
        return []
    gone: list[Document] = []
    present = live(fleet.pods, routed)
    if any(documents.is_ready(p) for p in present):
        return []
    for pod in present:
        condition = documents.pod_condition(pod, "Ready") or {}
        since = condition.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
        age_s = documents.seconds_since(since, now)
        if age_s is None or age_s >= BROKEN_AFTER_S:
            gone.append(pod)
        else:
            waits.append(BROKEN_AFTER_S - age_s)
    return gone


def _abandoned(fleet: Fleet, routed: str, drain: _Drain, waits: list[float]) -> list[Document]:
    """Pods of every other revision: unready ones at once, ready ones when no gateway sends."""
    gone: list[Document] = []
    for pod in fleet.pods:
        revision = documents.label(pod, names.LABEL_REVISION)
        if revision in (fleet.target, routed):
            continue
        if documents.is_terminating(pod) or documents.is_finished(pod):
            continue
        # This pass moves requests away from it; the gateways do not know yet.
        is_leaving = revision == drain.routed
        if not documents.is_ready(pod) or (drain.is_done and not is_leaving):
            gone.append(pod)
        else:
            waits.append(max(drain.remaining_s, 0.5))
    return gone
