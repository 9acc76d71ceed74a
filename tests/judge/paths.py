"""Many gates at once as arrays, for the simulations: what their arms are like at each look.

Arrays are [looks, gates]. The judge's own functions say when a gate would have been decided.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream_judge import means, shares

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]


@dataclass(frozen=True)
class Arm:
    """Number, mean and variance of the sessions' values."""

    n: Floats
    mean: Floats
    variance: Floats


def finished(rng: np.random.Generator, draw: Draw, looks: int, gates: int, a_look: int) -> Arm:
    """Every look brings `a_look` new sessions, whose values stay."""
    values = draw(rng, (looks, a_look, gates))
    n = a_look * np.arange(1.0, looks + 1)[:, None]
    total, squares = values.sum(axis=1).cumsum(axis=0), (values**2).sum(axis=1).cumsum(axis=0)
    variance = (squares - total**2 / n) / np.maximum(n - 1, 1)
    return Arm(np.broadcast_to(n, total.shape), total / n, np.maximum(variance, 1e-9))


def halved(rng: np.random.Generator, room: int, looks: int, gates: int) -> tuple[Arm, Floats]:
    """As `finished`, one session a look, in arms that halve at `room`; and how often they have."""
    hashes, values = rng.random((looks, gates)), rng.normal(0, 0.3, (looks, gates))
    halvings = np.zeros((looks, gates))
    n, total, squares = _sums(values, hashes < 1)
    while (is_over := np.maximum.accumulate(n > room, axis=0)).any():
        halvings += is_over
        smaller = _sums(values, hashes < 2.0 ** -halvings.max())
        n, total, squares = (
            np.where(is_over, new, old)
            for new, old in zip(smaller, (n, total, squares), strict=True)
        )
    n = np.maximum(n, 2)
    variance = np.maximum((squares - total**2 / n) / (n - 1), 1e-9)
    return Arm(n, total / n, variance), halvings


def _sums(values: Floats, is_in: Flags) -> tuple[Floats, Floats, Floats]:
    kept = np.where(is_in, values, 0.0)
    n = is_in.cumsum(axis=0).astype(np.float64)
    return n, kept.cumsum(axis=0), (kept**2).cumsum(axis=0)


@dataclass(frozen=True)
class Growing:
    """Both ways to see the same requests: by session, and as if each stood for itself."""

    by_session: Arm
    by_request: Arm


def growing(
    rng: np.random.Generator, sessions: int, looks: int, gates: int, *, memory: float
) -> Growing:
    """Sessions start in the first half; half of those that run bring a request at every look.

    A request is its session's level (standard deviation 0.3) and noise (0.3) of which `memory`
    comes from the session's request before it.
    """
    shape = (gates, sessions)
    starts = rng.integers(0, looks // 2, shape)
    level, noise = rng.normal(0, 0.3, shape), rng.normal(0, 0.3, shape)
    n, total, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    seen, requests = [], []
    for look in range(looks):
        has_request = (starts <= look) & (rng.random(shape) < 0.5)
        noise = memory * noise + np.sqrt(1 - memory**2) * rng.normal(0, 0.3, shape)
        n += has_request
        total += has_request * (level + noise)
        squares += has_request * (level + noise) ** 2
        with np.errstate(invalid="ignore"):
            seen.append(_arm_of(np.where(n > 0, total / n, np.nan)))
        requests.append((n.sum(axis=1), total.sum(axis=1), squares.sum(axis=1)))
    count, sums, of_squares = (np.array(column) for column in zip(*requests, strict=True))
    count = np.maximum(count, 2)
    variance = np.maximum((of_squares - sums**2 / count) / (count - 1), 1e-9)
    columns = (np.array(column) for column in zip(*seen, strict=True))
    return Growing(Arm(*columns), Arm(count, sums / count, variance))


def _arm_of(values: Floats) -> tuple[Floats, Floats, Floats]:
    has_value = ~np.isnan(values)
    n = np.maximum(has_value.sum(axis=1), 2).astype(np.float64)
    mean = np.nansum(values, axis=1) / n
    deviations = np.where(has_value, values - mean[:, None], 0.0)
    return n, mean, np.maximum((deviations**2).sum(axis=1) / (n - 1), 1e-9)


def decided(
    canary: Arm, reference: Arm, *, shift: float, level: npt.ArrayLike, min_sessions: int = 30
) -> Flags:
    """At which looks canary's mean is proved to be more than `shift` above reference's."""
    n1, n2 = np.maximum(canary.n, 2), np.maximum(reference.n, 2)
    error, freedom, size = means.welch(n1, canary.variance, n2, reference.variance)
    t = (canary.mean - reference.mean - shift) / error
    is_enough = np.minimum(canary.n, reference.n) >= min_sessions
    evidence: Floats = means.log_evidence(t, freedom, size)
    return is_enough & (evidence >= -np.log(level))


def z_scores(canary: Arm, reference: Arm) -> Floats:
    """What a test that is meant for one look would take."""
    error = np.sqrt(canary.variance / canary.n + reference.variance / reference.n)
    scores: Floats = (canary.mean - reference.mean) / error
    return scores


@dataclass(frozen=True)
class Shares:
    """How many sessions have each of `values`. `counts` [looks, gates, values]"""

    values: Floats
    counts: Floats


def failures(rng: np.random.Generator, share: float, looks: int, gates: int) -> Shares:
    """Every look brings a session of one request: failed or not."""
    failed = (rng.random((looks, gates)) < share).cumsum(axis=0)
    good = np.arange(1, looks + 1)[:, None] - failed
    return Shares(np.array([0.0, 1.0]), np.stack([good, failed], axis=-1).astype(np.float64))


def growing_failures(
    rng: np.random.Generator, sessions: int, looks: int, gates: int, *, requests: int
) -> Shares:
    """Sessions, each with a failure rate of its own, bring up to `requests` at random looks."""
    rates = rng.beta(0.5, 4.5, (gates, sessions))
    times = rng.integers(0, looks, (requests, gates, sessions))
    is_bad = rng.random(times.shape) < rates
    values = np.unique([k / n for n in range(1, requests + 1) for k in range(n + 1)])
    counts = np.zeros((looks, gates, len(values)))
    for look in range(looks):
        n = (times <= look).sum(axis=0)
        share = (is_bad & (times <= look)).sum(axis=0) / np.maximum(n, 1)
        for column, value in enumerate(values):
            counts[look, :, column] = ((share == value) & (n > 0)).sum(axis=1)
    return Shares(values, counts)


def share_decided(canary: Shares, reference: Shares, margin: float, level: float) -> Flags:
    """At which looks canary's share is proved to be more than `margin` above reference's.

    The unknown share is tried on a grid only: that finds no less evidence than the judge does.
    """
    least, most = max(0.0, -margin), min(1.0, 1 - margin)
    grid = least + (most - least) * np.sin(np.linspace(0, np.pi / 2, 42)[1:-1]) ** 2
    ours = _wealth(canary, grid + margin)
    theirs = _wealth(Shares(1 - reference.values, reference.counts), 1 - grid)
    evidence = np.array([(a + b).min(axis=-1) for a, b in zip(ours, theirs, strict=True)])
    found: Flags = evidence >= -np.log(level)
    return found


def _wealth(arm: Shares, grid: Floats) -> Iterator[Floats]:
    """For each look [gates, len(grid)]; gates of the same counts are reckoned once."""
    for counts in arm.counts:
        distinct, where = np.unique(counts, axis=0, return_inverse=True)
        yield shares.log_wealth(arm.values, distinct, grid)[where.reshape(-1)]
