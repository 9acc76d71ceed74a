"""What the fields of a GGUF file say of a model; knows no tensor but by its name and shape.

Fields and their defaults: the model files of llama.cpp (`src/models`) and its converter.
"""

from typing import Any, Literal

from slipstream_weights import gguf_tensors, sizes
from slipstream_weights.checkpoint import Architecture, Checkpoint, Experts, RopeFactors
from slipstream_weights.errors import ModelInvalid
from slipstream_weights.gguf_header import GgufHeader
from slipstream_weights.gguf_names import ROPE_FACTORS

# Mistral's files say llama: there is no difference but the window.
_ARCHITECTURES: dict[str, Architecture] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "glm4moe": "glm4_moe",
}
_GATING: dict[int, Literal["softmax", "sigmoid"]] = {1: "softmax", 2: "sigmoid"}


def describe(header: GgufHeader, path: str) -> Checkpoint:
    """Raises ModelInvalid."""
    return _Description(header, path).checkpoint()


class _Description:
    """Reads the fields of one file, whose architecture is their prefix."""

    def __init__(self, header: GgufHeader, path: str) -> None:
        self._header = header
        self._path = path
        self._names = {tensor.name for tensor in header.tensors}
        if header.fields.get("split.count", 1) not in (0, 1):
            raise self._invalid("one of several files of a model; merge them first")
        found = header.fields.get("general.architecture")
        architecture = _ARCHITECTURES.get(found) if isinstance(found, str) else None
        if architecture is None:
            raise self._invalid(
                f"architecture {found!r} is not supported; supported: {', '.join(_ARCHITECTURES)}"
            )
        self._prefix = found
        self._architecture = architecture

    def checkpoint(self) -> Checkpoint:
        num_heads = self._integer("attention.head_count")
        hidden_size = self._integer("embedding_length")
        head_dim = self._integer("attention.key_length", hidden_size // max(num_heads, 1))
        num_mtp_layers = self._integer("nextn_predict_layers", 0)
        num_layers = self._integer("block_count") - num_mtp_layers
        return Checkpoint(
            architecture=self._architecture,
            vocab_size=self._vocab_size(),
            hidden_size=hidden_size,
            intermediate_size=self._integer("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=self._integer("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rotary_dim=self._rotary_dim(head_dim),
            max_positions=self._max_positions(),
            rope_theta=self._real("rope.freq_base", 10000.0),
            rms_norm_eps=self._real("attention.layer_norm_rms_epsilon", None),
            rope_scaling=self._rope_scaling(),
            has_tied_embeddings="output.weight" not in self._names,
            has_qkv_bias="blk.0.attn_q.bias" in self._names,
            has_output_bias="blk.0.attn_output.bias" in self._names,
            has_qk_norm="blk.0.attn_q_norm.weight" in self._names,
            experts=self._experts(num_layers),
            num_mtp_layers=num_mtp_layers,
        )

    def _experts(self, num_layers: int) -> Experts | None:
        if self._architecture not in ("qwen3_moe", "glm4_moe"):
            return None
        is_glm = self._architecture == "glm4_moe"
        num_experts = self._integer("expert_count")
        scale = self._real("expert_weights_scale", 1.0)
        return Experts(
            num_experts=num_experts,
            num_active=self._integer("expert_used_count"),
            intermediate_size=self._integer("expert_feed_forward_length"),
            num_shared=self._integer("expert_shared_count", 0),
            # No file of Qwen says it; llama.cpp normalises them always.
            has_normalised_weights=self._flag("expert_weights_norm", default=True),
            scoring=self._scoring(default=2 if is_glm else 1),
            # Zero stands for none.
            routed_scale=scale or 1.0,
            num_groups=self._integer("expert_group_count", 1),
            num_active_groups=self._integer("expert_group_used_count", 1),
            has_correction_bias=any(name.endswith(".exp_probs_b.bias") for name in self._names),
            dense_layers=sizes.first_layers(
                self._integer("leading_dense_block_count", 0), num_layers
            ),
        )

    def _scoring(self, default: int) -> Literal["softmax", "sigmoid"]:
        number = self._integer("expert_gating_func", default)
        if number not in _GATING:
            raise self._invalid(f"expert gating function {number} is not supported")
        return _GATING[number]

    def _rotary_dim(self, head_dim: int) -> int:
        turned = self._integer("rope.dimension_count", head_dim)
        if turned != head_dim and self._architecture != "glm4_moe":
            raise self._invalid(
                f"rotary embedding over {turned} of {head_dim} dimensions is not supported"
            )
        return turned

    def _max_positions(self) -> int:
        """Within a sliding window attention is the usual one: the window is the context."""
        positions = self._integer("context_length")
        return min(positions, self._integer("attention.sliding_window", 0) or positions)

    def _vocab_size(self) -> int:
        for tensor in self._header.tensors:
            if tensor.name == "token_embd.weight":
                return tensor.shape[0]
        raise ModelInvalid("the checkpoint lacks a tensor", self._path, "token_embd.weight")

    def _rope_scaling(self) -> RopeFactors | None:
        kind = self._field("rope.scaling.type", "none")
        if kind != "none":
            raise self._invalid(f"rope scaling {kind!r} is not supported")
        for tensor in self._header.tensors:
            if tensor.name == ROPE_FACTORS:
                if len(tensor.shape) != 1:
                    raise ModelInvalid(f"shape {list(tensor.shape)}", self._path, tensor.name)
                factors = gguf_tensors.vector(self._header.data, tensor, self._path)
                return RopeFactors(tuple(float(factor) for factor in factors))
        return None

    def _field(self, name: str, default: Any) -> Any:
        value = self._header.fields.get(f"{self._prefix}.{name}", default)
        if value is None:
            raise self._invalid(f"the GGUF file lacks {self._prefix}.{name}")
        return value

    def _integer(self, name: str, default: int | None = None) -> int:
        value = self._field(name, default)
        if not isinstance(value, int):
            raise self._invalid(f"{name} is {value!r}, expected one integer")
        return value

    def _real(self, name: str, default: float | None) -> float:
        value = self._field(name, default)
        if not isinstance(value, int | float):
            raise self._invalid(f"{name} is {value!r}, expected a number")
        return float(value)

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self._field(name, default)
        if not isinstance(value, bool):
            raise self._invalid(f"{name} is {value!r}, expected true or false")
        return value

    def _invalid(self, message: str) -> ModelInvalid:
        return ModelInvalid(message, self._path)
