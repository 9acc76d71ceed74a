"""Two arms' means at any number of looks: a sequential t-test on one value a session. Pure numbers.

The evidence is a mixture of likelihood ratios of Student's t: invariant to location and scale, so
a test martingale for normal values of unknown variance (Lai 1976; Perez-Ortiz, Lardy, de Heide,
Grunwald 2024; the closed form as in Lindon, Ham, Tingley, Bojinov 2022). By Ville's inequality it
ever reaches 1/level with probability `level` at most. Unequal variances enter by Welch's error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import stdtr

Floats = npt.NDArray[np.float64]

# Precision of the mixture: effects of half a session's standard deviation. Of 1, 2, 4 … 32, it has
# intervals within 10 % of the narrowest from 30 to 1,000 sessions an arm, at 5 and 0.6 %.
_PRIOR_PRECISION: Final = 4.0
_T_MOST: Final = 1e6


@dataclass(frozen=True, slots=True)
class Means:
    """Sessions' mean and variance (n - 1) of one arm."""

    n: int
    mean: float
    variance: float


def summary(values: Sequence[float], least_variance: float) -> Means:
    """At least two values, one a session. `least_variance`: what their rounding alone makes."""
    array = np.asarray(values, dtype=np.float64)
    return Means(len(array), float(array.mean()), max(float(array.var(ddof=1)), least_variance))


def difference(canary: Means, reference: Means, levels: tuple[float, float]) -> tuple[float, float]:
    """Bounds of the difference of means; each misses it, ever, with its own level's probability."""
    error, freedom, size = welch(canary.n, canary.variance, reference.n, reference.variance)
    middle = canary.mean - reference.mean
    below, above = (quantile(float(freedom), float(size), level) for level in levels)
    return middle - below * float(error), middle + above * float(error)


def welch(
    n1: npt.ArrayLike, variance1: npt.ArrayLike, n2: npt.ArrayLike, variance2: npt.ArrayLike
) -> tuple[Floats, Floats, Floats]:
    """Standard error of the difference, its degrees of freedom, and n1 n2 / (n1 + n2).

    An arm's variance counts as the pooled one at least: thirty sessions that happen to lack the
    long tail have a low mean and a low variance, and would prove too much.
    """
    n1, n2 = np.asarray(n1, dtype=np.float64), np.asarray(n2, dtype=np.float64)
    pooled = ((n1 - 1) * variance1 + (n2 - 1) * variance2) / (n1 + n2 - 2)
    part1, part2 = np.maximum(variance1, pooled) / n1, np.maximum(variance2, pooled) / n2
    square = part1 + part2
    freedom = square**2 / (part1**2 / (n1 - 1) + part2**2 / (n2 - 1))
    return np.sqrt(square), freedom, n1 * n2 / (n1 + n2)


def log_evidence(t: npt.ArrayLike, freedom: npt.ArrayLike, size: npt.ArrayLike) -> Floats:
    """Logarithm of the evidence that the true difference is above the one that `t` is taken from.

    Twice the two-sided Bayes factor times the posterior probability of a positive difference: the
    mixture over positive effects only. A negative t counts as 0, where it is below 0 already.
    """
    t, freedom = np.maximum(t, 0.0), np.asarray(freedom, dtype=np.float64)
    size = np.asarray(size, dtype=np.float64)
    shrink = _PRIOR_PRECISION / (size + _PRIOR_PRECISION)
    square = t**2 / freedom
    logs = np.log1p(square) - np.log1p(shrink * square)
    two_sided = np.log(shrink) / 2 + (freedom + 1) / 2 * logs
    posterior = t * np.sqrt((1 - shrink) * (freedom + 1) / freedom / (1 + shrink * square))
    evidence: Floats = two_sided + np.log(2 * stdtr(freedom + 1, posterior))
    return evidence


def quantile(freedom: float, size: float, level: float) -> float:
    """The t at which the evidence is 1/level; infinite where so few sessions can prove nothing."""
    if log_evidence(_T_MOST, freedom, size) < -math.log(level):
        return math.inf
    return float(brentq(lambda t: log_evidence(t, freedom, size) + math.log(level), 0.0, _T_MOST))
