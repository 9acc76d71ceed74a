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

Architecture = Literal["llama", "qwen2", "qwen3"]
ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3")
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
class Checkpoint:
    """The shape of one decoder of the Llama family."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    rope_scaling: Llama3RopeScaling | RopeFactors | None
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_qk_norm: bool


@dataclass(frozen=True, slots=True)
class TextModel:
    """How text becomes tokens: all that the serving process needs of a checkpoint."""

    tokenizer: Tokenizer
    chat_template: str | None
    # Tokens that end an answer.
    end_tokens: frozenset[int]
    bos_token: str | None
    eos_token: str | None


class OpenCheckpoint(Protocol):
    """An opened checkpoint: its description is checked, its tensors are read on demand."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    def text_model(self) -> TextModel: ...

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Every expected tensor once, float32, in the order of the file. Raises ModelInvalid."""
        ...

    def packed_tensors(self) -> Iterator[tuple[str, Array | Grouped]]:
        """The same, but matrices stored in 4 or 8 bits keep their codes. Raises ModelInvalid.

        Rows of Q and K are in Hugging Face's rope order (halves) here too.
        """
        ...


# The largest public models have about 130; a damaged count must not be enumerated.
_MAX_LAYERS = 4096


def expected_tensors(checkpoint: Checkpoint) -> dict[str, Shape]:
    """The name and shape of every tensor that the checkpoint must hold, and no other."""
    hidden = checkpoint.hidden_size
    query = checkpoint.num_heads * checkpoint.head_dim
    key = checkpoint.num_kv_heads * checkpoint.head_dim
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (checkpoint.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not checkpoint.has_tied_embeddings:
        shapes["lm_head.weight"] = (checkpoint.vocab_size, hidden)
    for layer in range(checkpoint.num_layers):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{attention}.q_proj.weight"] = (query, hidden)
        shapes[f"{attention}.k_proj.weight"] = (key, hidden)
        shapes[f"{attention}.v_proj.weight"] = (key, hidden)
        shapes[f"{attention}.o_proj.weight"] = (hidden, query)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{prefix}.mlp.{name}.weight"] = (checkpoint.intermediate_size, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, checkpoint.intermediate_size)
        if checkpoint.has_qkv_bias:
            shapes[f"{attention}.q_proj.bias"] = (query,)
            shapes[f"{attention}.k_proj.bias"] = (key,)
            shapes[f"{attention}.v_proj.bias"] = (key,)
        if checkpoint.has_output_bias:
            shapes[f"{attention}.o_proj.bias"] = (hidden,)
        if checkpoint.has_qk_norm:
            shapes[f"{attention}.q_norm.weight"] = (checkpoint.head_dim,)
            shapes[f"{attention}.k_norm.weight"] = (checkpoint.head_dim,)
    return shapes


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


def check_sizes(checkpoint: Checkpoint, path: str) -> None:
    """Refuse a description that no model can have. Raises ModelInvalid."""
    positive = {
        "vocabulary size": checkpoint.vocab_size,
        "hidden size": checkpoint.hidden_size,
        "intermediate size": checkpoint.intermediate_size,
        "number of layers": checkpoint.num_layers,
        "number of heads": checkpoint.num_heads,
        "number of KV heads": checkpoint.num_kv_heads,
        "head size": checkpoint.head_dim,
        "context length": checkpoint.max_positions,
        "rope base": checkpoint.rope_theta,
        "norm epsilon": checkpoint.rms_norm_eps,
    }
    for name, value in positive.items():
        if not (np.isfinite(value) and value > 0):
            raise ModelInvalid(f"the {name} is {value}", path)
    if checkpoint.num_layers > _MAX_LAYERS:
        raise ModelInvalid(f"the number of layers is {checkpoint.num_layers}", path)
    if checkpoint.num_heads % checkpoint.num_kv_heads:
        raise ModelInvalid(
            f"{checkpoint.num_heads} heads cannot share {checkpoint.num_kv_heads} KV heads", path
        )
    if checkpoint.head_dim % 2:
        raise ModelInvalid(
            f"rotary embedding needs an even head size, not {checkpoint.head_dim}", path
        )
