"""ModelFacts: what was read from a checkpoint's configuration and tensor headers, as one record.

The planner needs nothing else of a model. Who inspects a checkpoint writes it; it holds no tensor
and no tokenizer.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from slipstream_api.schema import ConfigModel

# `int8` and `int4` are codes with a scale for each group of columns; `fp8` has one for each block.
WeightFormat = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp4"]


class ExpertFacts(ConfigModel):
    """The mixture of experts in all layers but the first `num_dense_layers`."""

    num_experts: int = Field(ge=1)
    num_active: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_shared: int = Field(default=0, ge=0, description="As wide as one expert each.")
    num_dense_layers: int = Field(default=0, ge=0)


class LatentFacts(ConfigModel):
    """Multi-head latent attention: what a layer keeps of a token is `kv_rank + rope_dim` wide."""

    kv_rank: int = Field(ge=1)
    query_rank: int | None = Field(default=None, ge=1)
    rope_dim: int = Field(ge=1)
    nope_dim: int = Field(ge=1)
    value_dim: int = Field(ge=1)


class WindowFacts(ConfigModel):
    """Layers that look back over the last `tokens` only."""

    tokens: int = Field(ge=1)
    num_layers: int = Field(ge=1)


class WeightBytes(ConfigModel):
    """Bytes by what is done with them, over all layers; norms and biases count to their matrix.

    Routers count to the shared experts: every token goes through both.
    """

    embedding: int = Field(ge=1)
    head: int = Field(ge=0, description="0: the embedding is used once more.")
    attention: int = Field(ge=1)
    dense_mlp: int = Field(ge=0)
    shared_experts: int = Field(default=0, ge=0)
    routed_experts: int = Field(default=0, ge=0)

    @property
    def total(self) -> int:
        experts = self.shared_experts + self.routed_experts
        return self.embedding + self.head + self.attention + self.dense_mlp + experts


class ModelFacts(ConfigModel):
    schema_version: Literal[1] = 1
    name: str = Field(min_length=1, max_length=256)
    source: str = Field(min_length=1, max_length=1024, description="Where this was read.")
    architecture: str = Field(min_length=1, description="As config.json names it.")
    num_layers: int = Field(ge=1, le=4096)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    max_positions: int = Field(ge=1)
    has_tied_embeddings: bool = False
    weight_format: WeightFormat = Field(description="Of most of the weights.")
    attention_format: WeightFormat | None = Field(
        default=None, description="Where it is another one than that of the MLP or the experts."
    )
    weight_group: int | None = Field(
        default=None, ge=1, description="Columns that share one scale: no split may cut them."
    )
    experts: ExpertFacts | None = None
    latent: LatentFacts | None = None
    window: WindowFacts | None = None
    weights: WeightBytes | None = Field(
        default=None, description="From tensor headers. Unset: derived from sizes and formats."
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.num_kv_heads} KV heads")
        if self.window is not None and self.window.num_layers > self.num_layers:
            raise ValueError(f"{self.window.num_layers} windowed layers of {self.num_layers}")
        if self.experts is not None:
            if self.experts.num_active > self.experts.num_experts:
                raise ValueError(f"{self.experts.num_active} of {self.experts.num_experts} experts")
            if self.experts.num_dense_layers >= self.num_layers:
                raise ValueError(f"{self.experts.num_dense_layers} dense layers of as many")
        return self
