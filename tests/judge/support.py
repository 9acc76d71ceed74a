"""Records of two arms for the judge's tests, and the checks that they are judged by."""

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from slipstream_api.observation import ErrorClass, Observation
from slipstream_judge.checks import Check, Direction, Look, Margin
from slipstream_judge.sessions import Statistics, collect
from slipstream_judge.signals import Signal

LOOK = Look(num_checks=1, canary_share_basis_points=None)


def session(*name: object) -> str:
    """A keyed hash as the gateway sends it."""
    return hashlib.blake2b(repr(name).encode(), digest_size=12).hexdigest()


def record(track: str = "canary", name: object = 0, **fields: Any) -> Observation:
    """A finished request; a disconnect only where it says so."""
    known: dict[str, Any] = {"time_unix_s": 0.0, "disconnect": False, "track": track}
    return Observation(**{**known, "session": session(track, name), **fields})


def arm(track: str, field: str, values: Iterable[Sequence[Any]]) -> list[Observation]:
    """One session for each of `values`, one request for each value of it."""
    return [
        record(track, name, status=200, **{field: value})
        for name, requests in enumerate(values)
        for value in requests
    ]


def two_arms(
    signal: Signal,
    field: str,
    canary: Iterable[Sequence[Any]],
    reference: Iterable[Sequence[Any]],
) -> Statistics:
    return collect([*arm("canary", field, canary), *arm("stable", field, reference)], [signal])


def slower(signal: Signal = Signal.TTFT, margin_basis_points: int = 1000, **more: Any) -> Check:
    """Latency that may be so much higher."""
    return Check(
        signal=signal,
        direction=Direction.LOWER_IS_BETTER,
        margin=Margin.RELATIVE,
        margin_basis_points=margin_basis_points,
        **more,
    )


def worse(signal: Signal = Signal.FAILED, margin_basis_points: int = 100, **more: Any) -> Check:
    """A share that may be so many points higher."""
    return Check(
        signal=signal,
        direction=Direction.LOWER_IS_BETTER,
        margin=Margin.POINTS,
        margin_basis_points=margin_basis_points,
        **more,
    )


def spread(middle_ms: float, sessions: int, requests: int = 4, seed: int = 1) -> list[list[float]]:
    """Log-normal latencies: sessions differ by 15 %, requests of one session by 30 %."""
    rng = random.Random(seed)
    return [
        [middle_ms * math.exp(base + rng.gauss(0, 0.3)) for _ in range(requests)]
        for base in (rng.gauss(0, 0.15) for _ in range(sessions))
    ]


def flags(bad: int, sessions: int) -> list[list[ErrorClass | None]]:
    return [[ErrorClass.ENGINE_BROKE if n < bad else None] for n in range(sessions)]


def failures(canary: Sequence[Any], reference: Sequence[Any]) -> Statistics:
    return two_arms(Signal.FAILED, "error_class", canary, reference)
