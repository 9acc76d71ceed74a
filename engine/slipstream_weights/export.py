"""Writes any opened checkpoint as a Hugging Face folder in float32; knows no file format it reads.

For tests and for other engines: a GGUF file and its export must answer alike.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from slipstream_weights import huggingface, shards
from slipstream_weights.checkpoint import (
    Array,
    Checkpoint,
    Experts,
    Llama3RopeScaling,
    OpenCheckpoint,
    TextModel,
    expected_tensors,
)
from slipstream_weights.errors import ModelInvalid
from slipstream_weights.grouped import Grouped

_SHARD_BYTES = 1 << 30
_CLASSES = {architecture: name for name, architecture in huggingface.ARCHITECTURES.items()}


def write_folder(opened: OpenCheckpoint, folder: Path, shard_bytes: int = _SHARD_BYTES) -> None:
    """Config, tokeniser and shards of at most `shard_bytes` (or one tensor), which bounds memory.

    Raises FileExistsError, and ModelInvalid where config.json cannot say what the checkpoint is.
    """
    text = opened.text_model()
    document = config_document(opened.checkpoint)
    if huggingface.describe(document, str(folder)) != opened.checkpoint:
        raise ModelInvalid("a config.json cannot say what this checkpoint is", str(folder))
    folder.mkdir(parents=True)
    _write_json(folder / "config.json", document | _token_ids(text))
    _write_text_model(folder, text)
    planned = list(_plan(opened.checkpoint, shard_bytes))
    weight_map: dict[str, str] = {}
    for index, names in enumerate(planned):
        file = f"model-{index + 1:05d}-of-{len(planned):05d}.safetensors"
        save_file({name: _values(opened, name) for name in names}, str(folder / file))
        weight_map |= dict.fromkeys(names, file)
    _write_json(folder / shards.INDEX, {"metadata": {}, "weight_map": weight_map})


def config_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config.json of a checkpoint."""
    return {
        "architectures": [_CLASSES[checkpoint.architecture]],
        "model_type": checkpoint.architecture,
        "dtype": "float32",
        "vocab_size": checkpoint.vocab_size,
        "hidden_size": checkpoint.hidden_size,
        "intermediate_size": checkpoint.intermediate_size,
        "num_hidden_layers": checkpoint.num_layers,
        "num_attention_heads": checkpoint.num_heads,
        "num_key_value_heads": checkpoint.num_kv_heads,
        "head_dim": checkpoint.head_dim,
        "max_position_embeddings": checkpoint.max_positions,
        "rms_norm_eps": checkpoint.rms_norm_eps,
        "rope_theta": checkpoint.rope_theta,
        "rope_scaling": _rope_scaling(checkpoint),
        "tie_word_embeddings": checkpoint.has_tied_embeddings,
        "attention_bias": checkpoint.has_qkv_bias,
        "hidden_act": "silu",
        **_own_fields(checkpoint),
    }


def _rope_scaling(checkpoint: Checkpoint) -> dict[str, Any] | None:
    match checkpoint.rope_scaling:
        case Llama3RopeScaling() as scaling:
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position,
            }
        case _:
            return None


def _own_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """What only one architecture's configuration has."""
    experts = checkpoint.experts
    if checkpoint.architecture == "mistral":
        return {"sliding_window": None}
    if experts is None:
        return {}
    common = {
        "num_experts_per_tok": experts.num_active,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.has_normalised_weights,
    }
    if checkpoint.architecture == "qwen3_moe":
        return common | _qwen_fields(experts)
    return common | {
        "n_routed_experts": experts.num_experts,
        "n_shared_experts": experts.num_shared,
        "first_k_dense_replace": len(experts.dense_layers),
        "routed_scaling_factor": experts.routed_scale,
        "n_group": experts.num_groups,
        "topk_group": experts.num_active_groups,
        "use_qk_norm": checkpoint.has_qk_norm,
        "partial_rotary_factor": checkpoint.rotary_dim / checkpoint.head_dim,
        "num_nextn_predict_layers": checkpoint.num_mtp_layers,
    }


def _qwen_fields(experts: Experts) -> dict[str, Any]:
    return {
        "num_experts": experts.num_experts,
        "decoder_sparse_step": 1,
        "mlp_only_layers": sorted(experts.dense_layers),
    }


def _token_ids(text: TextModel) -> dict[str, Any]:
    named = {"bos_token_id": text.bos_token, "eos_token_id": text.eos_token}
    return {
        field: text.tokenizer.token_to_id(token)
        for field, token in named.items()
        if token is not None
    }


def _write_text_model(folder: Path, text: TextModel) -> None:
    text.tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    named = {
        "bos_token": text.bos_token,
        "eos_token": text.eos_token,
        "chat_template": text.chat_template,
    }
    settings |= {name: value for name, value in named.items() if value is not None}
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "generation_config.json", {"eos_token_id": sorted(text.end_tokens)})


def _plan(checkpoint: Checkpoint, shard_bytes: int) -> Iterator[list[str]]:
    """Names of each shard's tensors."""
    names: list[str] = []
    size = 0
    for name, shape in expected_tensors(checkpoint).items():
        num_bytes = 4
        for dimension in shape:
            num_bytes *= dimension
        if names and size + num_bytes > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += num_bytes
    yield names


def _values(opened: OpenCheckpoint, name: str) -> Array:
    values = opened.read(name)
    return values.dequantise() if isinstance(values, Grouped) else values


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False), encoding="utf-8")
