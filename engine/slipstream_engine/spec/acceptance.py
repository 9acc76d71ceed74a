"""How far the drafters' estimates are from what is really accepted, learnt as answers go by.

For each drafter and each range of places in a draft two factors by which its estimates are
multiplied: one over all requests, slow, and one of the sequence, quick. Each is the exponential
average of accepted / estimated. A draft that was not verified teaches too: what was committed says
whether its first token was right, so a drafter that was given up needs no probe to be found again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream_engine.spec.draft import Draft, Key

# Places 1, 2–3, 4–7, 8–15, 16–31, 32 and on.
NUM_RANGES = 6
# A drafter that fails completely in a request must be seen to within some steps, and yet one step
# more or less not turn the scales: the rate falls from the one to the other as 1 / steps. What is
# known of all requests must not follow a single one.
_SEQUENCE_RATES = (0.3, 0.05)
_OVERALL_RATES = (0.01, 0.01)
# How fast what a step did not show goes back to what is usual.
_FORGET_RATE = 0.01
_LEAST_FACTOR, _MOST_FACTOR = 0.01, 3.0
# Nothing is sure: 64 tokens of chance 1 would stand whatever was observed.
_MOST_CHANCE = 0.999


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

    def forget(self, place: int) -> None:
        self.values[place] += _FORGET_RATE * (1.0 - self.values[place])


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
    reached = [0] * NUM_RANGES
    accepted = [0] * NUM_RANGES
    expected = [0.0] * NUM_RANGES
    parent, depth = -1, 0
    for index, token in enumerate(draft.tokens):
        if draft.parent(index) != parent:
            continue
        if depth == len(tokens):
            break
        place = place_of(index)
        reached[place] += 1
        expected[place] += draft.accept[index]
        if token == tokens[depth]:
            accepted[place] += 1
            parent, depth = index, depth + 1
        elif not draft.parents:
            break
    found = zip(reached, accepted, expected, strict=True)
    return [Seen(place, *counts) for place, counts in enumerate(found) if counts[0]]


class Acceptance:
    """The factors of all drafters, by name, over all requests and of each sequence."""

    def __init__(self) -> None:
        self._overall: dict[str, Factors] = {}
        self._sequences: dict[Key, dict[str, Factors]] = {}

    def start(self, key: Key) -> None:
        self._sequences[key] = {}

    def stop(self, key: Key) -> None:
        self._sequences.pop(key, None)

    def chance(self, key: Key, name: str, index: int, estimate: float) -> float:
        """The estimate for a token of a draft, corrected."""
        place = place_of(index)
        factor = self._of_all(name).values[place] * self._of_sequence(key, name).values[place]
        return min(_MOST_CHANCE, factor * estimate)

    def corrected(self, key: Key, draft: Draft) -> Draft:
        """The same draft with corrected estimates."""
        overall, own = (
            self._of_all(draft.source).values,
            self._of_sequence(key, draft.source).values,
        )
        factors = [first * second for first, second in zip(overall, own, strict=True)]
        accept: list[float] = []
        for place, factor in enumerate(factors):
            last = 2 ** (place + 1) - 1 if place < NUM_RANGES - 1 else None
            part = draft.accept[2**place - 1 : last]
            accept += [min(_MOST_CHANCE, factor * chance) for chance in part]
        return replace(draft, accept=tuple(accept))

    def learn(self, key: Key, draft: Draft, tokens: Sequence[int]) -> None:
        """`draft` as `corrected` gave it, `tokens` what was committed in its place."""
        overall, own = self._of_all(draft.source), self._of_sequence(key, draft.source)
        shown = seen(draft, tokens)
        for one in shown:
            share, estimate = one.accepted / one.reached, one.expected / one.reached
            overall.learn(one.place, share, estimate)
            own.learn(one.place, share, estimate)
        for place in set(range(NUM_RANGES)) - {one.place for one in shown}:
            own.forget(place)

    def _of_all(self, name: str) -> Factors:
        return self._overall.setdefault(name, Factors.usual(_OVERALL_RATES))

    def _of_sequence(self, key: Key, name: str) -> Factors:
        return self._sequences[key].setdefault(name, Factors.usual(_SEQUENCE_RATES))
