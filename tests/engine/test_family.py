"""Checkpoints of every architecture that transformers wrote: equal greedy answers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Scheduler
from slipstream_weights import source
from slipstream_weights.checkpoint import Llama3RopeScaling
from tests.engine import local, tiny

pytestmark = pytest.mark.slow  # transformers alone takes ten seconds to import

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, wide heads": ("llama", {"head_dim": 32}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama 3 rope": ("llama", {"rope_parameters": _LLAMA3}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3, biases": ("qwen3", {"attention_bias": True}),
    "mistral": ("mistral", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe, one dense layer, raw weights": (
        "qwen3_moe",
        {"mlp_only_layers": [0], "norm_topk_prob": False},
    ),
    "glm4_moe": ("glm4_moe", {}),
    "glm4_moe, all dense but the last, one group": (
        "glm4_moe",
        {"num_hidden_layers": 3, "first_k_dense_replace": 2, "n_group": 1, "use_qk_norm": False},
    ),
}


def _write(folder: Path, architecture: str, changes: dict[str, Any], shard: str = "5GB") -> Any:
    """A random model of transformers, saved by transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    document = tiny.config(architecture, **changes)
    del document["architectures"], document["head_dim"]
    if "head_dim" in changes or architecture not in ("llama", "qwen2"):
        document["head_dim"] = changes.get("head_dim", 16)
    settings = AutoConfig.for_model(**document)
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # The default is so small that every answer would be alike; biases would be zero.
            parameter.uniform_(0.5, 1.5) if "norm" in name else parameter.normal_(0, 0.15)
    model.save_pretrained(folder, max_shard_size=shard)
    tiny.write_text_files(folder)
    return model


@torch.inference_mode()
def _greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def _ours(folder: Path, prompts: list[list[int]], count: int) -> list[list[int]]:
    model = local.decoder(folder)
    scheduler = Scheduler(local.limits(256, tokens=48), 64)
    runner = Runner(model, local.pool(model, 16, 64))
    arrivals = [(i, local.request(str(i), p, count)) for i, p in enumerate(prompts)]
    answers = local.drive(scheduler, runner, arrivals)
    return [answers[str(i), 0] for i in range(len(prompts))]


_PROMPTS = [[(7 * i + k) % 384 for i in range(length)] for k, length in enumerate((3, 17, 90))]


@pytest.mark.parametrize(("architecture", "changes"), _CASES.values(), ids=_CASES.keys())
def test_greedy_answers_equal_transformers(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    reference = _write(tmp_path, architecture, changes)
    expected = [_greedy(reference, prompt, 24) for prompt in _PROMPTS]
    assert _ours(tmp_path, _PROMPTS, 24) == expected
    assert any(len(set(answer)) > 4 for answer in expected)


def test_a_sharded_checkpoint_equals_the_whole_one(tmp_path: Path) -> None:
    reference = _write(tmp_path, "qwen3", {}, shard="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    expected = [_greedy(reference, prompt, 8) for prompt in _PROMPTS]
    assert _ours(tmp_path, _PROMPTS, 8) == expected


def test_bfloat16_files_are_read_as_the_numbers_that_they_hold(tmp_path: Path) -> None:
    reference = _write(tmp_path, "llama", {}).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    stored = {name: tensor.float() for name, tensor in reference.state_dict().items()}
    for name, array in source.open_checkpoint(tmp_path).tensors():
        assert torch.equal(torch.from_numpy(array), stored[name])


def test_the_llama_3_stretch_is_read_and_changes_the_frequencies(tmp_path: Path) -> None:
    from slipstream_engine.model import inverse_frequencies

    reference = _write(tmp_path, "llama", {"rope_parameters": _LLAMA3})
    checkpoint = source.open_checkpoint(tmp_path).checkpoint
    assert checkpoint.rope_scaling == Llama3RopeScaling(4.0, 1.0, 4.0, 64)
    theirs = reference.model.rotary_emb.inv_freq
    assert torch.allclose(inverse_frequencies(checkpoint), theirs, rtol=1e-6)
