"""Why a Pod is not ready, in words that a person can act on. Pure; reads Pod status only."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from slipstream_api import failure, names
from slipstream_api.conditions import Reason
from slipstream_operator import documents
from slipstream_operator.documents import Document

_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CREATE_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "PreCreateHookError",
        "PostStartHookError",
    }
)
_STARTUP_REASONS = {
    reason.value: reason
    for reason in (Reason.MODEL_NOT_FOUND, Reason.MODEL_INVALID, Reason.CONFIG_INVALID)
}
# From the third restart on it is a loop, also in the moments when the kubelet has just started it.
_LOOP_RESTARTS = 3
# A container that has run for so long is out of it: the kubelet forgets its back-off then, too, and
# no start-up probe of ours waits longer. Why it ended before says nothing about today.
_FORGOTTEN_AFTER_S = 600
# A start that takes longer is told with what it waits for, and no longer with the end before it.
_LONG_S = 60
# The kubelet takes Ready back before it starts a container anew; both are told in whole seconds.
_SLACK_S = 2
_MAX_MESSAGE_LEN = 1024

# Where a user finds what an engine names by the path in its own configuration.
_SPEC_FIELDS = {
    "model.path": "spec.model.source",
    "model.maxContext": "spec.model.maxContext",
    "model.toolCallFormat": "spec.model.toolCallFormat",
    "model.reasoningFormat": "spec.model.reasoningFormat",
}

# What a person should read first when replicas fail in different ways.
_ORDER = (
    Reason.MODEL_NOT_FOUND,
    Reason.MODEL_INVALID,
    Reason.CONFIG_INVALID,
    Reason.CRASH_LOOP,
    Reason.IMAGE_PULL_FAILED,
    Reason.CLAIM_NOT_FOUND,
    Reason.UNSCHEDULABLE,
    Reason.CONTAINER_FAILED,
    Reason.NODE_NOT_READY,
)


@dataclass(frozen=True, slots=True)
class Finding:
    reason: Reason
    message: str


def worst(pods: Iterable[Document], now: datetime) -> Finding | None:
    """The finding to show for a set of Pods; None when nothing is wrong with any."""
    found = [(explain(pod, now), documents.name(pod)) for pod in pods]
    findings = [(finding, name) for finding, name in found if finding is not None]
    if not findings:
        return None
    finding, name = min(findings, key=lambda pair: (_ORDER.index(pair[0].reason), pair[1]))
    return Finding(finding.reason, f"pod {name}: {finding.message}"[:_MAX_MESSAGE_LEN])


def explain(pod: Mapping[str, Any], now: datetime) -> Finding | None:
    """Why this Pod is not ready; None when it is, or when it is merely on its way."""
    if documents.is_ready(pod):
        return None
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        words = [str(status[key]) for key in ("reason", "message") if status.get(key)]
        if words:
            return Finding(Reason.CONTAINER_FAILED, ": ".join(words))
    scheduled = documents.pod_condition(pod, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        return _unscheduled(str(scheduled.get("message") or scheduled.get("reason") or ""))
    if _is_lost(pod):
        node = (pod.get("spec") or {}).get("nodeName")
        return Finding(Reason.NODE_NOT_READY, f"its node {node} does not report")
    for container in _containers(status):
        if not container.is_done:
            finding = _container(container, pod, now)
            if finding is not None:
                return replace(finding, message=f"{container.prefix}{finding.message}")
    return None


def waiting(pods: Iterable[Document], now: datetime) -> str | None:
    """What the first Pod that takes long to start waits for; None when none does or is known."""
    told = ((documents.name(pod), _waits_for(pod, now)) for pod in pods)
    found = min(((name, words) for name, words in told if words is not None), default=None)
    return None if found is None else f"pod {found[0]}: {found[1]}"[:_MAX_MESSAGE_LEN]


def due_after_s(pods: Iterable[Document], now: datetime) -> float | None:
    """When time alone may change what is said of these Pods; None: not before they change."""
    waits_s: list[float] = []
    for pod in pods:
        if documents.is_ready(pod) or documents.is_terminating(pod):
            continue
        status = pod.get("status") or {}
        starts = [status.get("startTime"), *(c.run_since for c in _containers(status))]
        ages_s = [documents.seconds_since(start, now) for start in starts]
        waits_s += [
            limit_s - age_s
            for age_s in ages_s
            if age_s is not None
            for limit_s in (_LONG_S, _FORGOTTEN_AFTER_S)
            if age_s < limit_s
        ]
    return min(waits_s, default=None)


def _waits_for(pod: Mapping[str, Any], now: datetime) -> str | None:
    """Words for a Pod that is on its way for long, from what its kubelet reports."""
    status = pod.get("status") or {}
    if documents.is_ready(pod) or documents.is_terminating(pod):
        return None
    for container in _containers(status):
        if container.is_done or container.document.get("ready"):
            continue
        since = container.run_since or status.get("startTime")
        age_s = documents.seconds_since(since, now)
        if age_s is None or age_s < _LONG_S:
            return None
        if container.run_since is None:
            reason = str((container.state.get("waiting") or {}).get("reason") or "its container")
            return f"waits for {reason} since {since}: its events say more"
        if container.is_init:
            return f"init container {container.name} runs since {since}"
        is_started = bool(container.document.get("started"))
        probe = _probe(pod, container.name, "readinessProbe" if is_started else "startupProbe")
        words = f"container {container.name} runs since {since} and does not answer {probe}"
        return words + ("" if is_started else " yet") + _before(container, pod, now)
    return None


def _probe(pod: Mapping[str, Any], container: str, kind: str) -> str:
    """A probe in words: what is asked, where it asks over HTTP."""
    containers = (pod.get("spec") or {}).get("containers") or []
    document: Mapping[str, Any] = next((c for c in containers if c.get("name") == container), {})
    path = ((document.get(kind) or {}).get("httpGet") or {}).get("path")
    return f"GET {path}" if path else f"its {kind}"


def _before(container: "_Container", pod: Mapping[str, Any], now: datetime) -> str:
    """How the run before this one ended, where that is not long ago."""
    ended = (container.document.get("lastState") or {}).get("terminated")
    if not ended or _was_ready_since(container, pod):
        return ""
    if _is_older(ended.get("finishedAt"), _FORGOTTEN_AFTER_S, now):
        return ""
    restarts = int(container.document.get("restartCount") or 0)
    return f"; before: {_ended(ended, restarts=restarts, is_loop=False).message}"


def _unscheduled(message: str) -> Finding:
    # Of a claim that is there and unbound the scheduler says "…PersistentVolumeClaims. not found".
    is_claim = re.search(r'persistentvolumeclaim "[^"]*" not found', message) is not None
    return Finding(Reason.CLAIM_NOT_FOUND if is_claim else Reason.UNSCHEDULABLE, message)


def _is_lost(pod: Mapping[str, Any]) -> bool:
    """A kubelet says both at once; of a silent node's Pods the control plane takes back one."""
    says = {
        type_: (documents.pod_condition(pod, type_) or {}).get("status")
        for type_ in ("ContainersReady", "Ready")
    }
    has_gates = bool((pod.get("spec") or {}).get("readinessGates"))
    return says == {"ContainersReady": "True", "Ready": "False"} and not has_gates


@dataclass(frozen=True, slots=True)
class _Container:
    """One container's status, and which kind of container it is."""

    document: Mapping[str, Any]
    is_init: bool

    @property
    def name(self) -> str:
        return str(self.document.get("name") or "")

    @property
    def state(self) -> Mapping[str, Any]:
        return self.document.get("state") or {}

    @property
    def run_since(self) -> str | None:
        """When its present run began; None when it does not run."""
        return (self.state.get("running") or {}).get("startedAt")

    @property
    def is_done(self) -> bool:
        """An init container that has done its work, however often it had to try."""
        ended = self.state.get("terminated") or {}
        return self.is_init and ended.get("exitCode") == 0

    @property
    def prefix(self) -> str:
        """Names it, where a reader would not think of it."""
        if self.is_init:
            return f"init container {self.name}: "
        return "" if self.name in ("", names.ENGINE_CONTAINER) else f"container {self.name}: "


def _containers(status: Mapping[str, Any]) -> list[_Container]:
    return [
        *(_Container(c, True) for c in status.get("initContainerStatuses") or []),
        *(_Container(c, False) for c in status.get("containerStatuses") or []),
    ]


def _container(seen: _Container, pod: Mapping[str, Any], now: datetime) -> Finding | None:
    container, state = seen.document, seen.state
    waiting = state.get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    message = str(waiting.get("message") or reason)
    if reason in _IMAGE_REASONS:
        image = container.get("image")
        return Finding(Reason.IMAGE_PULL_FAILED, f"image {image}: {message}")
    if reason in _CREATE_REASONS:
        return Finding(Reason.CONTAINER_FAILED, message)
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    restarts = int(container.get("restartCount") or 0)
    is_loop = reason == "CrashLoopBackOff" or restarts >= _LOOP_RESTARTS
    if not ended:
        return Finding(Reason.CRASH_LOOP, message) if is_loop else None
    if state.get("running") is not None and _is_past(seen, ended, pod, now, is_loop=is_loop):
        return None
    if ended.get("exitCode") == 0 and not is_loop and container.get("ready"):
        return None
    return _ended(ended, restarts=restarts, is_loop=is_loop)


def _is_past(
    container: _Container,
    ended: Mapping[str, Any],
    pod: Mapping[str, Any],
    now: datetime,
    *,
    is_loop: bool,
) -> bool:
    """Whether the end of an earlier run says nothing about why this one is not ready."""
    if _was_ready_since(container, pod):
        return True
    if is_loop:
        return _is_older(ended.get("finishedAt"), _FORGOTTEN_AFTER_S, now)
    return _is_older(container.run_since or ended.get("finishedAt"), _LONG_S, now)


def _was_ready_since(container: _Container, pod: Mapping[str, Any]) -> bool:
    """The Pod stopped being ready after this run had begun: so this run had been ready."""
    ready = documents.pod_condition(pod, "Ready") or {}
    began = documents.parse_time(container.run_since)
    unready = documents.parse_time(ready.get("lastTransitionTime"))
    if began is None or unready is None or ready.get("status") != "False":
        return False
    return unready > documents.after(began, _SLACK_S)


def _is_older(text: str | None, limit_s: float, now: datetime) -> bool:
    age_s = documents.seconds_since(text, now)
    return age_s is not None and age_s >= limit_s


def _ended(ended: Mapping[str, Any], *, restarts: int, is_loop: bool) -> Finding:
    text = str(ended.get("message") or "").strip()
    told = failure.parse(text) if text else None
    if ended.get("reason") == "OOMKilled" and told is not None:
        # One of the engine's processes was killed; which, it knows itself, but not why.
        told = replace(
            told, message=f"{told.message}: out of memory, its limit is too small (OOMKilled)"
        )
    if told is not None:
        path = _SPEC_FIELDS.get(told.field, told.field)
        field = f" ({path})" if path else ""
        known = _STARTUP_REASONS.get(told.reason)
        fallback = Reason.CRASH_LOOP if is_loop else Reason.CONTAINER_FAILED
        return Finding(known or fallback, f"{told.message}{field}")
    reason = Reason.CRASH_LOOP if is_loop else Reason.CONTAINER_FAILED
    code = ended.get("exitCode")
    how = str(ended.get("reason") or "Error")
    fact = f"exit code {code} ({how}), restarts: {restarts}"
    # The log's last lines are the ones that say why.
    return Finding(reason, f"{fact}: {text[-700:]}" if text else fact)
