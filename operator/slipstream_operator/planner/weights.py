"""How many parameters each part of a model has, and how many bytes they are.

Bytes come from tensor headers where the facts hold them, else from sizes and formats. Norms and
biases are left out of the count: a ten-thousandth of the rest.
"""

from dataclasses import dataclass

from slipstream_api.modelfacts import ModelFacts, WeightBytes, WeightFormat

# With the scales: fp8 one for a block of 128 x 128, int8 and mxfp4 one for 32 columns, nvfp4 for
# 16, int4 a scale and a minimum for 128.
BYTES_PER_PARAMETER: dict[WeightFormat, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0002,
    "int8": 1.0625,
    "int4": 0.5 + 2.5 / 128,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
}
_PLAIN = frozenset({"fp32", "bf16", "fp16"})


@dataclass(frozen=True, slots=True)
class Parameters:
    """Of one layer each, but for `embedding`, which is as large as the head."""

    embedding: int
    attention: int
    dense_mlp: int
    shared_experts: int
    router: int
    one_expert: int


def count(facts: ModelFacts) -> Parameters:
    hidden, experts = facts.hidden_size, facts.experts
    one_expert = 0 if experts is None else 3 * hidden * experts.intermediate_size
    return Parameters(
        embedding=facts.vocab_size * hidden,
        attention=_attention(facts),
        dense_mlp=3 * hidden * facts.intermediate_size,
        shared_experts=0 if experts is None else experts.num_shared * one_expert,
        router=0 if experts is None else experts.num_experts * hidden,
        one_expert=one_expert,
    )


def _attention(facts: ModelFacts) -> int:
    hidden, heads, latent = facts.hidden_size, facts.num_heads, facts.latent
    if latent is None:
        return 2 * hidden * (heads + facts.num_kv_heads) * facts.head_dim
    query_width = heads * (latent.nope_dim + latent.rope_dim)
    rank = latent.query_rank
    query = hidden * query_width if rank is None else rank * (hidden + query_width)
    down = hidden * (latent.kv_rank + latent.rope_dim)
    up = latent.kv_rank * heads * (latent.nope_dim + latent.value_dim)
    return query + down + up + heads * latent.value_dim * hidden


def num_layers(facts: ModelFacts) -> tuple[int, int]:
    """(dense, with experts)."""
    dense = facts.num_layers if facts.experts is None else facts.experts.num_dense_layers
    return dense, facts.num_layers - dense


def total(facts: ModelFacts) -> int:
    """All parameters."""
    parts = count(facts)
    dense, mixed = num_layers(facts)
    experts = 0 if facts.experts is None else facts.experts.num_experts * parts.one_expert
    return (
        parts.embedding * (1 if facts.has_tied_embeddings else 2)
        + facts.num_layers * parts.attention
        + dense * parts.dense_mlp
        + mixed * (parts.shared_experts + parts.router + experts)
    )


def in_bytes(facts: ModelFacts) -> WeightBytes:
    """From the tensor headers, or derived: embedding, head and router are never quantised."""
    if facts.weights is not None:
        return facts.weights
    parts = count(facts)
    dense, mixed = num_layers(facts)
    of_mlp = BYTES_PER_PARAMETER[facts.weight_format]
    of_attention = BYTES_PER_PARAMETER[facts.attention_format or facts.weight_format]
    plain = of_mlp if facts.weight_format in _PLAIN else BYTES_PER_PARAMETER["bf16"]
    experts = 0 if facts.experts is None else facts.experts.num_experts * parts.one_expert
    embedding = round(parts.embedding * plain)
    return WeightBytes(
        embedding=embedding,
        head=0 if facts.has_tied_embeddings else embedding,
        attention=round(facts.num_layers * parts.attention * of_attention),
        dense_mlp=round(dense * parts.dense_mlp * of_mlp),
        shared_experts=round(mixed * (parts.shared_experts * of_mlp + parts.router * plain)),
        routed_experts=round(mixed * experts * of_mlp),
    )
