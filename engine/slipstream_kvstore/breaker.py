"""When a neighbour that fails is left alone, and when it is tried again. Pure; times are monotonic.

Closed: every call is made. Open: none is, until the pause is over. Then one call is the probe; it
closes the breaker or doubles the pause.
"""

from dataclasses import dataclass, replace
from enum import Enum


@dataclass(frozen=True, slots=True)
class Policy:
    failures_to_open: int = 5
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0


class Permit(Enum):
    """What a call that may be made is; it is given back with the call's outcome."""

    CALL = "call"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Breaker:
    """`pause_s` is None while closed."""

    num_failures: int = 0
    pause_s: float | None = None
    probe_at_s: float = 0.0
    is_probing: bool = False

    @property
    def is_closed(self) -> bool:
        return self.pause_s is None


def admit(breaker: Breaker, now_s: float) -> tuple[Breaker, Permit | None]:
    """None: do not call. Every permit must come back by one of the three functions below."""
    if breaker.is_closed:
        return breaker, Permit.CALL
    if breaker.is_probing or now_s < breaker.probe_at_s:
        return breaker, None
    return replace(breaker, is_probing=True), Permit.PROBE


def succeeded(breaker: Breaker, permit: Permit) -> Breaker:
    """A call from before the opening proves nothing about now: only a probe closes."""
    return Breaker() if permit is Permit.PROBE or breaker.is_closed else breaker


def failed(breaker: Breaker, permit: Permit, policy: Policy, now_s: float) -> Breaker:
    if permit is Permit.PROBE:
        pause_s = min(policy.longest_pause_s, 2 * (breaker.pause_s or policy.first_pause_s))
        return Breaker(breaker.num_failures + 1, pause_s, now_s + pause_s)
    if not breaker.is_closed:
        return breaker
    if breaker.num_failures + 1 < policy.failures_to_open:
        return Breaker(breaker.num_failures + 1)
    pause_s = policy.first_pause_s
    return Breaker(breaker.num_failures + 1, pause_s, now_s + pause_s)


def abandoned(breaker: Breaker, permit: Permit) -> Breaker:
    """The caller gave up before the neighbour could show anything: the next call is the probe."""
    return replace(breaker, is_probing=False) if permit is Permit.PROBE else breaker
