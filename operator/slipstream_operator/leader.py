"""Who may write: the decision over one Lease. Pure; times are monotonic seconds of this process.

A holder counts as gone when its record has not changed, as seen from here, for the whole lease
duration; no two machines' clocks are ever compared.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from slipstream_operator.documents import Document


class Action(Enum):
    CREATE = "create"
    ACQUIRE = "acquire"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Timing:
    """Why two replicas never write at once.

    A write starts only within `renew_deadline_s` of the start of the last good renewal and is cut
    after `write_timeout_s`; together they are shorter than the time others wait.
    """

    duration_s: float

    @property
    def retry_s(self) -> float:
        return self.duration_s / 5

    @property
    def renew_deadline_s(self) -> float:
        return self.duration_s * 0.6

    @property
    def write_timeout_s(self) -> float:
        return self.duration_s * 0.3


@dataclass(frozen=True, slots=True)
class Sighting:
    """A version of the Lease and when this process first saw it."""

    version: str
    since: float


def sight(lease: Document | None, previous: Sighting | None, now: float) -> Sighting:
    version = str((lease or {"metadata": {}})["metadata"].get("resourceVersion") or "")
    if previous is not None and previous.version == version:
        return previous
    return Sighting(version, now)


def decide(lease: Document | None, me: str, sighting: Sighting, now: float) -> Action:
    if lease is None:
        return Action.CREATE
    spec: dict[str, Any] = lease.get("spec") or {}
    holder = spec.get("holderIdentity") or ""
    if holder == me:
        return Action.RENEW
    duration_s = float(spec.get("leaseDurationSeconds") or 0)
    is_expired = now - sighting.since >= duration_s
    return Action.ACQUIRE if not holder or is_expired else Action.WAIT


def write_window_s(renewed_at: float | None, timing: Timing, now: float) -> float:
    """How long from now a write may still be started; 0 when this process may not write."""
    if renewed_at is None:
        return 0.0
    return max(0.0, renewed_at + timing.renew_deadline_s - now)
