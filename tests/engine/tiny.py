"""Tiny checkpoints with random weights, written without torch: seconds to load, real in form."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from slipstream_weights import huggingface
from slipstream_weights.checkpoint import expected_tensors

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = (
    "def add(left, right):\n    return left + right\n",
    "Write a function that reads a file and counts the words in it.",
    "für größere Häuser, naïve café, 東京, 🙂 and 12345",
)


# What only one architecture's config.json says. GLM: a dense layer, then experts in two groups.
_OWN_FIELDS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "glm4_moe": {
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "n_group": 2,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "norm_topk_prob": True,
        "num_experts_per_tok": 3,
        "num_nextn_predict_layers": 0,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 1.5,
        "topk_group": 1,
        "use_qk_norm": True,
    },
}


def config(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """config.json of a model with grouped heads; `changes` replace or add fields."""
    names: dict[str, str] = {value: name for name, value in huggingface.ARCHITECTURES.items()}
    document = {
        "architectures": [names[architecture]],
        "model_type": architecture,
        "vocab_size": 384,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {**document, **_OWN_FIELDS.get(architecture, {}), **changes}


def tokenizer() -> Tokenizer:
    """A byte-level BPE of 300 tokens: every text can be encoded."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS, trainer)
    made.add_special_tokens([AddedToken("<|im_start|>", special=True)])
    return made


def write_text_files(folder: Path) -> None:
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write(folder: Path, document: dict[str, Any] | None = None, *, seed: int = 0) -> Path:
    """A whole checkpoint folder. Weights are large enough that greedy answers vary."""
    document = document or config()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    write_text_files(folder)
    rng = np.random.default_rng(seed)
    shapes = expected_tensors(huggingface.describe(document, "config.json"))
    tensors = {name: _values(rng, name, shape) for name, shape in shapes.items()}
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Any:
    if "norm" in name:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    values = rng.normal(0.0, 0.15, shape).astype(np.float32)
    if name == "lm_head.weight":
        # The end token is never the best one: greedy answers run to their limit.
        values[1] = 0.0
    return values
