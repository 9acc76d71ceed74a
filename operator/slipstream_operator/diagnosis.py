"""Why a Pod is not ready, in words that a person can act on. Pure; reads Pod status only."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from slipstream_api import failure
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
_MAX_MESSAGE_LEN = 1024

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
        finding = _container(container, now)
        if finding is not None:
            return finding
    return None


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


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]


def _container(container: Mapping[str, Any], now: datetime) -> Finding | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    message = str(waiting.get("message") or reason)
    if reason in _IMAGE_REASONS:
        image = container.get("image")
        return Finding(Reason.IMAGE_PULL_FAILED, f"image {image}: {message}")
    if reason in _CREATE_REASONS:
        return Finding(Reason.CONTAINER_FAILED, message)
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    if ended and state.get("running") is not None and _is_forgotten(ended, now):
        return None
    restarts = int(container.get("restartCount") or 0)
    is_loop = reason == "CrashLoopBackOff" or restarts >= _LOOP_RESTARTS
    if not ended:
        return Finding(Reason.CRASH_LOOP, message) if is_loop else None
    if ended.get("exitCode") == 0 and not is_loop and container.get("ready"):
        return None
    return _ended(ended, restarts=restarts, is_loop=is_loop)


def _is_forgotten(ended: Mapping[str, Any], now: datetime) -> bool:
    age_s = documents.seconds_since(ended.get("finishedAt"), now)
    return age_s is not None and age_s >= _FORGOTTEN_AFTER_S


def _ended(ended: Mapping[str, Any], *, restarts: int, is_loop: bool) -> Finding:
    text = str(ended.get("message") or "").strip()
    told = failure.parse(text) if text else None
    if ended.get("reason") == "OOMKilled" and told is not None:
        # One of the engine's processes was killed; which, it knows itself, but not why.
        told = replace(
            told, message=f"{told.message}: out of memory, its limit is too small (OOMKilled)"
        )
    if told is not None:
        field = f" ({told.field})" if told.field else ""
        known = _STARTUP_REASONS.get(told.reason)
        fallback = Reason.CRASH_LOOP if is_loop else Reason.CONTAINER_FAILED
        return Finding(known or fallback, f"{told.message}{field}")
    reason = Reason.CRASH_LOOP if is_loop else Reason.CONTAINER_FAILED
    code = ended.get("exitCode")
    how = str(ended.get("reason") or "Error")
    fact = f"exit code {code} ({how}), restarts: {restarts}"
    # The log's last lines are the ones that say why.
    return Finding(reason, f"{fact}: {text[-700:]}" if text else fact)
