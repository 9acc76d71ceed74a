"""What a checkpoint is, whatever file it came from; knows no file format and no torch.

Tensors carry the names that Hugging Face folders use (`model.layers.0.self_attn.q_proj.weight`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from slipstream_weights.errors import ModelInvalid
from slipstream_weights.grouped import Grouped

Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe"]
Shape = tuple[int, ...]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Llama 3.1's stretch of the low rotary frequencies, by its four published numbers."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class RopeFactors:
    """One divisor per rotary frequency, as GGUF files store the same stretch."""

    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts that all layers have but the `dense_layers`.

    A router scores the experts of a token. The `num_active` with the highest score, or score plus
    correction bias, are chosen, from the `num_active_groups` best of `num_groups` equal groups (a
    group is as good as its two best together). Their answers count by score, without the bias:
    divided by the sum of the chosen scores where they are normalised, then times `routed_scale`.
    Shared experts are one MLP, `num_shared` times as wide, that every token goes through.
    """

    num_experts: int
    num_active: int
    intermediate_size: int
    num_shared: int
    has_normalised_weights: bool
    scoring: Literal["softmax", "sigmoid"]
    routed_scale: float
    num_groups: int
    num_active_groups: int
    has_correction_bias: bool
    dense_layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The shape of one decoder of the Llama family.

    The rotary embedding turns the first `rotary_dim` dimensions of each head. `num_mtp_layers`
    more layers, which predict tokens after the next one, may stand in the file; they are not read.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    rope_scaling: Llama3RopeScaling | RopeFactors | None
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_qk_norm: bool
    experts: Experts | None = None
    num_mtp_layers: int = 0


@dataclass(frozen=True, slots=True)
class TextModel:
    """How text becomes tokens: all that the serving process needs of a checkpoint."""

    tokenizer: Tokenizer
    chat_template: str | None
    # Tokens that end an answer.
    end_tokens: frozenset[int]
    bos_token: str | None
    eos_token: str | None
    # For chats with tools, where the checkpoint has another one for those.
    tool_template: str | None = None


class OpenCheckpoint(Protocol):
    """An opened checkpoint: its description is checked, its tensors are read on demand."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def has_codes(self) -> bool:
        """Whether `packed_tensors` has any matrix in codes."""
        ...

    def text_model(self) -> TextModel: ...

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Every expected tensor once, float32, in the order of the file. Raises ModelInvalid."""
        ...

    def packed_tensors(self) -> Iterator[tuple[str, Array | Grouped]]:
        """The same, but matrices stored in 4 or 8 bits keep their codes. Raises ModelInvalid.

        Rows of Q and K are in Hugging Face's rope order (halves) here too. Memory is taken for one
        tensor (one expert's matrix) at a time.
        """
        ...

    def read(
        self, name: str, rows: slice | None = None, cols: slice | None = None
    ) -> Array | Grouped:
        """Part of one tensor as `packed_tensors` gives it; only the rows asked for are touched.

        Columns that cut a group come back as float32. Raises KeyError (no such tensor),
        ValueError (a slice with a step, columns of a vector), ModelInvalid.
        """
        ...


def expected_tensors(checkpoint: Checkpoint) -> dict[str, Shape]:
    """The name and shape of every tensor that the checkpoint must hold, and no other."""
    hidden = checkpoint.hidden_size
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (checkpoint.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not checkpoint.has_tied_embeddings:
        shapes["lm_head.weight"] = (checkpoint.vocab_size, hidden)
    for layer in range(checkpoint.num_layers):
        shapes |= _layer(checkpoint, layer)
    return shapes


def known_left_overs(checkpoint: Checkpoint) -> dict[str, Shape]:
    """Tensors that published checkpoints hold and this engine has no use for yet, by name.

    They are the layers that predict tokens after the next one (GLM-4.5: one, after the last).
    """
    hidden, vocab = checkpoint.hidden_size, checkpoint.vocab_size
    shapes: dict[str, Shape] = {}
    for layer in range(checkpoint.num_layers, checkpoint.num_layers + checkpoint.num_mtp_layers):
        prefix = f"model.layers.{layer}"
        shapes |= _layer(checkpoint, layer)
        shapes[f"{prefix}.embed_tokens.weight"] = (vocab, hidden)
        shapes[f"{prefix}.enorm.weight"] = (hidden,)
        shapes[f"{prefix}.hnorm.weight"] = (hidden,)
        shapes[f"{prefix}.eh_proj.weight"] = (hidden, 2 * hidden)
        shapes[f"{prefix}.shared_head.head.weight"] = (vocab, hidden)
        shapes[f"{prefix}.shared_head.norm.weight"] = (hidden,)
    return shapes


def _layer(checkpoint: Checkpoint, layer: int) -> dict[str, Shape]:
    prefix = f"model.layers.{layer}"
    hidden, experts = checkpoint.hidden_size, checkpoint.experts
    shapes: dict[str, Shape] = {
        f"{prefix}.input_layernorm.weight": (hidden,),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
    }
    shapes |= _attention(checkpoint, f"{prefix}.self_attn")
    if experts is None or layer in experts.dense_layers:
        return shapes | _mlp(f"{prefix}.mlp", hidden, checkpoint.intermediate_size)
    return shapes | _mixture(experts, f"{prefix}.mlp", hidden)


def _attention(checkpoint: Checkpoint, prefix: str) -> dict[str, Shape]:
    hidden, head_dim = checkpoint.hidden_size, checkpoint.head_dim
    query, key = checkpoint.num_heads * head_dim, checkpoint.num_kv_heads * head_dim
    shapes: dict[str, Shape] = {
        f"{prefix}.q_proj.weight": (query, hidden),
        f"{prefix}.k_proj.weight": (key, hidden),
        f"{prefix}.v_proj.weight": (key, hidden),
        f"{prefix}.o_proj.weight": (hidden, query),
    }
    if checkpoint.has_qkv_bias:
        shapes[f"{prefix}.q_proj.bias"] = (query,)
        shapes[f"{prefix}.k_proj.bias"] = (key,)
        shapes[f"{prefix}.v_proj.bias"] = (key,)
    if checkpoint.has_output_bias:
        shapes[f"{prefix}.o_proj.bias"] = (hidden,)
    if checkpoint.has_qk_norm:
        shapes[f"{prefix}.q_norm.weight"] = (head_dim,)
        shapes[f"{prefix}.k_norm.weight"] = (head_dim,)
    return shapes


def _mlp(prefix: str, hidden: int, inner: int) -> dict[str, Shape]:
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }


def _mixture(experts: Experts, prefix: str, hidden: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{prefix}.gate.weight": (experts.num_experts, hidden)}
    if experts.has_correction_bias:
        shapes[f"{prefix}.gate.e_score_correction_bias"] = (experts.num_experts,)
    for expert in range(experts.num_experts):
        shapes |= _mlp(f"{prefix}.experts.{expert}", hidden, experts.intermediate_size)
    if experts.num_shared:
        inner = experts.num_shared * experts.intermediate_size
        shapes |= _mlp(f"{prefix}.shared_experts", hidden, inner)
    return shapes


def finite(
    tensors: Iterable[tuple[str, Array | Grouped]], path: str
) -> Iterator[tuple[str, Array | Grouped]]:
    """The same, each looked at as it passes. Raises ModelInvalid: NaN or infinity among its values.

    Of codes their scales and minimums are looked at. A core adds up 10 GB/s, which is faster than
    files are read; where the sum is no number, 6 GB/s say whether it only is too large.
    """
    for name, stored in tensors:
        parts = (stored.scales, stored.minimums) if isinstance(stored, Grouped) else (stored,)
        for part in parts:
            with np.errstate(all="ignore"):
                is_finite = bool(np.isfinite(part.sum(dtype=np.float32)))
            if not is_finite and not np.isfinite(part).all():
                raise ModelInvalid("a value is NaN or infinite", path, name)
        yield name, stored


def check_tensors(checkpoint: Checkpoint, found: Iterable[tuple[str, Shape]], path: str) -> None:
    """Refuse a checkpoint with missing, left-over or mis-shaped tensors. Raises ModelInvalid."""
    expected = expected_tensors(checkpoint)
    seen: set[str] = set()
    for name, shape in found:
        if name not in expected:
            raise ModelInvalid(
                "the checkpoint holds a tensor that the model has no use for", path, name
            )
        if name in seen:
            raise ModelInvalid("the checkpoint holds a tensor twice", path, name)
        if shape != expected[name]:
            raise ModelInvalid(f"shape {list(shape)}, expected {list(expected[name])}", path, name)
        seen.add(name)
    missing = [name for name in expected if name not in seen]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelInvalid(f"the checkpoint lacks a tensor{more}", path, missing[0])
