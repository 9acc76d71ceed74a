"""What of a model lies on one GPU, and how many tokens fit beside it.

Stages have whole layers, the earlier ones one more where they cannot be equal; the first holds the
embedding, the last the head: as the engine splits.
"""

from dataclasses import dataclass
from fractions import Fraction

from slipstream_api.modelfacts import ModelFacts
from slipstream_operator.planner import weights
from slipstream_operator.planner.cards import Card

KV_ITEM_BYTES = 2
PAGE_TOKENS = 16
# What the engine and the driver take beside weights and pages: AIConfigurator's figures.
_RESERVE_BYTES = 3_500_000_000
_RANKS_BYTES = 390_000_000
# Activations of the largest batch, at 20 bytes a token and hidden value.
_ACTIVATION_BYTES = 20
_LEAST_ACTIVATIONS, _MOST_ACTIVATIONS = 1_000_000_000, 3_000_000_000


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of the layers, shared by `tensor` ranks."""

    tensor: int
    num_dense: int
    num_mixed: int
    is_first: bool
    is_last: bool

    @property
    def num_layers(self) -> int:
        return self.num_dense + self.num_mixed


def stages(facts: ModelFacts, tensor: int, pipeline: int) -> tuple[Stage, ...]:
    num_dense, _ = weights.num_layers(facts)
    size, more = divmod(facts.num_layers, pipeline)
    result = []
    start = 0
    for index in range(pipeline):
        end = start + size + (index < more)
        dense = max(0, min(end, num_dense) - start)
        mixed = end - start - dense
        result.append(Stage(tensor, dense, mixed, index == 0, index == pipeline - 1))
        start = end
    return tuple(result)


def weight_bytes(facts: ModelFacts, stage: Stage) -> int:
    """On one GPU of the stage."""
    parts = weights.in_bytes(facts)
    dense, mixed = weights.num_layers(facts)
    held = Fraction(parts.attention * stage.num_layers, facts.num_layers)
    if dense:
        held += Fraction(parts.dense_mlp * stage.num_dense, dense)
    if mixed:
        held += Fraction((parts.shared_experts + parts.routed_experts) * stage.num_mixed, mixed)
    if stage.is_first:
        held += parts.embedding
    if stage.is_last:
        # A tied head on another GPU than the embedding is a second copy.
        held += parts.head or (0 if stage.is_first else parts.embedding)
    return -int(-held // stage.tensor)


def kv_bytes(facts: ModelFacts, stage: Stage, num_tokens: int) -> int:
    """Of one sequence of so many tokens, on one GPU of the stage, in whole pages."""
    if facts.latent is not None:
        # Every rank needs all of it: heads are split, what they share is not.
        row = (facts.latent.kv_rank + facts.latent.rope_dim) * KV_ITEM_BYTES
    else:
        row = 2 * -(-facts.num_kv_heads // stage.tensor) * facts.head_dim * KV_ITEM_BYTES
    pages = _in_pages(num_tokens)
    if facts.window is None:
        return stage.num_layers * row * pages
    share = Fraction(facts.window.num_layers, facts.num_layers)
    held = share * _in_pages(min(num_tokens, facts.window.tokens)) + (1 - share) * pages
    return -int(-held * stage.num_layers * row // 1)


def room_bytes(card: Card, facts: ModelFacts, stage: Stage, num_ranks: int, engine: "Use") -> int:
    """For pages, on one GPU of the stage; below zero where the weights alone do not fit."""
    activations = engine.chunk_tokens * facts.hidden_size * _ACTIVATION_BYTES // stage.tensor
    activations = min(max(activations, _LEAST_ACTIVATIONS), _MOST_ACTIVATIONS)
    reserve = _RESERVE_BYTES + (_RANKS_BYTES if num_ranks > 1 else 0)
    usable = card.memory_bytes * engine.memory_percent // 100
    return usable - reserve - activations - weight_bytes(facts, stage)


@dataclass(frozen=True, slots=True)
class Use:
    """How the engine uses a GPU."""

    memory_percent: int = 90
    chunk_tokens: int = 512


def _in_pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_TOKENS) * PAGE_TOKENS
