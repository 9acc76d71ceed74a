"""A request and its progress; knows no tensors, no clock and no HTTP."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """OpenAI's words, plus `abort`, which no client ever sees."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """`temperature` 0 is greedy; `top_k` 0 and `top_p` 1 cut nothing off.

    `seed` together with a token's absolute position decides its random number, so that an answer
    depends neither on what else is in the batch nor on preemption.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for, in tokens."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    end_tokens: frozenset[int]


@dataclass(slots=True)
class Sequence:
    """A request on its way.

    [0 ─ num_computed) has keys and values in `pages`; [num_computed ─ len(tokens)) is still to be
    computed; the last row of that part gives the next token.
    """

    request: Request
    order: int
    tokens: list[int] = field(init=False)
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)
