"""Acceptance as if: for load tests, how many drafted tokens count whatever the model says.

The output is then not the model's. As in vLLM's `rejection_sample_method: synthetic`.
"""

import hashlib
from dataclasses import dataclass
from typing import Self

from slipstream_engine.spec.draft import Key


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
