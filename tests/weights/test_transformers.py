"""Folders that transformers writes: every architecture's tensors and fields are understood."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream_weights import huggingface, source
from tests.engine import tiny
from tests.weights import gguf_files

pytestmark = pytest.mark.slow  # transformers alone takes ten seconds to import

_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe")


def _save(folder: Path, document: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A random model written by transformers, and its tensors."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {name: value for name, value in document.items() if name != "architectures"}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).eval()
    with torch.no_grad():
        for parameter in [*model.parameters(), *model.buffers()]:
            parameter.normal_(0, 0.1)
    model.save_pretrained(folder, **options)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("architecture", _ARCHITECTURES)
@pytest.mark.parametrize("is_stacked", [False, True], ids=["as published", "as in memory"])
def test_a_folder_written_by_transformers_is_read(
    tmp_path: Path, architecture: str, is_stacked: bool
) -> None:
    document = tiny.config(architecture)
    held = _save(tmp_path, document, save_original_format=not is_stacked)
    opened = source.open_checkpoint(tmp_path)
    expected = huggingface.describe(document, "config.json")
    assert opened.checkpoint == expected
    # In memory transformers 5 stacks the experts of a layer, gate and up together.
    found = gguf_files.stacked(dict(opened.tensors()), is_fused=True)
    assert found.keys() == held.keys()
    assert all(np.array_equal(found[name], held[name]) for name in held)


def test_large_models_are_written_in_shards_and_read(tmp_path: Path) -> None:
    document = tiny.config("qwen3_moe")
    held = _save(tmp_path, document, max_shard_size="100KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    found = gguf_files.stacked(dict(source.open_checkpoint(tmp_path).tensors()), is_fused=True)
    assert all(np.array_equal(found[name], held[name]) for name in held)
