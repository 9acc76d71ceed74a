"""Tensor names of GGUF files and of Hugging Face folders; a table and nothing else."""

import re

ROPE_FACTORS = "rope_freqs.weight"

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# With the suffix .weight or .bias in both.
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
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    # Layers for tokens after the next one.
    "nextn.eh_proj": "eh_proj",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
# Names whose suffix differs: stacks of all experts, and what corrects the choice among them.
_MIXTURE = {
    "ffn_gate_exps.weight": "mlp.experts.gate_proj",
    "ffn_up_exps.weight": "mlp.experts.up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
_GLM_LAYER = {"post_attention_norm": "post_attention_layernorm"}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(([\w.]+)\.(weight|bias))")


def canonical(name: str, architecture: str) -> str:
    """The Hugging Face name; a name that is not known stays and is refused as left over.

    >>> canonical("blk.3.attn_q.weight", "llama")
    'model.layers.3.self_attn.q_proj.weight'
    >>> canonical("blk.3.ffn_gate_exps.weight", "qwen3_moe")
    'model.layers.3.mlp.experts.gate_proj'
    """
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return _TOP.get(name, name)
    layer, whole, body, suffix = match.groups()
    if whole in _MIXTURE:
        return f"model.layers.{layer}.{_MIXTURE[whole]}"
    names = _LAYER | _GLM_LAYER if architecture == "glm4_moe" else _LAYER
    return f"model.layers.{layer}.{names[body]}.{suffix}" if body in names else name
