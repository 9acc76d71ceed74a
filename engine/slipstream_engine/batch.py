"""What goes into one forward pass and what comes back: the only thing between policy and tensors.

Integers and floats alone, so that a batch can be sent to every rank; knows no tensors.
"""

from dataclasses import dataclass
from enum import StrEnum

from slipstream_engine.request import FinishReason, SamplingParams
from slipstream_engine.spec.draft import Proposal


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to be drawn from the logits of one row of a chunk.

    `row` counts from the chunk's first token; several draws may share it (`n` answers part at
    the prompt's last token) and a chunk may have draws at several rows (a draft is verified so).
    `position` is where the new token will stand. `history` holds the tokens before it and is
    empty unless `sampling.needs_history`; its first `num_prompt_tokens` are the prompt.
    `banned` are never drawn: end tokens of an answer that is still too short.
    `allowed`: a bit for each token, the lowest of the first byte for token 0; only those that are
    set may be drawn; no bytes allow all. `proposal`: the draft's next token `drafted`
    was drawn from it, and is taken or replaced so that the result is the model's own distribution.
    """

    row: int
    position: int
    sample: int
    sampling: SamplingParams
    history: tuple[int, ...] = ()
    num_prompt_tokens: int = 0
    banned: tuple[int, ...] = ()
    allowed: bytes = b""
    drafted: int = -1
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence, the drafted ones after its own.

    Their keys and values stand at [start ─ start + len(tokens)); `pages` hold everything up to
    there, in order. `parents`: () for a chain; of a tree, for each of the tokens the one before it,
    -1 for the first. (Not masks of all that stand before: those of 65 tokens are too large to be
    sent as numbers.)
    """

    start: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    draws: tuple[Draw, ...] = ()
    parents: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass.

    Before it, first `moves` are made, (source row, target row) of the pool, all at once: the
    accepted path of a tree draws together. Then `copies`, (source page, target page), copy on
    write; no page is a source and a target, so their order means nothing.
    `num_prefill_tokens` of its tokens are prompts.
    """

    chunks: tuple[Chunk, ...]
    copies: tuple[tuple[int, int], ...] = ()
    num_prefill_tokens: int = 0
    moves: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def num_draws(self) -> int:
        return sum(len(chunk.draws) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability before temperature, penalties and cuts."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token of one draw. `logprob` and `top` (most likely first) only where asked for.

    `flaw`: why nothing could be drawn; the token is -1 then.
    """

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """A new token of one sample of a request, and its end if that was the last one.

    `num_cached_tokens`: how much of the prompt was found in the prefix cache.
    """

    request_id: str
    sample: int
    sampled: Sampled
    finish: FinishReason | None
    num_cached_tokens: int


class Cause(StrEnum):
    """What of a request failed: the form of its answer, or the drawing of a token."""

    GUIDE = "guide"
    DRAW = "draw"


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a request, all of its samples, by a fault of its own. Nothing else is touched."""

    request_id: str
    message: str
    cause: Cause = Cause.GUIDE


@dataclass(frozen=True, slots=True)
class Load:
    """Where the queues and the pages stand; the counters only ever grow.

    Pages: used ones belong to sequences, cached ones to nobody but may be found again; the rest
    of `num_pages` is free. `num_prefix_queries` and `num_prefix_hits` count prompt tokens.
    """

    num_running: int
    num_waiting: int
    num_pages_used: int
    num_pages_cached: int
    num_pages: int
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    num_preemptions: int = 0
