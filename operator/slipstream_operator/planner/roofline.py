"""How long a step takes: what is read, computed and sent, each at the share that a card reaches.

The stages of a pipeline work one after another on one batch: that is what the engine does, so a
pipeline makes room, not speed. Formulas: a roofline as in LLM-Viewer and AIConfigurator.
"""

import math
from dataclasses import dataclass

from slipstream_api.modelfacts import ModelFacts
from slipstream_operator.planner import allreduce, footprint, weights
from slipstream_operator.planner.cards import Card
from slipstream_operator.planner.footprint import Stage
from slipstream_operator.planner.tiers import Tier

# Hidden states travel in 16 bits, twice a layer among tensor ranks.
_STATE_BYTES = 2
_REDUCES_PER_LAYER = 2
# Two norms a layer, each with the sum before it: two reads and two writes of all states, on every
# rank. Beside the products of a long prompt this is 2 % of its time on one GPU, 4 % on eight.
_PASSES_PER_LAYER = 8


@dataclass(frozen=True, slots=True)
class Split:
    """How a replica lies: tensor ranks within one place of `tier`, stages within `hop_tier`."""

    tensor: int
    pipeline: int
    tier: Tier
    hop_tier: Tier


@dataclass(frozen=True, slots=True)
class Seconds:
    """`talking` is the part of `total` that ranks spend on each other."""

    total: float
    talking: float

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.total + other.total, self.talking + other.talking)


_NOTHING = Seconds(0.0, 0.0)


class Roofline:
    """One model on one kind of card."""

    def __init__(self, facts: ModelFacts, card: Card) -> None:
        self._facts = facts
        self._card = card
        self._parts = weights.count(facts)
        self._bytes = weights.in_bytes(facts)
        self._type = card.number_type(facts.weight_format)
        self._flops = card.flops[self._type] * card.compute[self._type]
        self._weight_rate = card.memory_bandwidth * card.weight_read[self._type]
        self._kv_rate = card.memory_bandwidth * card.kv_read

    def decode(self, split: Split, batch: int, context: int) -> Seconds:
        """One token of each of `batch` sequences that are `context` tokens long."""
        attention = batch * self._looks(context) * self._flops_per_look(is_absorbed=True)
        return self._step(split, batch, batch, attention, batch, context)

    def prefill(self, split: Split, prompt: int, chunk: int) -> Seconds:
        """One prompt alone, computed in chunks, until its first token."""
        total = _NOTHING
        for start in range(0, prompt, chunk):
            size = min(chunk, prompt - start)
            # Each token looks at all before it.
            looks = size * self._looks(start + size / 2)
            attention = looks * self._flops_per_look(is_absorbed=False)
            total += self._step(split, size, 1, attention, 1, start)
        return total

    def _step(
        self,
        split: Split,
        tokens: int,
        drawn: int,
        attention: float,
        sequences: int,
        context: int,
    ) -> Seconds:
        facts, card = self._facts, self._card
        sent = tokens * facts.hidden_size * _STATE_BYTES
        reduce = _REDUCES_PER_LAYER * allreduce.seconds(card, split.tier, split.tensor, sent)
        total, talking = 0.0, 0.0
        for stage in footprint.stages(facts, split.tensor, split.pipeline):
            layers = stage.num_layers
            read = self._read_bytes(stage, tokens) / self._weight_rate
            product = self._product_flops(stage, tokens, drawn) / split.tensor / self._flops
            held = sequences * footprint.kv_bytes(facts, stage, context) if context else 0
            share = layers / facts.num_layers / split.tensor
            attend = max(held / self._kv_rate, attention * share / self._flops)
            talk = layers * reduce
            if not stage.is_last:
                talk += allreduce.transfer_s(card, split.hop_tier, sent)
            passes = _PASSES_PER_LAYER * sent / self._weight_rate
            rest = layers * max(card.layer_overhead_s, passes)
            total += max(read, product) + attend + rest + talk
            talking += talk
        return Seconds(total, talking)

    def _read_bytes(self, stage: Stage, tokens: int) -> float:
        """On one GPU. Of experts only those that some token chose; of the embedding a few rows."""
        parts, facts = self._bytes, self._facts
        dense, mixed = weights.num_layers(facts)
        read = parts.attention * stage.num_layers / facts.num_layers
        if stage.num_dense:
            read += parts.dense_mlp * stage.num_dense / dense
        if stage.num_mixed and facts.experts is not None:
            share = facts.experts.num_active / facts.experts.num_experts
            touched = 1.0 if share == 1 else -math.expm1(tokens * math.log1p(-share))
            experts = parts.shared_experts + touched * parts.routed_experts
            read += experts * stage.num_mixed / mixed
        if stage.is_last:
            read += parts.head or parts.embedding
        return read / stage.tensor

    def _product_flops(self, stage: Stage, tokens: int, drawn: int) -> float:
        """Of the whole stage: matrix products without attention; the head only where it draws."""
        parts, experts = self._parts, self._facts.experts
        active = 0 if experts is None else experts.num_active * parts.one_expert
        mixed = parts.shared_experts + parts.router + active
        per_token = stage.num_layers * parts.attention
        per_token += stage.num_dense * parts.dense_mlp + stage.num_mixed * mixed
        return 2.0 * (tokens * per_token + (drawn * parts.embedding if stage.is_last else 0))

    def _looks(self, context: float) -> float:
        """Tokens that one token looks back at, over all layers."""
        window, layers = self._facts.window, self._facts.num_layers
        if window is None:
            return layers * context
        full = layers - window.num_layers
        return full * context + window.num_layers * min(context, window.tokens)

    def _flops_per_look(self, *, is_absorbed: bool) -> float:
        """One token at another in all heads of a layer: scores and values.

        Latent attention decodes over the latent rows as they are, and expands them in a prefill.
        """
        facts, latent = self._facts, self._facts.latent
        if latent is None:
            width = 2 * facts.head_dim
        elif is_absorbed:
            width = 2 * latent.kv_rank + latent.rope_dim
        else:
            width = latent.nope_dim + latent.rope_dim + latent.value_dim
        return 2.0 * facts.num_heads * width
