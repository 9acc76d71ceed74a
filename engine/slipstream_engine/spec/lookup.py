"""Prompt lookup, the common baseline: what followed an earlier occurrence of the last n tokens.

Without an index: the text is bytes and the interpreter searches them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slipstream_engine.spec import chances, packed
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Subject


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """The last `longest` tokens are looked for first, then one less down to `shortest`; of several
    occurrences the last is taken, or the first; `most_tokens` of what followed are drafted."""

    shortest: int = 2
    longest: int = 8
    most_tokens: int = 64
    is_first: bool = False


# What transformers and others do by default.
COMMON = LookupOptions(shortest=1, longest=3, most_tokens=10, is_first=True)


class LookupDrafter:
    """A `Drafter`."""

    name = "lookup"
    features: tuple[int, ...] = ()

    def __init__(self, options: LookupOptions = LookupOptions()) -> None:
        self._options = options
        self._tokens: dict[Key, list[int]] = {}
        self._packed: dict[Key, bytearray] = {}

    def start(self, subject: Subject) -> None:
        self._tokens[subject.key] = list(subject.prompt)
        self._packed[subject.key] = bytearray(packed.pack(subject.prompt))

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        return [self._draft(key, budget) for key, budget in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        self._tokens[key] += tokens
        self._packed[key] += packed.pack(tokens)

    def stop(self, key: Key, finished: bool) -> None:
        self._tokens.pop(key, None)
        self._packed.pop(key, None)

    def _draft(self, key: Key, budget: int) -> Draft:
        tokens = self._tokens[key]
        count = min(budget, self._options.most_tokens)
        for length in range(min(self._options.longest, len(tokens) - 1), 0, -1):
            if length < self._options.shortest:
                break
            place = next(self._places(key, length), None)
            if place is not None:
                drafted = tuple(tokens[place : place + count])
                accept = chances.after_match(length, len(drafted))
                return Draft(drafted, (), accept, self.name)
        return NO_DRAFT

    def _places(self, key: Key, length: int) -> Iterator[int]:
        """Where it went on after the last so many tokens, but for the end of the text itself."""
        text, last = self._packed[key], len(self._tokens[key]) - 1
        pattern = bytes(text[-length * packed.SIZE :])
        search = packed.forwards if self._options.is_first else packed.backwards
        return search(text, pattern, 0, last)
