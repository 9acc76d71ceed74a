"""A small model of the same tokeniser drafts: one token after another, for all sequences at once.

It has pages of its own. What it has computed of a sequence is kept as long as it became output, so
that a step begins with the last token or two; a prompt is read when its first draft is asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from slipstream_engine.batch import Batch, Chunk, Draw
from slipstream_engine.pages import PagePool
from slipstream_engine.request import SamplingParams
from slipstream_engine.sampler import uniform
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Proposal, Subject

_GREEDY = SamplingParams(temperature=0.0)
# What a drawn draft is drawn from: the rest of the vocabulary has next to nothing of the chance,
# and every token that could be drawn is carried along.
_DRAWN_FROM = 20


class HasLogits(Protocol):
    def logits(self, batch: Batch) -> Tensor:
        """Of every draw of a batch: [draws, vocabulary]."""
        ...


@dataclass(slots=True)
class _Sequence:
    """`tokens` are output, of which the first `num_computed` stand in `pages`."""

    subject: Subject
    tokens: list[int]
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    # Behind the output: what was drafted and computed in the last draft.
    drafted: list[int] = field(default_factory=list)


class ModelDrafter:
    """A `Drafter`. `is_drawing`: by its own distribution, else its likeliest tokens."""

    name = "model"
    features: tuple[int, ...] = ()

    def __init__(
        self,
        runner: HasLogits,
        num_pages: int,
        page_tokens: int,
        max_context: int,
        max_batch_tokens: int,
        *,
        is_drawing: bool = False,
    ) -> None:
        self._runner = runner
        self._pages = PagePool(num_pages)
        self._page_tokens = page_tokens
        self._max_context = max_context
        self._max_batch_tokens = max_batch_tokens
        self._is_drawing = is_drawing
        self._sequences: dict[Key, _Sequence] = {}

    @property
    def num_pages_used(self) -> int:
        return self._pages.num_used

    def start(self, subject: Subject) -> None:
        self._sequences[subject.key] = _Sequence(subject, list(subject.prompt))

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        """None for a sequence that does not fit into its context or its pages."""
        budgets: dict[Key, int] = {}
        for key, budget in asked:
            sequence = self._sequences[key]
            room = self._max_context - len(sequence.tokens)
            if min(budget, room) > 0 and self._grow(sequence, min(budget, room)):
                budgets[key] = min(budget, room)
                sequence.drafted = []
        drafted: dict[Key, list[_Drawn]] = {key: [] for key in budgets}
        going_on = list(budgets)
        while going_on:
            for key, logits in zip(going_on, self._logits(going_on), strict=True):
                sequence = self._sequences[key]
                drawn = self._draw(sequence, logits)
                drafted[key].append(drawn)
                sequence.drafted.append(drawn.token)
            going_on = [key for key in going_on if len(drafted[key]) < budgets[key]]
        return [self._draft(drafted.get(key, [])) for key, _ in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        """Of what was drafted the part that became output has been computed already."""
        sequence = self._sequences[key]
        # The last drafted token was never an input.
        for token, drafted in zip(tokens, sequence.drafted[:-1], strict=False):
            if token != drafted or sequence.num_computed < len(sequence.tokens):
                break
            sequence.tokens.append(token)
            sequence.num_computed += 1
            tokens = tokens[1:]
        sequence.tokens += tokens
        sequence.drafted = []
        num_kept = -(-len(sequence.tokens) // self._page_tokens)
        self._pages.release(sequence.pages[num_kept:])
        del sequence.pages[num_kept:]

    def stop(self, key: Key, finished: bool) -> None:
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            self._pages.release(sequence.pages)

    def _grow(self, sequence: _Sequence, budget: int) -> bool:
        """Pages for the sequence and a draft of which the last token is no input."""
        wanted = -(-(len(sequence.tokens) + budget - 1) // self._page_tokens) - len(sequence.pages)
        if wanted > 0:
            taken = self._pages.allocate(wanted, sequence.pages[-1] if sequence.pages else None)
            if taken is None:
                return False
            sequence.pages += taken
        return True

    def _logits(self, keys: Sequence[Key]) -> list[Tensor]:
        """What follows the last token of each: [vocabulary] each. Reads what was not read yet."""
        found: dict[Key, Tensor] = {}
        while len(found) < len(keys):
            chunks: list[tuple[Key, Chunk]] = []
            budget = max(self._max_batch_tokens, 1)
            for key in keys:
                if key not in found and budget > 0:
                    chunk = self._chunk(self._sequences[key], budget)
                    budget -= len(chunk.tokens)
                    chunks.append((key, chunk))
            rows = iter(self._runner.logits(Batch(tuple(chunk for _, chunk in chunks))))
            for key, chunk in chunks:
                sequence = self._sequences[key]
                num_output = min(len(sequence.tokens), chunk.end)
                sequence.num_computed = max(sequence.num_computed, num_output)
                if chunk.draws:
                    found[key] = next(rows)
        return [found[key] for key in keys]

    def _chunk(self, sequence: _Sequence, budget: int) -> Chunk:
        """The next tokens that were not computed, or the last one that was drafted."""
        every = [*sequence.tokens, *sequence.drafted]
        start = sequence.num_computed if not sequence.drafted else len(every) - 1
        # The last token is always an input again: its logits are wanted.
        start = min(start, len(every) - 1)
        tokens = tuple(every[start : start + budget])
        end = start + len(tokens)
        pages = tuple(sequence.pages[: -(-end // self._page_tokens)])
        draws = (Draw(len(tokens) - 1, end, 0, _GREEDY),) if end == len(every) else ()
        return Chunk(start, tokens, pages, draws)

    def _draw(self, sequence: _Sequence, logits: Tensor) -> "_Drawn":
        """Raises FloatingPointError: accepted is then what nobody drew, and nothing shows it."""
        subject, largest = sequence.subject, float(logits.max())
        if not math.isfinite(largest):
            raise FloatingPointError(f"the largest logit is {largest}")
        if not self._is_drawing or subject.temperature == 0.0:
            token = int(logits.argmax())
            chance = float(torch.exp(logits[token] - logits.logsumexp(dim=-1)))
            return _Drawn(token, chance, None)
        values, tokens = logits.topk(min(_DRAWN_FROM, len(logits)))
        # Not more than 0, so that a tiny temperature leaves numbers.
        weights = (values - values[0]).double() / subject.temperature
        probs = torch.softmax(weights, dim=-1).tolist()
        position = len(sequence.tokens) + len(sequence.drafted)
        u, place, total = uniform(subject.seed, subject.key[1], position, "draft"), 0, probs[0]
        while u >= total and place < len(probs) - 1:
            place += 1
            total += probs[place]
        proposal = Proposal(tuple(tokens.tolist()), tuple(probs))
        return _Drawn(proposal.tokens[place], probs[0], proposal)

    def _draft(self, drawn: Sequence["_Drawn"]) -> Draft:
        if not drawn:
            return NO_DRAFT
        proposals = tuple(one.proposal for one in drawn if one.proposal is not None)
        chances = [min(1.0, one.chance) for one in drawn]
        if proposals:
            # What was known before anything was drawn: where a draft ends must not depend on that.
            chances = chances[:1] * len(drawn)
        tokens = tuple(one.token for one in drawn)
        return Draft(tokens, (), tuple(chances), self.name, proposals)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A drafted token, what it was drawn from, and the chance that the draft model gives the
    likeliest one."""

    token: int
    chance: float
    proposal: Proposal | None
