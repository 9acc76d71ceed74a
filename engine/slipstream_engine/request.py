"""A request and its progress; knows no tensors, no clock and no HTTP."""

from dataclasses import dataclass
from enum import StrEnum

from slipstream_engine.guides.spec import Guide


class FinishReason(StrEnum):
    """OpenAI's words, plus `abort`, which no client ever sees."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one token is drawn; the neutral value of every field changes nothing.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 cut nothing off. Presence and
    frequency penalties count the answer's tokens; the repetition penalty the prompt's too (as vLLM
    does). `seed`, the index of the sample and a token's absolute position decide its random
    number, so an answer depends neither on what else is in the batch nor on preemption.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    # None: no log-probabilities; 0: the drawn token's alone; k: the k most likely ones too.
    num_top_logprobs: int | None = None

    @property
    def needs_history(self) -> bool:
        """Whether a draw depends on the tokens before it."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for, in tokens.

    `end_tokens` are the model's and the client's stop ids together: the answer ends at one, and
    the token is no part of it. Below `min_tokens` they are never drawn. `root_key` is the start
    of the prompt's chain of page keys: two requests share pages only when theirs are equal.
    Lower `priority` goes first. `prediction`: tokens that the answer will probably repeat, which
    change nothing but its speed; `is_predicted`: the client named them, and is told what they gave.
    `guide`: the form that the answer must have.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    end_tokens: frozenset[int]
    min_tokens: int = 0
    num_samples: int = 1
    priority: int = 0
    root_key: bytes = b""
    prediction: tuple[int, ...] = ()
    is_predicted: bool = False
    guide: Guide | None = None

    def check(self, max_context: int, key_bytes: int) -> None:
        """Raises ValueError for what can never run."""
        if not 0 < len(self.prompt) < max_context:
            raise ValueError(f"a prompt of {len(self.prompt)} tokens")
        if self.max_tokens < 1 or self.num_samples < 1:
            raise ValueError(f"{self.num_samples} answers of at most {self.max_tokens}")
        if len(self.root_key) not in (0, key_bytes):
            raise ValueError(f"a root key of {len(self.root_key)} bytes")
