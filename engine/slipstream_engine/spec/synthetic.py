"""Acceptance as if: for load tests, how many drafted tokens count whatever the model says.

The output is then not the model's. As in vLLM's `rejection_sample_method: synthetic`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from slipstream_engine.spec.draft import Draft, Key, Subject


@dataclass(frozen=True, slots=True)
class Synthetic:
    """`rates[i]`: how often drafted token i and all before it count; falling, from 0 to 1.

    The same seed, sequence and position give the same answer, whatever else is in the batch.
    Raises ValueError for rates that rise or are no shares.
    """

    rates: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        falls = all(
            0 <= later <= rate for rate, later in zip(self.rates, self.rates[1:], strict=False)
        )
        if not falls or not all(0 <= rate <= 1 for rate in self.rates):
            raise ValueError(f"rates must fall from at most 1 to at least 0: {self.rates}")

    @classmethod
    def of_length(cls, length: float, seed: int = 0) -> Self:
        """Steps that yield `length` tokens on average, the one that is never drafted included,
        where enough are drafted: the earliest tokens always count, the next one now and then, as in
        vLLM and SGLang. Raises ValueError below 1."""
        if not length >= 1:
            raise ValueError(f"a step yields at least one token: {length}")
        whole = int(length - 1)
        rest = length - 1 - whole
        return cls((1.0,) * whole + ((rest,) if rest else ()), seed)

    def accepted(self, key: Key, position: int, num_drafted: int) -> int:
        """How many of the tokens count that were drafted for `position` and on."""
        name = f"{self.seed}/{key[0]}/{key[1]}/{position}".encode()
        chance = int.from_bytes(hashlib.blake2b(name, digest_size=7).digest()) / 2**56
        return sum(chance < rate for rate in self.rates[:num_drafted])


class SyntheticDrafter:
    """A `Drafter` of as many tokens as there may be, with the chances that were asked for."""

    name = "synthetic"
    features: tuple[int, ...] = ()

    def __init__(self, synthetic: Synthetic) -> None:
        rates = synthetic.rates
        before = (1.0, *rates)
        self._accept = tuple(
            rate / one if one else 0.0 for rate, one in zip(rates, before, strict=False)
        )
        self._latest: dict[Key, int] = {}

    def start(self, subject: Subject) -> None:
        self._latest[subject.key] = subject.prompt[-1]

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        """Any token will do: the latest one, of which the model has a row."""
        drafts = []
        for key, budget in asked:
            accept = self._accept[:budget] + (0.0,) * (budget - len(self._accept))
            drafts.append(Draft((self._latest[key],) * budget, (), accept, self.name))
        return drafts

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        self._latest[key] = tokens[-1]

    def stop(self, key: Key, finished: bool) -> None:
        self._latest.pop(key, None)
