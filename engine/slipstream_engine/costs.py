"""What a step costs by its number of tokens: measured once, before the first request."""

from collections.abc import Callable
from typing import Protocol

from slipstream_engine.batch import Batch, Chunk, Draw, Sampled
from slipstream_engine.request import SamplingParams

# A step of verified drafts is a chunk of so many tokens, each with a draw; in between, straight
# lines. Beyond the last one the costs grow in proportion.
_NUM_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_NUM_REPEATS = 2
# Measuring ends with the size that goes beyond it: 0.9 s for SmolLM2 on two cores (AVX-512).
_MOST_S = 2.0
_GREEDY = SamplingParams(temperature=0.0)


class Runs(Protocol):
    def run(self, batch: Batch) -> list[Sampled]: ...


def measure(
    runner: Runs, page_tokens: int, max_tokens: int, clock: Callable[[], float]
) -> dict[int, float]:
    """Seconds of a step by its number of tokens, up to `max_tokens`; the best of some repeats.

    Writes to the first pages of the pool, which must be nobody's yet.
    """
    found: dict[int, float] = {}
    began_s = clock()
    for count in _NUM_TOKENS:
        if count > max_tokens or (len(found) > 1 and clock() - began_s > _MOST_S):
            break
        batch = _batch(count, page_tokens)
        # The first run of a size finds no memory of its own yet.
        runner.run(batch)
        found[count] = min(_seconds(runner, batch, clock) for _ in range(_NUM_REPEATS))
    return found


def _seconds(runner: Runs, batch: Batch, clock: Callable[[], float]) -> float:
    began_s = clock()
    runner.run(batch)
    return clock() - began_s


def _batch(count: int, page_tokens: int) -> Batch:
    draws = tuple(Draw(row, row + 1, 0, _GREEDY) for row in range(count))
    pages = tuple(range(-(-count // page_tokens)))
    return Batch((Chunk(0, (0,) * count, pages, draws),))
