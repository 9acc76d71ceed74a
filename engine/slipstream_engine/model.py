"""One decoder family, read top to bottom: Llama, Qwen2, Qwen3.

Knows tensors and a ragged batch of them; no requests, no scheduling, no files.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from slipstream_engine.kvpool import KvPool
from slipstream_kernels import reference as ops
from slipstream_kernels.reference import Span
from slipstream_weights.checkpoint import Array, Checkpoint, Llama3RopeScaling, RopeFactors


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A ragged batch: all chunks' tokens one after another.

    tokens, positions, slots: [tokens]; slots are rows of the flattened pool that receive the
    tokens' keys and values. last_rows: [samples], the rows whose next token is wanted.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    spans: list[Span]
    last_rows: Tensor


@dataclass(slots=True)
class Layer:
    """Weights of one layer; Q, K and V (gate and up) are stacked so that one product does."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """Token ids and positions in, logits out; keys and values go to the pool on the way."""

    def __init__(
        self, checkpoint: Checkpoint, tensors: Iterable[tuple[str, Array]], dtype: torch.dtype
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        named = {name: torch.from_numpy(array).to(dtype) for name, array in tensors}
        self.embedding = named.pop("model.embed_tokens.weight")
        self.norm = named.pop("model.norm.weight")
        self.head = (
            self.embedding if checkpoint.has_tied_embeddings else named.pop("lm_head.weight")
        )
        self.layers = [_layer(named, index) for index in range(checkpoint.num_layers)]
        self._inverse_frequencies = inverse_frequencies(checkpoint)

    @torch.inference_mode()
    def forward(self, batch: ModelInput, pool: KvPool) -> Tensor:
        """Logits of `last_rows`: [samples, vocabulary], float32."""
        angles = batch.positions.float().unsqueeze(1) * self._inverse_frequencies
        cos, sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
        eps = self.checkpoint.rms_norm_eps
        x = functional.embedding(batch.tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            attended = self._attend(
                layer, index, ops.rms_norm(x, layer.input_norm, eps), cos, sin, batch, pool
            )
            x = x + functional.linear(attended, layer.output, layer.output_bias)
            hidden = functional.linear(ops.rms_norm(x, layer.post_norm, eps), layer.gate_up)
            x = x + functional.linear(ops.silu_mul(hidden), layer.down)
        last = ops.rms_norm(x.index_select(0, batch.last_rows), self.norm, eps)
        return functional.linear(last, self.head).float()

    def _attend(
        self,
        layer: Layer,
        index: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: ModelInput,
        pool: KvPool,
    ) -> Tensor:
        shape = self.checkpoint
        size = shape.head_dim
        qkv = functional.linear(x, layer.qkv, layer.qkv_bias)
        qkv = qkv.view(len(x), shape.num_heads + 2 * shape.num_kv_heads, size)
        query = qkv[:, : shape.num_heads]
        key = qkv[:, shape.num_heads : shape.num_heads + shape.num_kv_heads]
        value = qkv[:, shape.num_heads + shape.num_kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = ops.rms_norm(query, layer.q_norm, shape.rms_norm_eps)
            key = ops.rms_norm(key, layer.k_norm, shape.rms_norm_eps)
        keys, values = pool.layer("k", index), pool.layer("v", index)
        ops.write_kv(keys, batch.slots, ops.rope(key, cos, sin))
        ops.write_kv(values, batch.slots, value)
        attended = ops.paged_attention(ops.rope(query, cos, sin), keys, values, batch.spans)
        return attended.reshape(len(x), shape.num_heads * size)


def inverse_frequencies(checkpoint: Checkpoint) -> Tensor:
    """Radians per position of each pair of dimensions: [head_dim / 2], float32."""
    exponents = torch.arange(0, checkpoint.head_dim, 2).float() / checkpoint.head_dim
    plain = 1.0 / (checkpoint.rope_theta**exponents)
    match checkpoint.rope_scaling:
        case None:
            return plain
        case RopeFactors(factors):
            return plain / torch.tensor(factors)
        case Llama3RopeScaling() as scaling:
            return _llama3_frequencies(plain, scaling)


def _llama3_frequencies(plain: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Long waves slowed down by `factor`, short ones kept, a ramp between (Llama 3.1's report)."""
    waves = 2 * math.pi / plain
    turns = scaling.original_max_position / waves
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    ramp = ramp.clamp(0.0, 1.0)
    return (1 - ramp) * plain / scaling.factor + ramp * plain


def _layer(named: dict[str, Tensor], index: int) -> Layer:
    """Takes one layer's tensors out of `named`, so that stacked parts are not held twice."""
    prefix = f"model.layers.{index}"
    attention = f"{prefix}.self_attn"

    def stack(*names: str) -> Tensor:
        return torch.cat([named.pop(name) for name in names])

    biases = [f"{attention}.{name}_proj.bias" for name in "qkv"]
    return Layer(
        input_norm=named.pop(f"{prefix}.input_layernorm.weight"),
        qkv=stack(*(f"{attention}.{name}_proj.weight" for name in "qkv")),
        qkv_bias=stack(*biases) if biases[0] in named else None,
        q_norm=named.pop(f"{attention}.q_norm.weight", None),
        k_norm=named.pop(f"{attention}.k_norm.weight", None),
        output=named.pop(f"{attention}.o_proj.weight"),
        output_bias=named.pop(f"{attention}.o_proj.bias", None),
        post_norm=named.pop(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=stack(f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight"),
        down=named.pop(f"{prefix}.mlp.down_proj.weight"),
    )
