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


@dataclass(frozen=True, slots=True)
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
        hidden = checkpoint.hidden_size
        self.embedding = torch.empty(checkpoint.vocab_size, hidden, dtype=dtype)
        self.norm = torch.empty(hidden, dtype=dtype)
        self.head = (
            self.embedding if checkpoint.has_tied_embeddings else torch.empty_like(self.embedding)
        )
        self.layers = [_empty_layer(checkpoint, dtype) for _ in range(checkpoint.num_layers)]
        self._inverse_frequencies = inverse_frequencies(checkpoint)
        places = self._places()
        # The checkpoint was checked to hold every tensor once: nothing stays empty.
        for name, array in tensors:
            places[name].copy_(torch.from_numpy(array))

    def _places(self) -> dict[str, Tensor]:
        """Where each tensor of the checkpoint goes: stacked ones are views of their stack."""
        places = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        if not self.checkpoint.has_tied_embeddings:
            places["lm_head.weight"] = self.head
        for index, layer in enumerate(self.layers):
            places |= _layer_places(f"model.layers.{index}", layer, self.checkpoint)
        return places

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


def _empty_layer(checkpoint: Checkpoint, dtype: torch.dtype) -> Layer:
    hidden, intermediate = checkpoint.hidden_size, checkpoint.intermediate_size
    query = checkpoint.num_heads * checkpoint.head_dim
    stacked = query + 2 * checkpoint.num_kv_heads * checkpoint.head_dim

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    return Layer(
        input_norm=new(hidden),
        qkv=new(stacked, hidden),
        qkv_bias=new(stacked) if checkpoint.has_qkv_bias else None,
        q_norm=new(checkpoint.head_dim) if checkpoint.has_qk_norm else None,
        k_norm=new(checkpoint.head_dim) if checkpoint.has_qk_norm else None,
        output=new(hidden, query),
        output_bias=new(hidden) if checkpoint.has_output_bias else None,
        post_norm=new(hidden),
        gate_up=new(2 * intermediate, hidden),
        down=new(hidden, intermediate),
    )


def _layer_places(prefix: str, layer: Layer, checkpoint: Checkpoint) -> dict[str, Tensor]:
    attention = f"{prefix}.self_attn"
    key = checkpoint.num_kv_heads * checkpoint.head_dim
    sizes = (checkpoint.num_heads * checkpoint.head_dim, key, key)
    gate, up = layer.gate_up.tensor_split(2)
    places: dict[str, Tensor | None] = {
        f"{prefix}.input_layernorm.weight": layer.input_norm,
        f"{prefix}.post_attention_layernorm.weight": layer.post_norm,
        f"{prefix}.mlp.gate_proj.weight": gate,
        f"{prefix}.mlp.up_proj.weight": up,
        f"{prefix}.mlp.down_proj.weight": layer.down,
        f"{attention}.o_proj.weight": layer.output,
        f"{attention}.o_proj.bias": layer.output_bias,
        f"{attention}.q_norm.weight": layer.q_norm,
        f"{attention}.k_norm.weight": layer.k_norm,
    }
    start = 0
    for name, size in zip("qkv", sizes, strict=True):
        rows = slice(start, start + size)
        places[f"{attention}.{name}_proj.weight"] = layer.qkv[rows]
        if layer.qkv_bias is not None:
            places[f"{attention}.{name}_proj.bias"] = layer.qkv_bias[rows]
        start += size
    return {name: place for name, place in places.items() if place is not None}
