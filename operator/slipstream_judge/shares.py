"""Two arms' shares at any number of looks: bets on one value of 0 to 1 a session. Pure numbers.

A bettor who claims that an arm's mean lies above m multiplies his wealth by 1 - f + f x / m for
each session of value x. Where the mean is m or less, that is a fair game at best, whatever the
distribution: his wealth ever reaches 1/level with probability `level` at most (Ville). Waudby-Smith
and Ramdas 2024, "Estimating means of bounded random variables by betting". Here the fractions f
are a fixed mixture instead of adapting, so that the order of the sessions does not matter.

Two arms: if the shares were known, the product of the arms' wealths would be such a game. They are
not, so they are taken where the product is least. The logarithm of wealth is convex in m: that
least product is found for certain.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar

Floats = npt.NDArray[np.float64]

# Small fractions find rises of rare events, the largest proves that what never happened is rare.
# Betting nothing keeps an arm that says nothing from costing more than its weight.
_FRACTIONS: Final = np.array([0, 0.98, 0.7, 0.35, 0.15, 0.06, 0.025, 0.01])
_LOG_WEIGHTS: Final = np.log([0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])[:, None]


def log_wealth(values: Floats, counts: npt.ArrayLike, means: npt.ArrayLike) -> Floats:
    """Log wealth of betting that the mean is above each of `means`. [..., len(means)]

    `counts` [..., len(values)]: sessions of each value. `means` above 0, at most 1.
    """
    odds = values[:, None] / np.asarray(means, dtype=np.float64)
    bets = np.log1p(_FRACTIONS[:, None] * (odds[:, None, :] - 1))  # [values, fractions, means]
    logs = np.tensordot(np.asarray(counts, dtype=np.float64), bets, axes=1)
    wealth: Floats = np.logaddexp.reduce(logs + _LOG_WEIGHTS, axis=-2)
    return wealth


def log_evidence(canary: Sequence[float], reference: Sequence[float], margin: float) -> float:
    """Logarithm of the evidence that canary's mean is more than `margin` above reference's."""
    ours, theirs = _bettor(canary), _bettor([1 - value for value in reference])

    def both(mean: float) -> float:
        """Canary's mean is bet to be above `mean` + margin, reference's to be below `mean`."""
        return ours(mean + margin) + theirs(1 - mean)

    least, most = max(0.0, -margin), min(1.0, 1 - margin)
    inner = minimize_scalar(both, bounds=(least, most), method="bounded", options={"xatol": 1e-7})
    return min(both(least), both(most), float(inner.fun))


def difference(
    canary: Sequence[float], reference: Sequence[float], levels: tuple[float, float]
) -> tuple[float, float]:
    """Bounds of the difference of means; each misses it, ever, with its own level's probability."""
    low = _root(lambda margin: log_evidence(canary, reference, margin), levels[0], least=-1.0)
    high = _root(lambda margin: log_evidence(reference, canary, margin), levels[1], least=-1.0)
    return low, -high


def alone(values: Sequence[float], levels: tuple[float, float]) -> tuple[float, float]:
    """Bounds of one arm's mean, as above."""
    ours, mirrored = _bettor(values), _bettor([1 - value for value in values])
    return _root(ours, levels[0], least=0.0), 1 - _root(mirrored, levels[1], least=0.0)


def _bettor(values: Sequence[float]) -> Callable[[float], float]:
    """Log wealth of betting that these sessions' mean is above a given one."""
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    return lambda mean: float(log_wealth(distinct, counts, [max(mean, 1e-9)])[0])


def _root(evidence: Callable[[float], float], level: float, *, least: float) -> float:
    """The bound that is exceeded by evidence 1/level; `least` where there is none."""
    if evidence(least) <= -math.log(level):
        return least
    return float(brentq(lambda bound: evidence(bound) + math.log(level), least, 1.0))
