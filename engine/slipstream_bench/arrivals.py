"""When requests of an open loop arrive. Pure: the random stream is an argument."""

import math
from collections.abc import Iterator
from random import Random


def arrivals(rate_per_s: float, rng: Random, burstiness: float = 1.0) -> Iterator[float]:
    """Seconds since the start, without end, rising.

    Gaps are gamma distributed with mean 1/rate and shape `burstiness`: 1 is a Poisson process,
    less comes in bursts, more is steadier, infinity is a metronome. The squared coefficient of
    variation of the gaps is 1/burstiness (the same parameter as in vLLM's `bench serve`).
    """
    if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
        raise ValueError(f"a rate is positive and finite, not {rate_per_s}")
    if not burstiness > 0:
        raise ValueError(f"burstiness is positive, not {burstiness}")
    mean_s = 1 / rate_per_s
    at_s = 0.0
    while True:
        if math.isinf(burstiness):
            at_s += mean_s
        else:
            at_s += rng.gammavariate(burstiness, mean_s / burstiness)
        yield at_s
