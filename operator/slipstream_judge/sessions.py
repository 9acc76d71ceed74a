"""Per-session sums of two arms: built from records, merged, written as JSON and read again.

A session is what counts as one: its requests are alike. Kept for each session and signal are the
number of values, their sum and the sum of their squares, all whole numbers, so `merge` is exact,
associative and commutative: gateways, pages and restarts may be added up in any order.

Past `LIMIT_BYTES` an arm keeps the half of all sessions whose hashes begin with a zero, and so on.
A keyed hash knows nothing of its session, so that is a sample without choice, it only grows until
the next halving, and it is the same one along every way of merging.
"""

import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Final, Literal

from pydantic import BaseModel, NonNegativeInt, PositiveInt, StringConstraints

from slipstream_api.observation import Observation
from slipstream_judge.signals import FieldError, Kind, Signal, measure

LIMIT_BYTES: Final = 256 * 1024
# What stands in the document beside the sessions of the two arms.
_FRAME_BYTES: Final = 4096
_ARM_BYTES: Final = (LIMIT_BYTES - _FRAME_BYTES) // 2
_SESSION: Final = re.compile(r"\A[0-9a-f]{8,64}\Z")

# A session's n, total and squares (in `Signal.steps`) of each signal, one after the other. The
# square of 0 or 1 is itself: signals of that kind have n and total only.
Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """One session's values of one signal, in `Signal.steps`."""

    n: int
    total: int
    squares: int


@dataclass(frozen=True, slots=True)
class Arm:
    """In the order of their hashes: the sessions whose hashes begin with `halvings` zero bits."""

    sessions: tuple[tuple[str, Row], ...] = ()
    halvings: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """All that a gate keeps. `faults` counts values that cannot be: `TTFT.ttft_ms`, `session`."""

    signals: tuple[Signal, ...]
    canary: Arm = Arm()
    reference: Arm = Arm()
    faults: tuple[tuple[str, int], ...] = ()

    def tallies(self, arm: Arm, signal: Signal) -> list[Tally]:
        """The signal in those of the arm's sessions that have a value of it."""
        column = self.signals.index(signal)
        every = (list(_tallies(row, self.signals))[column] for _, row in arm.sessions)
        return [tally for tally in every if tally.n]


def collect(
    observations: Iterable[Observation],
    signals: Iterable[Signal],
    *,
    canary: str = "canary",
    reference: str = "stable",
) -> Statistics:
    """Sums of the two tracks' records; other tracks do not count.

    Give each request once, from one kind of source: gateways and engines both keep a record of it.
    """
    if canary == reference:
        raise ValueError(f"both arms are the track {canary!r}")
    order = tuple(sorted(set(signals)))
    arms: dict[str, dict[str, Row]] = {canary: {}, reference: {}}
    faults: Counter[str] = Counter()
    for it in observations:
        if it.track is None or it.track not in arms:
            continue
        if it.session is None or not _SESSION.fullmatch(it.session):
            faults["session"] += 1
            continue
        row, found = _row(it, order)
        _add_up(arms[it.track], [(it.session, row)])
        faults.update(found)
    return Statistics(
        order, _bounded(arms[canary]), _bounded(arms[reference]), tuple(sorted(faults.items()))
    )


def merge(one: Statistics, other: Statistics) -> Statistics:
    """As if all records had been collected together."""
    if one.signals != other.signals:
        raise ValueError(f"signals differ: {one.signals} and {other.signals}")
    faults = Counter(dict(one.faults)) + Counter(dict(other.faults))
    canary, reference = _merged(one.canary, other.canary), _merged(one.reference, other.reference)
    return Statistics(one.signals, canary, reference, tuple(sorted(faults.items())))


def arm_counts(statistics: Statistics) -> tuple[int, int]:
    """Sessions seen in canary and reference, counted over the same part of all hashes."""
    arms = statistics.canary, statistics.reference
    halvings = max(arm.halvings for arm in arms)
    canary, reference = (sum(_is_in(key, halvings) for key, _ in arm.sessions) for arm in arms)
    return canary, reference


def independent_requests(tallies: Sequence[Tally]) -> float:
    """How many independent requests the sessions' requests are worth: n / (1 + (m - 1) ICC).

    ICC: intra-class correlation by one-way analysis of variance; m: the size of the session in
    which a request finds itself on average (Kish's design effect).
    """
    n, groups = sum(t.n for t in tallies), len(tallies)
    if groups < 2 or n == groups:
        return float(n)
    of_means = sum(t.total**2 / t.n for t in tallies)
    between = (of_means - sum(t.total for t in tallies) ** 2 / n) / (groups - 1)
    within = (sum(t.squares for t in tallies) - of_means) / (n - groups)
    size = sum(t.n**2 for t in tallies) / n
    spread = between + ((n - size) / (groups - 1) - 1) * within
    correlation = min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 0.0
    return n / (1 + (size - 1) * correlation)


class _ArmDocument(BaseModel, extra="forbid", strict=True):
    halvings: NonNegativeInt
    sessions: dict[Annotated[str, StringConstraints(pattern=_SESSION)], list[NonNegativeInt]]


class _Document(BaseModel, extra="forbid", strict=True):
    version: Literal[1] = 1
    signals: tuple[Signal, ...]
    canary: _ArmDocument
    reference: _ArmDocument
    faults: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_.]{1,64}$")], PositiveInt]


def dumps(statistics: Statistics) -> str:
    """JSON of at most `LIMIT_BYTES`, ASCII; equal statistics give equal text."""
    canary, reference = (
        _ArmDocument(halvings=arm.halvings, sessions={key: list(row) for key, row in arm.sessions})
        for arm in (statistics.canary, statistics.reference)
    )
    faults = dict(statistics.faults)
    return _Document(
        signals=statistics.signals, canary=canary, reference=reference, faults=faults
    ).model_dump_json()


def loads(text: str) -> Statistics:
    """What `dumps` wrote. Raises ValueError that says where it is something else."""
    document = _Document.model_validate_json(text)
    if list(document.signals) != sorted(set(document.signals)):
        raise ValueError("signals: not in order, or twice")
    canary, reference = (
        _read(arm, document.signals) for arm in (document.canary, document.reference)
    )
    faults = tuple(sorted(document.faults.items()))
    return Statistics(document.signals, canary, reference, faults)


def _read(document: _ArmDocument, signals: Sequence[Signal]) -> Arm:
    for session, numbers in document.sessions.items():
        if len(numbers) != sum(_columns(signal) for signal in signals):
            raise ValueError(f"sessions.{session}: {len(numbers)} numbers for {signals}")
        for signal, t in zip(signals, _tallies(numbers, signals), strict=True):
            # The largest value twice; then Cauchy and Schwarz.
            top = signal.most
            if t.total > t.n * top or t.squares > t.total * top or t.total**2 > t.n * t.squares:
                raise ValueError(f"sessions.{session}: no values of {signal} have the sums {t}")
    arm = _bounded({key: tuple(row) for key, row in document.sessions.items()}, document.halvings)
    if arm.halvings != document.halvings or len(arm.sessions) != len(document.sessions):
        raise ValueError(f"sessions: beyond their halvings, or more than {_ARM_BYTES} bytes")
    return arm


def _columns(signal: Signal) -> int:
    return 2 if signal.kind is Kind.BINARY else 3


def _tallies(row: Sequence[int], signals: Sequence[Signal]) -> Iterator[Tally]:
    ends = accumulate(_columns(signal) for signal in signals)
    for signal, end in zip(signals, ends, strict=True):
        n, total, *squares = row[end - _columns(signal) : end]
        yield Tally(n, total, squares[0] if squares else total)


def _row(observation: Observation, signals: Sequence[Signal]) -> tuple[Row, list[str]]:
    """The record's values, and the faults in it."""
    row: list[int] = []
    faults = []
    for signal in signals:
        value = None
        try:
            value = measure(signal, observation)
        except FieldError as error:
            faults.append(f"{signal}.{error.field}")
        sums = (0, 0, 0) if value is None else (1, value, value * value)
        row.extend(sums[: _columns(signal)])
    return tuple(row), faults


def _add_up(rows: dict[str, Row], more: Iterable[tuple[str, Row]]) -> None:
    for session, row in more:
        known = rows.get(session)
        rows[session] = row if known is None else tuple(map(operator.add, known, row))


def _merged(one: Arm, other: Arm) -> Arm:
    rows = dict(one.sessions)
    _add_up(rows, other.sessions)
    return _bounded(rows, max(one.halvings, other.halvings))


def _is_in(session: str, halvings: int) -> bool:
    return int(session[:8], 16) >> (32 - halvings) == 0


def _bounded(rows: Mapping[str, Row], halvings: int = 0) -> Arm:
    """Halved until it has room. Sums only grow: no part is halved more often than the whole, and
    so a session that the whole keeps has lost nothing on the way."""
    while True:
        kept = [(key, rows[key]) for key in sorted(rows) if _is_in(key, halvings)]
        if sum(len(key) + 6 + sum(len(f"{n},") for n in row) for key, row in kept) <= _ARM_BYTES:
            return Arm(tuple(kept), halvings)
        halvings += 1
