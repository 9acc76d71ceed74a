"""One pass, decided: from a model and a snapshot to the writes and the status. Pure.

The same input gives the same plan; a plan that was carried out gives a plan without writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from slipstream_api import names
from slipstream_api.conditions import ConditionType, Reason, find
from slipstream_api.inferencemodel import InferenceModelSpec, Resolved, Scaling
from slipstream_operator import (
    children,
    claims,
    diagnosis,
    documents,
    gateways,
    revisions,
    rollout,
    rotation,
)
from slipstream_operator import status as statuses
from slipstream_operator.documents import Document, Ref
from slipstream_operator.gateways import Withdrawal
from slipstream_operator.merge import MergeError
from slipstream_operator.observed import Observed, Refusal
from slipstream_operator.rollout import Fleet, Step
from slipstream_operator.rotation import Keys
from slipstream_operator.settings import Settings
from slipstream_operator.status import Facts, Verdict
from slipstream_operator.template import Rendered

# Refusals (403) that no other podTemplate would avoid.
_CIRCUMSTANCES = (
    "exceeded quota",
    "is being terminated",
    "failed calling webhook",
    ' cannot create resource "',
    ' cannot patch resource "',
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth an entry in `kubectl describe`."""

    type: str  # Normal | Warning
    reason: str
    action: str
    note: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`create` must not overwrite what is there; `apply` is server-side applied, in order."""

    create: tuple[Document, ...] = ()
    apply: tuple[Document, ...] = ()
    delete: tuple[Ref, ...] = ()
    withdraw: tuple[Withdrawal, ...] = ()
    status: dict[str, Any] | None = None  # None: it stands already
    requeue_after_s: float | None = None
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class _Goal:
    """What should run: a revision and how many of it."""

    rendered: Rendered
    spec_hash: str | None  # None: keep what is there, the spec means nothing
    desired: int


def plan(
    model: Document,
    observed: Observed,
    settings: Settings,
    now: datetime,
    fresh_token: str,
) -> Plan:
    """What to write for one model. `fresh_token`: a base64 key, used only where one begins."""
    if documents.is_terminating(model):
        return Plan()
    goal, accepted = _goal(model, observed, settings)
    if goal is None:
        return _finish(model, observed, now, None, accepted, Plan())
    recorded = [revisions.read(document) for document in observed.revisions]
    by_revision = {r.revision: r for r in (*recorded, goal.rendered) if r is not None}
    step = rollout.next_step(
        Fleet(
            target=goal.rendered.revision,
            desired=goal.desired,
            pods=observed.pods,
            route=observed.route,
            gateways=observed.gateways,
            drain_acknowledge_s=settings.drain_acknowledge_s,
        ),
        now,
    )
    own = claims.claim(model, observed.route)
    granted, losses = claims.settle(own, observed.claims)
    if losses and accepted.status == "True":
        message = "; ".join(f"{x.field}: {x.name!r} is served by {x.owner}" for x in losses)
        accepted = Verdict("False", Reason.NAME_TAKEN, message)
    pods = _new_pods(model, observed, step, by_revision)
    refusal = _refusal(observed, pods)
    if refusal is not None and is_template_fault(*refusal):
        accepted = Verdict(
            "False", Reason.INVALID_POD_TEMPLATE, f"spec.podTemplate: {refusal[1].message}"
        )
    wanted = [
        *_policy(model, settings),
        *_revision_children(model, observed, goal, step, by_revision),
        *pods,
        _route(model, step, granted),
    ]
    token = _token(model, observed, settings, now, fresh_token)
    is_new = observed.token is None
    unwanted = (*step.delete, *_garbage(observed, goal, step, settings))
    due_s = (
        step.requeue_after_s,
        token.due_after_s,
        diagnosis.due_after_s(observed.pods, now),
    )
    waits_s = [s for s in due_s if s is not None]
    writes = Plan(
        create=(token.secret,) if is_new else (),
        apply=_changed(wanted if is_new else [token.secret, *wanted], observed),
        delete=tuple(documents.ref(d, with_uid=True) for d in unwanted),
        withdraw=gateways.withdrawals(observed.route, observed.entries),
        requeue_after_s=min(waits_s, default=None),
    )
    leaving = frozenset(documents.name(p) for p in step.delete if not documents.is_finished(p))
    return _finish(model, observed, now, goal, accepted, writes, leaving)


def _goal(model: Document, observed: Observed, settings: Settings) -> tuple[_Goal | None, Verdict]:
    """The revision to run; an invalid spec keeps the one that requests go to (or would go to,
    where somebody deleted the route)."""
    try:
        spec = InferenceModelSpec.model_validate(model.get("spec"))
        rendered = revisions.resolve(
            documents.namespace(model),
            documents.name(model),
            spec,
            observed.revisions,
            settings,
        )
    except ValidationError as error:
        verdict = Verdict("False", Reason.INVALID_SPEC, _first_error(error))
    except MergeError as error:
        verdict = Verdict("False", Reason.INVALID_POD_TEMPLATE, str(error))
    else:
        goal = _Goal(rendered, revisions.spec_hash(spec), spec.scaling.replicas)
        return goal, Verdict("True", Reason.VALID, "the spec is valid")
    routed = rollout.serving_revision(observed.route, observed.pods)
    document = revisions.by_name(observed.revisions, routed) if routed else None
    kept = revisions.read(document) if document else None
    if kept is None:
        return None, verdict
    # The last good children stay, as many as the spec still says where that much of it is good.
    live = len(rollout.live(observed.pods, kept.revision))
    return _Goal(kept, None, _replicas(model, otherwise=live)), verdict


def _replicas(model: Document, *, otherwise: int) -> int:
    """spec.scaling.replicas of a spec that is bad elsewhere; `otherwise` where it is bad too."""
    try:
        return Scaling.model_validate((model.get("spec") or {}).get("scaling")).replicas
    except (ValidationError, AttributeError):
        return otherwise


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    path = "spec"
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"{path}: {first['msg']}"


def _revision_children(
    model: Document,
    observed: Observed,
    goal: _Goal,
    step: Step,
    by_revision: dict[str, Rendered],
) -> list[Document]:
    """ControllerRevision first: what runs must be on record before it runs."""
    result: list[Document] = []
    if goal.spec_hash is not None:
        present = revisions.by_name(observed.revisions, goal.rendered.revision)
        number = (
            revisions.number(present)
            if present is not None
            else revisions.next_number(observed.revisions)
        )
        result.append(
            children.controller_revision(
                model, goal.rendered, spec_hash=goal.spec_hash, number=number
            )
        )
    for revision in dict.fromkeys((goal.rendered.revision, step.routed)):
        if revision in by_revision:
            result.append(children.config_map(model, by_revision[revision]))
        result.append(children.service(model, revision))
    return result


def _new_pods(
    model: Document, observed: Observed, step: Step, by_revision: dict[str, Rendered]
) -> list[Document]:
    pods = [
        children.pod(model, by_revision[revision], ordinal)
        for revision, ordinal in step.create
        if revision in by_revision
    ]
    refused = [p for p in pods if _key(p) in observed.refusals]
    # One is enough to learn whether the API server takes them by now.
    return refused[:1] if refused else pods


def _key(document: Document) -> str:
    return f"{document['kind']}/{documents.name(document)}"


def _refusal(observed: Observed, pods: Sequence[Document]) -> tuple[str, Refusal] | None:
    for document in pods:
        refusal = observed.refusals.get(_key(document))
        if refusal is not None:
            return _key(document), refusal
    return next(iter(sorted(observed.refusals.items())), None)


def is_template_fault(what: str, refusal: Refusal) -> bool:
    """Whether the Pod itself is at fault, not a quota, a missing permission or the namespace."""
    return what.startswith("Pod/") and not any(words in refusal.message for words in _CIRCUMSTANCES)


def _route(model: Document, step: Step, granted: Sequence[str]) -> Document:
    return children.route(
        model,
        client_names=granted,
        revision=step.routed,
        draining_pods=step.draining,
        draining_since=step.draining_since,
    )


def _policy(model: Document, settings: Settings) -> list[Document]:
    """Before the Pods that it is for."""
    if settings.clients is None:
        return []
    return [children.network_policy(model, settings.clients)]


@dataclass(frozen=True, slots=True)
class _Token:
    """The namespace's token as it should be, and when to look at it again."""

    secret: Document
    due_after_s: float | None


def _token(
    model: Document, observed: Observed, settings: Settings, now: datetime, fresh: str
) -> _Token:
    """The list of owners follows the models, the keys follow the rotation's pace."""
    namespace = documents.namespace(model)
    owners = [m for m in observed.token_owners if not documents.is_terminating(m)] or [model]
    keys = Keys({}, None) if observed.token is None else children.token_keys(observed.token)
    turn = rotation.advance(keys, settings.token_pace, fresh, now)
    secret = children.token_secret(namespace, owners, turn.keys, observed=observed.token)
    return _Token(secret, turn.due_after_s)


def _changed(wanted: Sequence[Document], observed: Observed) -> tuple[Document, ...]:
    """Only what differs, so that a steady state writes nothing."""
    present: dict[str, Document] = {}
    groups = (
        observed.pods,
        observed.config_maps,
        observed.services,
        observed.revisions,
        observed.policies,
    )
    for document in [d for group in groups for d in group]:
        present[_key(document)] = document
    for single in (observed.route, observed.token):
        if single is not None:
            present[_key(single)] = single
    return tuple(d for d in wanted if not documents.covers(present.get(_key(d)), d))


def _garbage(observed: Observed, goal: _Goal, step: Step, settings: Settings) -> list[Document]:
    """Services and ConfigMaps of revisions without Pods, revisions nobody will go back to, and
    NetworkPolicies where the settings want none."""
    used = {goal.rendered.revision, step.routed, rollout.routed_revision(observed.route)}
    used |= {documents.label(p, names.LABEL_REVISION) for p in observed.pods}
    held = frozenset(revision for revision in used if revision is not None)
    idle = [
        d
        for d in (*observed.services, *observed.config_maps)
        if documents.label(d, names.LABEL_REVISION) not in held
    ]
    if settings.clients is None:
        idle += observed.policies
    idle += revisions.expired(observed.revisions, held)
    return [d for d in idle if not documents.is_terminating(d)]


def _finish(
    model: Document,
    observed: Observed,
    now: datetime,
    goal: _Goal | None,
    accepted: Verdict,
    writes: Plan,
    leaving: frozenset[str] = frozenset(),
) -> Plan:
    """The plan with what the status says of the snapshot."""
    before = statuses.previous(model)
    is_runnable = goal is not None and goal.spec_hash is not None
    resolved = before.resolved
    if goal is not None and goal.spec_hash is not None:
        resolved = Resolved(
            spec_hash=goal.spec_hash,
            revision=goal.rendered.revision,
            image=goal.rendered.image,
            source=goal.rendered.source,
            pod_defaults_digest=goal.rendered.pod_defaults_digest,
        )
    document = statuses.compute(
        Facts(
            model=model,
            pods=observed.pods,
            accepted=accepted,
            target=goal.rendered.revision if goal is not None and is_runnable else None,
            routed=rollout.serving_revision(observed.route, observed.pods),
            has_route=observed.route is not None,
            desired=goal.desired if goal is not None else 0,
            refusal=next(iter(sorted(observed.refusals.items())), None),
            leaving=leaving,
            resolved=resolved,
        ),
        now,
    )
    return replace(
        writes,
        status=None if document == (model.get("status") or {}) else document,
        events=_events(model, document),
    )


def _events(model: Document, status: dict[str, Any]) -> tuple[Event, ...]:
    """One event per change of a condition that a person waits for."""
    before = statuses.previous(model).conditions
    after = statuses.previous({**model, "status": status}).conditions
    result: list[Event] = []
    for type_ in (ConditionType.ACCEPTED, ConditionType.PROGRESSING, ConditionType.READY):
        old, new = find(before, type_), find(after, type_)
        if new is None or (
            old is not None and (old.status, old.reason) == (new.status, new.reason)
        ):
            continue
        calm = new.status == "True" or type_ is ConditionType.PROGRESSING
        expected = new.reason in (Reason.STARTING, Reason.REPLACING, Reason.SCALED_TO_ZERO)
        result.append(
            Event(
                type="Normal" if calm or expected else "Warning",
                reason=new.reason,
                action=f"Set{type_.value}",
                note=f"{type_.value}={new.status}: {new.message}"[:1024],
            )
        )
    return tuple(result)
