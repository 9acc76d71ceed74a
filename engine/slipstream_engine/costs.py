"""What a step costs by its number of tokens: measured once, before the first request."""

from collections.abc import Callable
from typing import Protocol

from slipstream_engine.batch import Batch, Chunk, Draw, Sampled
from slipstream_engine.request import SamplingParams

# A step of verified drafts is a chunk of so many tokens, each with a draw; in between, straight
# lines. Beyond the last one the costs grow in proportion. The coarse ones come first: when time is
# over, those that are missing lie between others.
_NUM_TOKENS = (1, 8, 64, 24, 4, 2, 16, 32, 48, 128, 3, 6, 12, 96)
# Measuring ends when the next size would probably go beyond it. SmolLM2 on two cores (AVX-512)
# takes 0.7 s for all sizes once; the rest of the time is for doing it again: the least of some
# measurements far apart is what a step takes when nobody else wants the processor, and the first of
# a size finds no memory of its own yet.
_MOST_S = 2.0
# Attention makes tokens dearer, one token less than many: behind so many tokens 64 take ten times
# as long as one, behind none eight times, behind 1,500 fourteen times. Filled by steps of so many.
_CONTEXT_TOKENS, _FILLING_TOKENS = 512, 32
_CONTEXT_S = 1.0
_GREEDY = SamplingParams(temperature=0.0)


class Runs(Protocol):
    def run(self, batch: Batch) -> list[Sampled]: ...


def measure(
    runner: Runs,
    page_tokens: int,
    max_tokens: int,
    max_context: int,
    clock: Callable[[], float],
) -> dict[int, float]:
    """Seconds of a step by its number of tokens, up to `max_tokens`; the least of some repeats.

    Writes to the first pages of the pool, which must be nobody's yet.
    """
    sizes = [count for count in _NUM_TOKENS if count <= min(max_tokens, max_context)]
    room = min(_CONTEXT_TOKENS, max_context - max(sizes))
    start = _fill(runner, page_tokens, min(_FILLING_TOKENS, max_tokens), room, clock)
    found: dict[int, float] = {}
    began_s = clock()
    while True:
        num_measured = 0
        for count in sizes:
            left_s = began_s + _MOST_S - clock()
            if found and left_s < _expected_s(found, count):
                continue
            took_s = _seconds(runner, _batch(start, count, page_tokens), clock)
            found[count] = min(found.get(count, took_s), took_s)
            num_measured += 1
        if num_measured == 0:
            return found


def _fill(runner: Runs, page_tokens: int, step: int, room: int, clock: Callable[[], float]) -> int:
    """How many tokens stand in the first pages; fewer where that takes too long."""
    start, began_s = 0, clock()
    while start + step <= room and clock() - began_s < _CONTEXT_S:
        pages = tuple(range(-(-(start + step) // page_tokens)))
        runner.run(Batch((Chunk(start, (0,) * step, pages),)))
        start += step
    return start


def _expected_s(found: dict[int, float], count: int) -> float:
    """Of a step, at most."""
    known = max((it for it in found if it <= count), default=min(found))
    return found[known] * max(1.0, count / known)


def _seconds(runner: Runs, batch: Batch, clock: Callable[[], float]) -> float:
    began_s = clock()
    runner.run(batch)
    return clock() - began_s


def _batch(start: int, count: int, page_tokens: int) -> Batch:
    draws = tuple(Draw(row, start + row + 1, 0, _GREEDY) for row in range(count))
    pages = tuple(range(-(-(start + count) // page_tokens)))
    return Batch((Chunk(start, (0,) * count, pages, draws),))
