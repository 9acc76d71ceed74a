"""What a Hugging Face config.json says of a model; knows no other file.

Runs no code of the folder: an architecture that is not known here is refused by its name. Meaning
and defaults of every field: the configuration and modelling files of transformers 5.
"""

from typing import Any

from slipstream_weights import sizes
from slipstream_weights.checkpoint import Architecture, Checkpoint, Experts, Llama3RopeScaling
from slipstream_weights.errors import ModelInvalid

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Glm4MoeForCausalLM": "glm4_moe",
}


def describe(config: dict[str, Any], path: str) -> Checkpoint:
    """What a config.json says. Raises ModelInvalid."""
    architecture = _architecture(config, path)
    if config.get("use_sliding_window"):
        raise ModelInvalid("sliding window attention is not supported", path)
    if config.get("hidden_act", "silu") != "silu":
        raise ModelInvalid(f"activation {config['hidden_act']!r} is not supported", path)
    if config.get("mlp_bias"):
        raise ModelInvalid("biases in the MLP are not supported", path)
    if config.get("quantization_config"):
        raise ModelInvalid("quantised safetensors are not supported", path)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelInvalid(f"{rope!r} where rope parameters are expected", path)
    hidden_size = _integer(config, "hidden_size", path)
    num_heads = _integer(config, "num_attention_heads", path)
    head_dim = _integer(config, "head_dim", path, hidden_size // max(num_heads, 1))
    # Mistral has none, whatever its configuration says; neither has GLM at its output.
    has_bias = bool(config.get("attention_bias", False)) and architecture != "mistral"
    return Checkpoint(
        architecture=architecture,
        vocab_size=_integer(config, "vocab_size", path),
        hidden_size=hidden_size,
        intermediate_size=_integer(config, "intermediate_size", path),
        num_layers=_integer(config, "num_hidden_layers", path),
        num_heads=num_heads,
        num_kv_heads=_integer(config, "num_key_value_heads", path, num_heads),
        head_dim=head_dim,
        rotary_dim=_rotary_dim(config, rope, architecture, head_dim, path),
        max_positions=_max_positions(config, architecture, path),
        rope_theta=_real(rope.get("rope_theta", config.get("rope_theta", 10000.0)), path),
        rms_norm_eps=_real(config.get("rms_norm_eps", 1e-6), path),
        rope_scaling=_rope_scaling(rope, path),
        has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=architecture == "qwen2" or has_bias,
        has_output_bias=architecture not in ("qwen2", "glm4_moe") and has_bias,
        has_qk_norm=architecture in ("qwen3", "qwen3_moe")
        or (architecture == "glm4_moe" and bool(config.get("use_qk_norm", False))),
        experts=_experts(config, architecture, path),
        num_mtp_layers=_num_mtp_layers(config, architecture, path),
    )


def _architecture(config: dict[str, Any], path: str) -> Architecture:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise ModelInvalid(
            f"architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}", path
        )
    return architecture


def _max_positions(config: dict[str, Any], architecture: Architecture, path: str) -> int:
    """Within its sliding window Mistral's attention is the usual one: the window is the context."""
    positions = _integer(config, "max_position_embeddings", path)
    # A configuration without the key means the first Mistral's window, one with null means none.
    if architecture != "mistral" or config.get("sliding_window", 4096) is None:
        return positions
    return min(positions, _integer(config, "sliding_window", path, 4096))


def _rotary_dim(
    config: dict[str, Any], rope: dict[str, Any], architecture: Architecture, size: int, path: str
) -> int:
    usual = 0.5 if architecture == "glm4_moe" else 1.0
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    share = usual if share is None else _real(share, path)
    if architecture != "glm4_moe" and share != 1.0:
        raise ModelInvalid(f"rotary embedding over {share} of a head is not supported", path)
    if not 0.0 < share <= 1.0:
        raise ModelInvalid(f"partial_rotary_factor is {share}", path)
    return int(size * share)


def _num_mtp_layers(config: dict[str, Any], architecture: Architecture, path: str) -> int:
    if architecture != "glm4_moe":
        return 0
    return _integer(config, ("num_nextn_predict_layers", "num_mtp_layers"), path, 1)


def _experts(config: dict[str, Any], architecture: Architecture, path: str) -> Experts | None:
    match architecture:
        case "qwen3_moe":
            return Experts(
                num_experts=_integer(config, ("num_experts", "num_local_experts"), path),
                num_active=_integer(config, "num_experts_per_tok", path),
                intermediate_size=_integer(config, "moe_intermediate_size", path),
                num_shared=0,
                has_normalised_weights=bool(config.get("norm_topk_prob", False)),
                scoring="softmax",
                routed_scale=1.0,
                num_groups=1,
                num_active_groups=1,
                has_correction_bias=False,
                dense_layers=_qwen_dense_layers(config, path),
            )
        case "glm4_moe":
            return Experts(
                num_experts=_integer(config, ("n_routed_experts", "num_local_experts"), path),
                num_active=_integer(config, "num_experts_per_tok", path),
                intermediate_size=_integer(config, "moe_intermediate_size", path),
                num_shared=_integer(config, "n_shared_experts", path, 1),
                has_normalised_weights=bool(config.get("norm_topk_prob", True)),
                scoring="sigmoid",
                routed_scale=_real(config.get("routed_scaling_factor", 1.0), path),
                num_groups=_integer(config, "n_group", path, 1),
                num_active_groups=_integer(config, "topk_group", path, 1),
                has_correction_bias=True,
                dense_layers=sizes.first_layers(
                    _integer(config, "first_k_dense_replace", path, 1),
                    _integer(config, "num_hidden_layers", path),
                ),
            )
    return None


def _qwen_dense_layers(config: dict[str, Any], path: str) -> frozenset[int]:
    """Experts are in every `decoder_sparse_step`th layer that is not named as dense."""
    step = _integer(config, "decoder_sparse_step", path, 1)
    named = config.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(isinstance(layer, int) for layer in named):
        raise ModelInvalid(f"mlp_only_layers is {named!r}, expected a list of integers", path)
    if step < 1:
        raise ModelInvalid(f"decoder_sparse_step is {step}", path)
    layers = sizes.first_layers(sizes.MAX_LAYERS, _integer(config, "num_hidden_layers", path))
    return frozenset(layer for layer in layers if layer in named or (layer + 1) % step)


def _rope_scaling(rope: dict[str, Any], path: str) -> Llama3RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelInvalid(f"rope scaling {kind!r} is not supported", path)
    return Llama3RopeScaling(
        factor=_real(rope.get("factor"), path),
        low_freq_factor=_real(rope.get("low_freq_factor"), path),
        high_freq_factor=_real(rope.get("high_freq_factor"), path),
        original_max_position=_integer(rope, "original_max_position_embeddings", path),
    )


def _integer(
    config: dict[str, Any], names: str | tuple[str, ...], path: str, default: int | None = None
) -> int:
    """`names`: more than one where transformers 5 writes another name than the published files."""
    names = (names,) if isinstance(names, str) else names
    given = [config[name] for name in names if config.get(name) is not None]
    value = given[0] if given else default
    if not isinstance(value, int):
        raise ModelInvalid(f"{names[0]} is {value!r}, expected an integer", path)
    return value


def _real(value: object, path: str) -> float:
    if not isinstance(value, int | float):
        raise ModelInvalid(f"{value!r} where a number is expected", path)
    return float(value)
