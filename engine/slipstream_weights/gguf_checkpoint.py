"""A GGUF file as a checkpoint: its fields, names and rope order; quantised rows become float32.

Knows the header through `gguf_header` only.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream_weights import gguf_blocks, gguf_header, gguf_tokenizer
from slipstream_weights.checkpoint import (
    ARCHITECTURES,
    Architecture,
    Array,
    Checkpoint,
    RopeFactors,
    TextModel,
    check_sizes,
    check_tensors,
)
from slipstream_weights.errors import ModelInvalid
from slipstream_weights.gguf_header import GgufTensor
from slipstream_weights.grouped import Grouped

_ROPE_FACTORS = "rope_freqs.weight"
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufCheckpoint:
    """One opened GGUF file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = gguf_header.read(path)
        self.checkpoint = self._describe()
        check_sizes(self.checkpoint, str(path))
        check_tensors(
            self.checkpoint,
            ((_canonical(tensor.name), tensor.shape) for tensor in self._weights()),
            str(path),
        )

    def text_model(self) -> TextModel:
        return gguf_tokenizer.build(
            self._header.fields, self.checkpoint.vocab_size, str(self._path)
        )

    def tensors(self) -> Iterator[tuple[str, Array]]:
        for name, values in self.packed_tensors():
            yield name, values.dequantise() if isinstance(values, Grouped) else values

    def packed_tensors(self) -> Iterator[tuple[str, Array | Grouped]]:
        for tensor in self._weights():
            name = _canonical(tensor.name)
            values = self._unpack(tensor)
            # llama.cpp keeps the rows of Q and K of this family in interleaved rope order.
            if self.checkpoint.architecture == "llama":
                if ".q_proj." in name:
                    values = _halves(values, self.checkpoint.num_heads)
                elif ".k_proj." in name:
                    values = _halves(values, self.checkpoint.num_kv_heads)
            yield name, values

    def _weights(self) -> Iterator[GgufTensor]:
        return (tensor for tensor in self._header.tensors if tensor.name != _ROPE_FACTORS)

    def _unpack(self, tensor: GgufTensor) -> Array | Grouped:
        if len(tensor.shape) == 2 and gguf_blocks.is_grouped(tensor.kind):
            grouped = gguf_blocks.unpack(self._bytes(tensor), tensor.kind, tensor.shape[0])
            if not (np.isfinite(grouped.scales).all() and np.isfinite(grouped.minimums).all()):
                raise ModelInvalid(
                    "a scale of the tensor is not a finite number", str(self._path), tensor.name
                )
            return grouped
        return self._dequantise(tensor)

    def _bytes(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        return np.frombuffer(self._header.data, np.uint8, tensor.end - tensor.start, tensor.start)

    def _dequantise(self, tensor: GgufTensor) -> Array:
        # 0.3 s of import that describing a checkpoint does not need.
        from gguf import quants

        raw = self._bytes(tensor)
        try:
            values: Array = quants.dequantize(raw.reshape(*tensor.shape[:-1], -1), tensor.kind)
        except (NotImplementedError, ValueError) as error:
            raise ModelInvalid(
                f"{tensor.kind.name} cannot be dequantised: {error}", str(self._path), tensor.name
            ) from error
        # Memory of its own, also where the file holds float32 already.
        owned = values if values.flags.writeable else values.copy()
        return owned.astype(np.float32, copy=False).reshape(tensor.shape)

    def _describe(self) -> Checkpoint:
        architecture = self._architecture()
        names = {tensor.name for tensor in self._header.tensors}
        num_heads = self._integer("attention.head_count")
        hidden_size = self._integer("embedding_length")
        head_dim = self._integer("attention.key_length", hidden_size // max(num_heads, 1))
        rotary = self._integer("rope.dimension_count", head_dim)
        if rotary != head_dim:
            raise ModelInvalid(
                f"rotary embedding over {rotary} of {head_dim} dimensions is not supported",
                str(self._path),
            )
        return Checkpoint(
            architecture=architecture,
            vocab_size=self._vocab_size(),
            hidden_size=hidden_size,
            intermediate_size=self._integer("feed_forward_length"),
            num_layers=self._integer("block_count"),
            num_heads=num_heads,
            num_kv_heads=self._integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            max_positions=self._integer("context_length"),
            rope_theta=self._real("rope.freq_base", 10000.0),
            rms_norm_eps=self._real("attention.layer_norm_rms_epsilon", None),
            rope_scaling=self._rope_scaling(),
            has_tied_embeddings="output.weight" not in names,
            has_qkv_bias="blk.0.attn_q.bias" in names,
            has_output_bias="blk.0.attn_output.bias" in names,
            has_qk_norm="blk.0.attn_q_norm.weight" in names,
        )

    def _architecture(self) -> Architecture:
        found = self._header.fields.get("general.architecture")
        for architecture in ARCHITECTURES:
            if found == architecture:
                return architecture
        raise ModelInvalid(
            f"architecture {found!r} is not supported; supported: {', '.join(ARCHITECTURES)}",
            str(self._path),
        )

    def _vocab_size(self) -> int:
        for tensor in self._header.tensors:
            if tensor.name == "token_embd.weight":
                return tensor.shape[0]
        raise ModelInvalid("the checkpoint lacks a tensor", str(self._path), "token_embd.weight")

    def _rope_scaling(self) -> RopeFactors | None:
        kind = self._field("rope.scaling.type", "none")
        if kind != "none":
            raise ModelInvalid(f"rope scaling {kind!r} is not supported", str(self._path))
        for tensor in self._header.tensors:
            if tensor.name == _ROPE_FACTORS:
                return RopeFactors(tuple(float(x) for x in self._dequantise(tensor).reshape(-1)))
        return None

    def _field(self, name: str, default: Any) -> Any:
        architecture = self._header.fields["general.architecture"]
        value = self._header.fields.get(f"{architecture}.{name}", default)
        if value is None:
            raise ModelInvalid(f"the GGUF file lacks {architecture}.{name}", str(self._path))
        return value

    def _integer(self, name: str, default: int | None = None) -> int:
        value = self._field(name, default)
        if not isinstance(value, int):
            raise ModelInvalid(f"{name} is {value!r}, expected one integer", str(self._path))
        return value

    def _real(self, name: str, default: float | None) -> float:
        value = self._field(name, default)
        if not isinstance(value, int | float):
            raise ModelInvalid(f"{name} is {value!r}, expected a number", str(self._path))
        return float(value)


def _canonical(name: str) -> str:
    """The Hugging Face name; a name that is not known stays and is refused as left over."""
    match = _LAYER_NAME.fullmatch(name)
    if match and match[2] in _LAYER:
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"
    return _TOP.get(name, name)


def _halves(values: Array | Grouped, num_heads: int) -> Array | Grouped:
    """Rows [x0 y0 x1 y1 …] of each head back to [x0 x1 … y0 y1 …].

    >>> _halves(np.arange(4), 1).tolist()
    [0, 2, 1, 3]
    """
    if isinstance(values, Grouped):
        return values.with_rows(lambda array: _halves_of_rows(array, num_heads))
    return _halves_of_rows(values, num_heads)


def _halves_of_rows(values: Array, num_heads: int) -> Array:
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
