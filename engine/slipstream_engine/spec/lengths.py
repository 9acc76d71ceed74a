"""How many drafted tokens of each sequence a step verifies: decided for the whole batch at once,
from chances and measured costs alone.

A step of a batch costs what its number of tokens costs. Every drafted token has a gain: the chance
that it becomes output. The gains of all sequences are taken in falling order, and of all ways to
stop, none among them, the one with the most expected tokens a second is chosen. Not the first from
which the rate falls: a cost that rises in steps has many tops. The same rule with a confidence head
sizes the drafts of DSpark (arXiv 2607.05147).
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul, truediv

from slipstream_engine.spec.draft import Draft

# A draft that hardly ever comes true is not worth sorting.
_LEAST_GAIN = 0.001
# Of many estimates the highest ones are too high on average: without this a batch of 64 lost two
# per cent to no drafts at all, with it none of the tests' costs and acceptances loses one. It costs
# little: at the best length a token more or less changes next to nothing.
CAUTION = 0.9
# From not drafting to drafting: by how much a step must be better to count, and how much of that
# must have come together. A step that is a tenth better is enough, one that is a hundredth never.
WORTH_RATE = 1.02
_MARGIN = math.log(WORTH_RATE)
_ENOUGH = math.log(1.10)


class CostTable:
    """Seconds of a step by its number of tokens, as measured: never falling, straight between two
    measurements, and beyond the last one at least in proportion to the tokens."""

    def __init__(self, measured_s: Mapping[int, float]) -> None:
        """Raises ValueError for no measurement, or one that is no positive number."""
        if not measured_s or any(tokens < 1 for tokens in measured_s):
            raise ValueError("a cost table needs measurements of at least one token")
        if not all(math.isfinite(cost) and cost > 0 for cost in measured_s.values()):
            raise ValueError("a step's measured seconds must be positive numbers")
        self._tokens = sorted(measured_s)
        # Noise only adds: where more tokens took less time, the fewer ones do not take more.
        falling = (measured_s[count] for count in reversed(self._tokens))
        self._seconds = list(accumulate(falling, min))[::-1]
        last = self._tokens[-1]
        slope = self._seconds[-1] / last
        if len(self._tokens) > 1:
            slope = max(slope, self._slope(len(self._tokens) - 1))
        self._slope_beyond = slope
        self._known = [self._between(count) for count in range(last + 1)]

    def step_s(self, num_tokens: int) -> float:
        return self.steps_s(num_tokens, num_tokens)[0]

    def steps_s(self, first: int, last: int) -> list[float]:
        """Of every number of tokens from the first to the last."""
        end = len(self._known)
        known = self._known[first : last + 1]
        more = range(max(first, end), last + 1)
        top, slope = self._known[-1], self._slope_beyond
        return known + [top + slope * (count - end + 1) for count in more]

    def _between(self, count: int) -> float:
        right = bisect_left(self._tokens, count)
        if right == 0 or self._tokens[right] == count:
            return self._seconds[right]
        distance = count - self._tokens[right - 1]
        return self._seconds[right - 1] + distance * self._slope(right)

    def _slope(self, right: int) -> float:
        rise_s = self._seconds[right] - self._seconds[right - 1]
        return rise_s / (self._tokens[right] - self._tokens[right - 1])


@dataclass(frozen=True, slots=True)
class Mode:
    """Whether the batch drafts, and while it does not, what speaks for it.

    It stops at once when nothing is better, and begins again only when the gain of some steps
    together is plain: estimates that tremble about the threshold do not switch it to and fro.
    """

    is_drafting: bool = True
    evidence: float = 0.0


START = Mode()


@dataclass(frozen=True, slots=True)
class Lengths:
    """For each sequence how many tokens of its draft are verified; what the next choice needs."""

    lengths: tuple[int, ...]
    mode: Mode


def choose(
    candidates: Sequence[Sequence[float]],
    cost: CostTable,
    previous: Mode = START,
    other_tokens: int = 0,
    most: int | None = None,
) -> Lengths:
    """The lengths with the most expected tokens a second.

    candidates: for each sequence that decodes, the chance of each drafted token to become output
    (`reach`), empty without a draft; falling, and where not, taken as if. other_tokens: those of
    prompts in the same step, which cost but bring nothing here. most: drafted tokens that fit into
    the step. No draft is always one of the choices, so a draft is never expected to be slower.
    """
    none = (0,) * len(candidates)
    gains, owners = _merged(candidates)
    gains = gains[:most]
    if not gains:
        return Lengths(none, previous)
    num_plain = len(candidates)
    expected = list(accumulate((CAUTION * gain for gain in gains), initial=float(num_plain)))
    first = num_plain + other_tokens
    costs_s = cost.steps_s(first, first + len(gains))
    rates = list(map(truediv, expected, costs_s))
    best = max(rates)
    count = rates.index(best)
    mode = _next_mode(previous, max(rates[1:]) / rates[0])
    if count == 0 or not mode.is_drafting:
        return Lengths(none, mode)
    lengths = list(none)
    for owner in owners[:count]:
        lengths[owner] += 1
    return Lengths(tuple(lengths), mode)


def reach(draft: Draft) -> list[float]:
    """The chance of each drafted token that it and all before it are accepted."""
    if not draft.parents:
        return list(accumulate(draft.accept, mul))
    found: list[float] = []
    for chance, parent in zip(draft.accept, draft.parents, strict=True):
        found.append(chance * (found[parent] if parent >= 0 else 1.0))
    return found


def _merged(candidates: Sequence[Sequence[float]]) -> tuple[list[float], list[int]]:
    """All gains in falling order and whose they are: a sequence's own stay in their order."""
    gains: list[float] = []
    owners: list[int] = []
    for owner, chances in enumerate(candidates):
        falling = [gain for gain in accumulate(chances, min) if gain >= _LEAST_GAIN]
        gains += falling
        owners += [owner] * len(falling)
    # Stable in reverse too.
    order = sorted(range(len(gains)), key=gains.__getitem__, reverse=True)
    return [gains[index] for index in order], [owners[index] for index in order]


def _next_mode(previous: Mode, ratio: float) -> Mode:
    """`ratio`: the best rate with a draft to the rate without one."""
    if previous.is_drafting:
        return previous if ratio > 1.0 else Mode(is_drafting=False)
    evidence = max(0.0, previous.evidence + math.log(ratio) - _MARGIN)
    if evidence >= _ENOUGH:
        return Mode(is_drafting=True)
    return Mode(is_drafting=False, evidence=evidence)
