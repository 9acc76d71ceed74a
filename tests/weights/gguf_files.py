"""GGUF files for tests, written by the `gguf` package's own writer."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import (
    GGML_QUANT_SIZES,
    ExpertGatingFuncType,
    GGMLQuantizationType,
    GGUFValueType,
)
from gguf.quants import quantize

from slipstream_weights import huggingface
from slipstream_weights.checkpoint import Array, expected_tensors, known_left_overs
from tests.engine import tiny

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "rope_freqs": "rope_freqs",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "eh_proj": "nextn.eh_proj",
    "embed_tokens": "nextn.embed_tokens",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm",
}
_FIELD_TYPES = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
}
_WITH_MINIMUM = (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K)
_ARCHITECTURES = {"mistral": "llama", "qwen3_moe": "qwen3moe", "glm4_moe": "glm4moe"}
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+)\.weight")
_STACKS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "gate_up_proj": "ffn_gate_up_exps",
}


def values(document: dict[str, Any], seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = expected_tensors(huggingface.describe(document, "config.json"))
    return {n: rng.normal(0, 0.1, shape).astype(np.float32) for n, shape in shapes.items()}


def left_overs(document: dict[str, Any]) -> dict[str, Array]:
    """Values of the layers that predict tokens after the next one."""
    shapes = known_left_overs(huggingface.describe(document, "config.json"))
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def stacked(tensors: dict[str, Array], *, is_fused: bool = False) -> dict[str, Array]:
    """Experts of a layer on top of each other, as transformers 5 and GGUF files keep them.

    `is_fused`: gate and up in one stack.
    """
    plain: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = {}
    for name, array in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            plain[name] = array
        else:
            experts.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = array
    stacks = {
        name: np.stack([found[index] for index in sorted(found)]) for name, found in experts.items()
    }
    if is_fused:
        for name in [name for name in stacks if name.endswith(".gate_proj")]:
            body = name.removesuffix("gate_proj")
            halves = [stacks.pop(name), stacks.pop(f"{body}up_proj")]
            stacks[f"{body}gate_up_proj"] = np.concatenate(halves, axis=1)
    return plain | stacks


def gguf_name(name: str, architecture: str) -> str:
    if not name.startswith("model.layers."):
        body, _, kind = name.rpartition(".")
        return f"{_NAMES[body]}.{kind}"
    _, _, layer, part = name.split(".", 3)
    if part == "mlp.gate.e_score_correction_bias":
        return f"blk.{layer}.exp_probs_b.bias"
    if part.startswith("mlp.experts."):
        return f"blk.{layer}.{_STACKS[part.removeprefix('mlp.experts.')]}.weight"
    body, _, kind = part.rpartition(".")
    is_glm = architecture == "glm4_moe" and body == "post_attention_layernorm"
    return f"blk.{layer}.{'post_attention_norm' if is_glm else _NAMES[body]}.{kind}"


def write(
    path: Path,
    document: dict[str, Any],
    tensors: dict[str, Array],
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    is_fused: bool = False,
    fields: dict[str, Any] | None = None,
    more: dict[str, bool | int | float | str] | None = None,
) -> Path:
    """`tensors` under their Hugging Face names, Q and K of llama in the order GGUF keeps them.

    `fields` replace those of the tokeniser, `more` are further ones of the architecture.
    """
    architecture = document["model_type"]
    name_in_file = _ARCHITECTURES.get(architecture, architecture)
    writer = GGUFWriter(str(path), name_in_file)
    num_mtp_layers = document.get("num_nextn_predict_layers", 0)
    writer.add_block_count(document["num_hidden_layers"] + num_mtp_layers)
    writer.add_context_length(document["max_position_embeddings"])
    writer.add_embedding_length(document["hidden_size"])
    writer.add_feed_forward_length(document["intermediate_size"])
    writer.add_head_count(document["num_attention_heads"])
    writer.add_head_count_kv(document["num_key_value_heads"])
    writer.add_key_length(document["head_dim"])
    writer.add_rope_freq_base(document["rope_theta"])
    writer.add_layer_norm_rms_eps(document["rms_norm_eps"])
    _add_experts(writer, document)
    for field, value in (more or {}).items():
        writer.add_key_value(f"{name_in_file}.{field}", value, _FIELD_TYPES[type(value)])
    _add_tokenizer(writer, fields or {})
    for name, array in stacked(tensors, is_fused=is_fused).items():
        if name_in_file == "llama" and (".q_proj." in name or ".k_proj." in name):
            is_query = ".q_proj." in name
            heads = document["num_attention_heads" if is_query else "num_key_value_heads"]
            # What llama.cpp's converter does: the two halves of each head become pairs.
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        stored = gguf_name(name, architecture)
        if array.ndim == 1 or kind is GGMLQuantizationType.F32:
            writer.add_tensor(stored, np.ascontiguousarray(array))
        else:
            writer.add_tensor(stored, _quantised(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: GGMLQuantizationType, shape: tuple[int, ...], seed: int) -> Array:
    """Rows of blocks of any bytes, [..., bytes], whose scales and minimums are finite numbers."""
    rng = np.random.default_rng(seed)
    block, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), np.uint8)
    for place in (0, 2) if kind in _WITH_MINIMUM else (0,):
        # Every finite half-precision number: normal and not, both signs, both zeros.
        bits = rng.integers(0, 0x7C00, raw.shape[:-1], np.uint16)
        bits |= rng.integers(0, 2, raw.shape[:-1], np.uint16) << 15
        raw[..., place : place + 2] = bits[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def _quantised(array: Array, kind: GGMLQuantizationType) -> Array:
    if kind is GGMLQuantizationType.Q4_K:
        # The library can read these and cannot make them.
        return random_blocks(kind, array.shape, 0)
    values: Array = quantize(array, kind)
    return values


def _add_experts(writer: GGUFWriter, document: dict[str, Any]) -> None:
    """What llama.cpp's converter writes of a mixture of experts."""
    if "moe_intermediate_size" not in document:
        return
    writer.add_expert_feed_forward_length(document["moe_intermediate_size"])
    writer.add_expert_used_count(document["num_experts_per_tok"])
    if document["model_type"] == "qwen3_moe":
        writer.add_expert_count(document["num_experts"])
        return
    writer.add_expert_count(document["n_routed_experts"])
    writer.add_expert_shared_count(document["n_shared_experts"])
    writer.add_expert_group_count(document["n_group"])
    writer.add_expert_group_used_count(document["topk_group"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(document["routed_scaling_factor"])
    writer.add_expert_weights_norm(document["norm_topk_prob"])
    writer.add_leading_dense_block_count(document["first_k_dense_replace"])
    writer.add_nextn_predict_layers(document["num_nextn_predict_layers"])
    turned = int(document["head_dim"] * document["partial_rotary_factor"])
    writer.add_rope_dimension_count(turned)


def _add_tokenizer(writer: GGUFWriter, fields: dict[str, Any]) -> None:
    import json

    document = json.loads(tiny.tokenizer().to_str())
    vocab: dict[str, int] = document["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {token["content"] for token in document["added_tokens"]}
    writer.add_tokenizer_model(fields.get("model", "gpt2"))
    if fields.get("pre", "llama-bpe") is not None:
        writer.add_tokenizer_pre(fields.get("pre", "llama-bpe"))
    writer.add_token_list(fields.get("tokens", tokens))
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    merges = [" ".join(pair) for pair in document["model"]["merges"]]
    writer.add_token_merges(fields.get("merges", merges))
    writer.add_eos_token_id(fields.get("eos", 1))
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(fields.get("add_bos", False))
    if "eot" in fields:
        writer.add_eot_token_id(fields["eot"])
    if "eom" in fields:
        writer.add_eom_token_id(fields["eom"])
    writer.add_chat_template(fields.get("templates", tiny.CHAT_TEMPLATE))
