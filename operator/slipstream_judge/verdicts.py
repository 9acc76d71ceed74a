"""One look: what the statistics say of each check, and of the gate, in words. A pure function.

The same statistics, check and look give the same verdict; how often somebody looks, and what
earlier looks said, does not enter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slipstream_judge import means, shares, split
from slipstream_judge.checks import BASIS_POINTS, Check, Look, Margin, OnNoData
from slipstream_judge.sessions import Statistics, Tally, arm_counts, independent_requests
from slipstream_judge.signals import LOG_STEPS

# Equal values may differ by a step after rounding: no variance is smaller than that makes it.
_LEAST_VARIANCE: Final = LOG_STEPS**-2 / 12

Interval = tuple[float, float]


class Outcome(StrEnum):
    """Worst first: a gate's outcome is that of its worst check. Only a pass lets it advance."""

    FAIL = "Fail"
    ERROR = "Error"
    NO_DATA = "NoData"
    INCONCLUSIVE = "Inconclusive"
    PASS = "Pass"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one check. `estimate` and `interval`: canary's change as a part of reference's mean
    (RELATIVE), the difference of shares (POINTS) or canary's share (LIMIT); None without data."""

    check: Check
    outcome: Outcome
    reason: str
    estimate: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Of a gate. `verdicts` in the order of its checks."""

    outcome: Outcome
    reason: str
    verdicts: tuple[Verdict, ...]


def decide(check: Check, statistics: Statistics, look: Look) -> Verdict:
    """What is proved by now at the look's level."""
    own = ("session", f"{check.signal}.")
    faults = [f"{name} ({count})" for name, count in statistics.faults if name.startswith(own)]
    if faults:
        reason = f"{check.signal}: values that cannot be, in {', '.join(faults)}"
        return Verdict(check, Outcome.ERROR, reason)
    arms = [("canary", statistics.canary), ("reference", statistics.reference)]
    if check.margin is Margin.LIMIT:
        del arms[1]
    tallies = [statistics.tallies(arm, check.signal) for _, arm in arms]
    missing = [
        f"{name} has a value in {len(seen)} of {len(arm.sessions)} sessions"
        for (name, arm), seen in zip(arms, tallies, strict=True)
        if len(seen) < check.min_sessions
    ]
    if missing:
        reason = f"{check.signal}: {', '.join(missing)}; {check.min_sessions} are needed in an arm"
        return Verdict(check, Outcome.NO_DATA, reason)
    # A halved arm starts anew, as if it had not been looked at: it gets half of the level.
    halving = 0.5**statistics.canary.halvings
    low_level, high_level = look.levels(check.direction)
    levels = low_level * halving, high_level * halving
    estimate, interval = _compare(check, tallies, levels)
    outcome = _outcome(check, interval)
    if check.margin is Margin.RELATIVE:
        estimate, interval = _change(estimate), (_change(interval[0]), _change(interval[1]))
    reason = _words(check, estimate, interval, tallies)
    return Verdict(check, outcome, reason, estimate, interval)


def decide_gate(checks: Sequence[Check], statistics: Statistics, look: Look) -> GateVerdict:
    """The worst of the checks' verdicts, and an Error where the arms' sizes belie the weights."""
    if len(checks) != look.num_checks:
        raise ValueError(f"{len(checks)} checks at a look for {look.num_checks}")
    verdicts = tuple(decide(check, statistics, look) for check in checks)
    findings = [found for verdict in verdicts if (found := _finding(verdict)) is not None]
    if not findings:
        findings.append((Outcome.NO_DATA, "no check has data"))
    mismatch = _mismatch(statistics, look)
    if mismatch is not None:
        findings.append((Outcome.ERROR, mismatch))
    worst = min((outcome for outcome, _ in findings), key=list(Outcome).index)
    reasons = [reason for outcome, reason in findings if outcome is worst]
    return GateVerdict(worst, "; ".join(reasons), verdicts)


def _finding(verdict: Verdict) -> tuple[Outcome, str] | None:
    """What a check contributes to its gate; None: nothing, as it asked for without data."""
    if verdict.outcome is Outcome.NO_DATA and verdict.check.on_no_data is OnNoData.PROCEED:
        return None
    if verdict.outcome is Outcome.NO_DATA and verdict.check.on_no_data is OnNoData.ROLLBACK:
        return Outcome.FAIL, f"{verdict.reason} (onNoData: Rollback)"
    return verdict.outcome, verdict.reason


def _mismatch(statistics: Statistics, look: Look) -> str | None:
    if look.canary_share_basis_points is None:
        return None
    share = look.canary_share_basis_points / BASIS_POINTS
    canary, reference = arm_counts(statistics)
    if not split.is_mismatch(canary, reference, share):
        return None
    return (
        f"sample ratio: canary has {canary} of {canary + reference} sessions, the weights say "
        f"{_percent(share)}: the arms cannot be compared"
    )


def _compare(
    check: Check, tallies: Sequence[Sequence[Tally]], levels: tuple[float, float]
) -> tuple[float, Interval]:
    """Estimate and interval in the scale of `Check.allowed`. One vote a session, however long."""
    steps = check.signal.steps
    values = [[t.total / (t.n * steps) for t in seen] for seen in tallies]
    averages = [math.fsum(arm) / len(arm) for arm in values]
    if check.margin is Margin.LIMIT:
        return averages[0], shares.alone(values[0], levels)
    estimate = averages[0] - averages[1]
    if check.margin is Margin.POINTS:
        return estimate, shares.difference(values[0], values[1], levels)
    ours, theirs = (means.summary(arm, _LEAST_VARIANCE) for arm in values)
    return estimate, means.difference(ours, theirs, levels)


def _outcome(check: Check, interval: Interval) -> Outcome:
    low, high = interval
    least, most = check.allowed()
    if low > most or high < least:
        return Outcome.FAIL
    return Outcome.PASS if least < low and high < most else Outcome.INCONCLUSIVE


def _change(log_ratio: float) -> float:
    return math.expm1(log_ratio) if log_ratio < 700 else math.inf  # where floats end


def _words(
    check: Check, estimate: float, interval: Interval, tallies: Sequence[Sequence[Tally]]
) -> str:
    unit = {Margin.RELATIVE: "change", Margin.POINTS: "difference", Margin.LIMIT: "share"}
    sizes = [
        f"{len(seen)} sessions ({sum(t.n for t in seen)} requests, worth "
        f"{independent_requests(seen):.0f} independent ones)"
        for seen in tallies
    ]
    return (
        f"{check.signal}: {unit[check.margin]} {_percent(estimate)} ({_percent(interval[0])} to "
        f"{_percent(interval[1])}), {check.direction} within "
        f"{_percent(check.margin_basis_points / BASIS_POINTS)}; {' against '.join(sizes)}"
    )


def _percent(part: float) -> str:
    return f"{100 * part:.4g} %"
