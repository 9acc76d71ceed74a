"""Conditions: their types, their reasons, and the pure update of a list of them.

Reasons are written for the person who reads `kubectl get`; knows no kind in particular.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

from pydantic import Field

from slipstream_api.schema import KubeModel

Truth = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    ACCEPTED = "Accepted"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    READY = "Ready"


class Reason(StrEnum):
    """Why a condition is what it is."""

    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    NAME_TAKEN = "NameTaken"
    INVALID_POD_TEMPLATE = "InvalidPodTemplate"
    # Progressing, Ready
    ALL_REPLICAS_READY = "AllReplicasReady"
    SCALED_TO_ZERO = "ScaledToZero"
    STARTING = "Starting"
    SCALING = "Scaling"
    REPLACING = "Replacing"
    DRAINING = "Draining"
    STABLE = "Stable"
    NO_READY_REPLICA = "NoReadyReplica"
    SOME_REPLICAS_UNREADY = "SomeReplicasUnready"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CRASH_LOOP = "CrashLoop"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_INVALID = "ModelInvalid"
    CONFIG_INVALID = "ConfigInvalid"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CONTAINER_FAILED = "ContainerFailed"
    NODE_NOT_READY = "NodeNotReady"
    # Degraded
    HEALTHY = "Healthy"
    WRITE_REFUSED = "WriteRefused"


class Condition(KubeModel):
    """One condition, as Kubernetes writes them (meta/v1 Condition)."""

    type: str = Field(min_length=1, max_length=316)
    status: Truth
    observed_generation: int = Field(ge=0)
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    reason: str = Field(min_length=1, max_length=1024)
    message: str = Field(max_length=32768)


def upsert(
    conditions: Sequence[Condition],
    type_: ConditionType,
    status: Truth,
    reason: Reason,
    message: str,
    *,
    generation: int,
    now: str,
) -> list[Condition]:
    """The list with one condition set; the transition time moves only when the status does."""
    previous = find(conditions, type_)
    changed = previous is None or previous.status != status
    condition = Condition(
        type=type_.value,
        status=status,
        observed_generation=generation,
        last_transition_time=now if previous is None or changed else previous.last_transition_time,
        reason=reason.value,
        message=message[:32768],
    )
    kept = [c for c in conditions if c.type != type_.value]
    return sorted([*kept, condition], key=_order)


def find(conditions: Iterable[Condition], type_: ConditionType) -> Condition | None:
    """The condition of one type, if it is there."""
    return next((c for c in conditions if c.type == type_.value), None)


def _order(condition: Condition) -> int:
    known = [t.value for t in ConditionType]
    return known.index(condition.type) if condition.type in known else len(known)
