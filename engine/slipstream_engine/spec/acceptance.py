"""How far the drafters' estimates are from what is really accepted, learnt as answers go by.

For each drafter, confidence and range of places in a draft two factors by which its estimates are
multiplied: one over all requests, slow, and one of the sequence, quick. Each is the exponential
average of accepted / estimated. A draft that was not verified teaches too: what was committed says
whether its first token was right, so a drafter that was given up needs no probe to be found again.
"""

import sys
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slipstream_engine.spec.draft import Draft, Key

# Places 1, 2–3, 4–7, 8–15, 16–31, 32 and on.
NUM_RANGES = 6
# A drafter that fails completely in a request must be seen to within some steps, and yet one step
# more or less not turn the scales: the rate falls from the one to the other as 1 / steps. What is
# known of all requests must not follow a single one.
_SEQUENCE_RATES = (0.3, 0.05)
_OVERALL_RATES = (0.05, 0.005)
# How fast what a step did not show goes back to what is usual.
_FORGET_RATE = 0.01
_LEAST_FACTOR, _MOST_FACTOR = 0.01, 3.0
# Nothing is sure: 64 tokens of chance 1 would stand whatever was observed.
_MOST_CHANCE = 0.999
# Where a draft's first token is surer than this, it is of another kind: that weak drafts fail in
# prose says nothing of the long repetition that comes later.
_CONFIDENCE = (0.3, 0.6, 0.85, 0.96)
_Kind = tuple[str, int]
# [first ─ after the last) token of each range.
_BOUNDS = ((0, 1), (1, 3), (3, 7), (7, 15), (15, 31), (31, sys.maxsize))


def place_of(index: int) -> int:
    """The range that a draft's token (from 0) is in."""
    return min((index + 1).bit_length(), NUM_RANGES) - 1


@dataclass(slots=True)
class Factors:
    """Per range of places, what estimates are multiplied by."""

    values: list[float]
    rates: list[float]
    least_rate: float

    @classmethod
    def usual(cls, rates: tuple[float, float]) -> "Factors":
        """`rates`: how much the first observation counts, and the least that any counts."""
        return cls([1.0] * NUM_RANGES, [rates[0]] * NUM_RANGES, rates[1])

    def learn(self, place: int, accepted: float, estimated: float) -> None:
        """Both as shares of the tokens whose turn it was; the estimate with this factor in it."""
        ratio = accepted / max(estimated, 0.001)
        rate = self.rates[place]
        value = self.values[place] * (1.0 + rate * (ratio - 1.0))
        self.values[place] = min(max(value, _LEAST_FACTOR), _MOST_FACTOR)
        self.rates[place] = max(self.least_rate, rate / (1.0 + rate))

    def forget(self, places: Iterable[int]) -> None:
        values = self.values
        for place in places:
            values[place] += _FORGET_RATE * (1.0 - values[place])


@dataclass(frozen=True, slots=True)
class Seen:
    """Of a draft's tokens in one range of places: how many had their turn, were accepted, and were
    expected to be."""

    place: int
    reached: int
    accepted: int
    expected: float


def seen(draft: Draft, tokens: Sequence[int]) -> list[Seen]:
    """What the tokens that were committed say of a draft for their places, verified or not.

    A token of the draft had its turn when all before it were committed; of two that follow the
    same one at most one can be right.
    """
    if len(tokens) == 1 and not draft.parents:
        # By far the most often, where nothing was verified.
        return [Seen(0, 1, int(draft.tokens[0] == tokens[0]), draft.accept[0])]
    return _seen_in_tree(draft, tokens) if draft.parents else _seen_in_chain(draft, tokens)


def _seen_in_chain(draft: Draft, tokens: Sequence[int]) -> list[Seen]:
    pairs = enumerate(zip(draft.tokens, tokens, strict=False))
    most = min(len(draft.tokens), len(tokens))
    right = next((index for index, (ours, its) in pairs if ours != its), most)
    turns = min(right + 1, most)
    found: list[Seen] = []
    for place, (first, after) in enumerate(_BOUNDS):
        last = min(after, turns)
        if last <= first:
            break
        accepted = max(0, min(last, right) - first)
        found.append(Seen(place, last - first, accepted, sum(draft.accept[first:last])))
    return found


def _seen_in_tree(draft: Draft, tokens: Sequence[int]) -> list[Seen]:
    reached, accepted, expected = [0] * NUM_RANGES, [0] * NUM_RANGES, [0.0] * NUM_RANGES
    parent, depth = -1, 0
    for index, token in enumerate(draft.tokens):
        if depth == len(tokens):
            break
        if draft.parents[index] != parent:
            continue
        place = place_of(index)
        reached[place] += 1
        expected[place] += draft.accept[index]
        if token == tokens[depth]:
            accepted[place] += 1
            parent, depth = index, depth + 1
    found = zip(reached, accepted, expected, strict=True)
    return [Seen(place, *counts) for place, counts in enumerate(found) if counts[0]]


class Acceptance:
    """The factors of all drafters by name and confidence: over all requests, of each sequence."""

    def __init__(self) -> None:
        self._overall: dict[_Kind, Factors] = {}
        self._sequences: dict[Key, dict[_Kind, Factors]] = {}

    def start(self, key: Key) -> None:
        self._sequences[key] = {}

    def stop(self, key: Key) -> None:
        self._sequences.pop(key, None)

    def chance(self, key: Key, name: str, index: int, estimate: float) -> float:
        """The estimate for a token of a draft, corrected."""
        overall, own = self._factors(key, name, estimate)
        place = place_of(index)
        return min(_MOST_CHANCE, overall.values[place] * own.values[place] * estimate)

    def corrected(self, key: Key, draft: Draft) -> Draft:
        """The same draft with corrected estimates."""
        overall, own = self._factors(key, draft.source, draft.accept[0])
        accept: list[float] = []
        for place, (first, after) in enumerate(_BOUNDS):
            part = draft.accept[first:after]
            if not part:
                break
            factor = overall.values[place] * own.values[place]
            if factor * max(part) <= _MOST_CHANCE:
                accept += [factor * chance for chance in part]
            else:
                accept += [min(_MOST_CHANCE, factor * chance) for chance in part]
        return Draft(draft.tokens, draft.parents, tuple(accept), draft.source, draft.proposals)

    def learn(self, key: Key, draft: Draft, corrected: Draft, tokens: Sequence[int]) -> None:
        """A draft, the same as it was corrected, and what was committed in its place."""
        overall, own = self._factors(key, draft.source, draft.accept[0])
        shown = seen(corrected, tokens)
        for one in shown:
            share, estimate = one.accepted / one.reached, one.expected / one.reached
            overall.learn(one.place, share, estimate)
            own.learn(one.place, share, estimate)
        own.forget(set(range(NUM_RANGES)).difference(one.place for one in shown))

    def _factors(self, key: Key, name: str, estimate: float) -> tuple[Factors, Factors]:
        kind = (name, bisect(_CONFIDENCE, estimate))
        overall = self._overall.get(kind)
        if overall is None:
            overall = self._overall[kind] = Factors.usual(_OVERALL_RATES)
        sequence = self._sequences[key]
        own = sequence.get(kind)
        if own is None:
            own = sequence[kind] = Factors.usual(_SEQUENCE_RATES)
        return overall, own
