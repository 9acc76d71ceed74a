"""GGUF files for tests, written by the `gguf` package's own writer."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from slipstream_weights import huggingface
from slipstream_weights.checkpoint import Array, expected_tensors
from tests.engine import tiny

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
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
}


def values(document: dict[str, Any], seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = expected_tensors(huggingface.describe(document, "config.json"))
    return {n: rng.normal(0, 0.1, shape).astype(np.float32) for n, shape in shapes.items()}


def gguf_name(name: str) -> str:
    body, _, kind = name.rpartition(".")
    if body.startswith("model.layers."):
        _, _, layer, part = body.split(".", 3)
        return f"blk.{layer}.{_NAMES[part]}.{kind}"
    return f"{_NAMES[body]}.{kind}"


def write(
    path: Path,
    document: dict[str, Any],
    tensors: dict[str, Array],
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    fields: dict[str, Any] | None = None,
) -> Path:
    """`tensors` under their Hugging Face names, Q and K of llama in the order GGUF keeps them."""
    architecture = document["model_type"]
    writer = GGUFWriter(str(path), architecture)
    writer.add_block_count(document["num_hidden_layers"])
    writer.add_context_length(document["max_position_embeddings"])
    writer.add_embedding_length(document["hidden_size"])
    writer.add_feed_forward_length(document["intermediate_size"])
    writer.add_head_count(document["num_attention_heads"])
    writer.add_head_count_kv(document["num_key_value_heads"])
    writer.add_key_length(document["head_dim"])
    writer.add_rope_freq_base(document["rope_theta"])
    writer.add_layer_norm_rms_eps(document["rms_norm_eps"])
    _add_tokenizer(writer, fields or {})
    for name, array in tensors.items():
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            is_query = ".q_proj." in name
            heads = document["num_attention_heads" if is_query else "num_key_value_heads"]
            # What llama.cpp's converter does: the two halves of each head become pairs.
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        if array.ndim == 1 or kind is GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(array))
        else:
            writer.add_tensor(gguf_name(name), quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
    writer.add_chat_template(tiny.CHAT_TEMPLATE)
