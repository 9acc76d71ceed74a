"""The status of one model: computed from what was observed, never from what was just asked for.

Pure; `plan` hands over the facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from slipstream_api import names
from slipstream_api.conditions import Condition, ConditionType, Reason, Truth, upsert
from slipstream_api.inferencemodel import InferenceModelStatus, Resolved
from slipstream_operator import diagnosis, documents, rollout
from slipstream_operator.diagnosis import Finding
from slipstream_operator.documents import Document
from slipstream_operator.observed import Refusal


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition before it has a generation and a time."""

    status: Truth
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the conditions are computed from. `target` None: the spec cannot be run."""

    model: Document
    pods: tuple[Document, ...]
    accepted: Verdict
    target: str | None
    routed: str | None
    has_route: bool  # False beside `routed`: what served before somebody deleted the route
    desired: int
    refusal: tuple[str, Refusal] | None  # a refused child and why
    leaving: frozenset[str]  # Pods whose end is decided: what ails them says nothing any more
    resolved: Resolved | None


def previous(model: Document) -> InferenceModelStatus:
    """The status as it stands; one that cannot be read counts as absent."""
    try:
        return InferenceModelStatus.model_validate(model.get("status") or {})
    except ValidationError:
        return InferenceModelStatus()


def compute(facts: Facts, now: datetime) -> dict[str, Any]:
    """The whole status document."""
    before = previous(facts.model)
    everyone = [
        p for p in facts.pods if not documents.is_terminating(p) and not documents.is_finished(p)
    ]
    updated = rollout.live(facts.pods, facts.target) if facts.target else []
    finding = _finding(facts, now)
    generation = documents.generation(facts.model)
    conditions = list(before.conditions)
    for type_, verdict in (
        (ConditionType.ACCEPTED, facts.accepted),
        (ConditionType.PROGRESSING, _progressing(facts, everyone)),
        (ConditionType.DEGRADED, _degraded(facts, finding)),
        (ConditionType.READY, _ready(facts, finding, now)),
    ):
        conditions = upsert(
            conditions,
            type_,
            verdict.status,
            verdict.reason,
            verdict.message,
            generation=generation,
            now=documents.format_time(now),
        )
    status = InferenceModelStatus(
        observed_generation=generation,
        replicas=len(everyone),
        ready_replicas=sum(documents.is_ready(p) for p in everyone),
        updated_replicas=len(updated),
        selector=_selector(documents.name(facts.model)),
        resolved=facts.resolved,
        conditions=_unique(conditions),
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _unique(conditions: Sequence[Condition]) -> list[Condition]:
    return list({c.type: c for c in conditions}.values())


def _selector(model: str) -> str:
    return f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_MODEL}={model}"


def _finding(facts: Facts, now: datetime) -> Finding | None:
    """What is wrong with the revision that should run; else with the one that does."""
    if facts.refusal is not None:
        what, refusal = facts.refusal
        reason = (
            Reason.INVALID_POD_TEMPLATE
            if facts.accepted.reason is Reason.INVALID_POD_TEMPLATE
            else Reason.WRITE_REFUSED
        )
        return Finding(reason, f"{what}: {refusal.message}")
    for revision in dict.fromkeys((facts.target, facts.routed)):
        found = diagnosis.worst(_staying(facts, revision), now)
        if found is not None:
            return found
    return None


def _staying(facts: Facts, revision: str | None) -> list[Document]:
    """The Pods of a revision that are to run on, and those that ended by themselves."""
    return [
        p
        for p in facts.pods
        if revision is not None
        and documents.label(p, names.LABEL_REVISION) == revision
        and not documents.is_terminating(p)
        and documents.name(p) not in facts.leaving
    ]


def _counts(facts: Facts, revision: str | None) -> tuple[int, int]:
    pods = rollout.live(facts.pods, revision) if revision else []
    return sum(documents.is_ready(p) for p in pods), len(pods)


def _ready(facts: Facts, finding: Finding | None, now: datetime) -> Verdict:
    ready, total = _counts(facts, facts.target)
    still = _still_serving(facts)
    if facts.target is None:
        return Verdict("False", facts.accepted.reason, facts.accepted.message + still)
    if facts.desired == 0:
        return Verdict("False", Reason.SCALED_TO_ZERO, "scaling.replicas is 0")
    progress = f"{min(ready, facts.desired)} of {facts.desired} replicas ready"
    is_routed = facts.has_route and facts.routed == facts.target
    if is_routed and ready >= facts.desired and facts.accepted.reason is not Reason.INVALID_SPEC:
        if facts.accepted.reason is Reason.NAME_TAKEN:
            # What runs is whole, but whoever asks for the taken name gets another model.
            own = names.qualified_name(*documents.where(facts.model))
            message = f"{progress}, reached as {own}; {facts.accepted.message}"
            return Verdict("False", Reason.NAME_TAKEN, message)
        return Verdict("True", Reason.ALL_REPLICAS_READY, progress)
    if finding is not None:
        return Verdict("False", finding.reason, f"{progress}; {finding.message}{still}")
    if facts.routed is not None and not facts.has_route:
        return Verdict("False", Reason.STARTING, f"{progress}; the route is being made{still}")
    words = diagnosis.waiting(_staying(facts, facts.target), now)
    waits = f"; {words}" if words is not None else ""
    if not is_routed and facts.routed is not None:
        message = f"{progress} of revision {facts.target}{waits}{still}"
        return Verdict("False", Reason.REPLACING, message)
    if ready == 0:
        reason = Reason.STARTING if total or not _was_ready(facts) else Reason.NO_READY_REPLICA
        return Verdict("False", reason, progress + waits)
    return Verdict("False", Reason.SOME_REPLICAS_UNREADY, progress + waits)


def _was_ready(facts: Facts) -> bool:
    return previous(facts.model).ready_replicas > 0


def _still_serving(facts: Facts) -> str:
    if facts.routed is None or facts.routed == facts.target:
        return ""
    ready, _ = _counts(facts, facts.routed)
    if ready == 0:
        return f"; revision {facts.routed} is not ready either"
    return f"; revision {facts.routed} still serves with {ready} ready"


def _progressing(facts: Facts, everyone: Sequence[Document]) -> Verdict:
    if facts.target is None:
        return Verdict("False", facts.accepted.reason, "nothing changes until the spec is valid")
    ready, total = _counts(facts, facts.target)
    if facts.routed not in (None, facts.target):
        message = f"revision {facts.target} replaces {facts.routed}"
        return Verdict("True", Reason.REPLACING, message)
    if len(everyone) > total:
        return Verdict("True", Reason.DRAINING, f"{len(everyone) - total} old replicas leave")
    if total != facts.desired:
        return Verdict("True", Reason.SCALING, f"{total} replicas, {facts.desired} wanted")
    if ready < total:
        return Verdict("True", Reason.STARTING, f"{total - ready} of {total} replicas start")
    return Verdict("False", Reason.STABLE, f"revision {facts.target}")


def _degraded(facts: Facts, finding: Finding | None) -> Verdict:
    if finding is not None:
        return Verdict("True", finding.reason, finding.message)
    return Verdict("False", Reason.HEALTHY, "no failure observed")
