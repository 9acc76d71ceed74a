"""A checkpoint and its export as a folder are the same model, in our eyes and transformers'."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from slipstream_weights import export, source
from slipstream_weights.checkpoint import OpenCheckpoint
from slipstream_weights.errors import ModelInvalid
from tests.engine import tiny
from tests.weights import gguf_files

_ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3_moe", "glm4_moe")
_TEXT = "def add(left, right):\n    return 123 + naïve 🙂<|im_end|>"


def _file(path: Path, document: dict[str, Any], **options: Any) -> OpenCheckpoint:
    tensors = options.pop("tensors", None) or gguf_files.values(document)
    kind = GGMLQuantizationType.Q4_1
    return source.open_checkpoint(gguf_files.write(path, document, tensors, kind=kind, **options))


@pytest.mark.parametrize("architecture", _ARCHITECTURES)
def test_a_file_and_its_export_are_one_model(tmp_path: Path, architecture: str) -> None:
    document = tiny.config(architecture, rms_norm_eps=0.5)
    # A token is put before every text, turns end by a token of their own.
    opened = _file(tmp_path / "m.gguf", document, fields={"add_bos": True, "eot": 7})
    export.write_folder(opened, tmp_path / "new" / "model", shard_bytes=200_000)
    again = source.open_checkpoint(tmp_path / "new" / "model")
    assert len(list((tmp_path / "new" / "model").glob("*.safetensors"))) > 1
    assert again.checkpoint == opened.checkpoint
    found = dict(again.tensors())
    for name, values in opened.tensors():
        assert np.array_equal(found[name], values), name
    one, other = opened.text_model(), again.text_model()
    assert one.tokenizer.encode(_TEXT).ids == other.tokenizer.encode(_TEXT).ids
    assert one.end_tokens == other.end_tokens
    assert one.chat_template == other.chat_template
    assert (one.bos_token, one.eos_token) == (other.bos_token, other.eos_token)


@pytest.mark.parametrize("architecture", ["mistral", "llama3"])
def test_a_folder_and_its_export_are_one_model(tmp_path: Path, architecture: str) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    document = (
        tiny.config("llama", rope_scaling=scaling, tie_word_embeddings=True)
        if architecture == "llama3"
        else tiny.config(architecture, sliding_window=100)
    )
    opened = source.open_checkpoint(tiny.write(tmp_path / "model", document))
    export.write_folder(opened, tmp_path / "again")
    again = source.open_checkpoint(tmp_path / "again")
    assert again.checkpoint == opened.checkpoint
    found = dict(again.tensors())
    assert all(np.array_equal(found[name], values) for name, values in opened.tensors())


@pytest.mark.slow  # transformers alone takes ten seconds to import
@pytest.mark.parametrize("architecture", _ARCHITECTURES)
def test_transformers_reads_an_export(tmp_path: Path, architecture: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # transformers has code of its own for Qwen2's tokeniser, whatever the folder says.
    fields = {"pre": "qwen2"} if architecture == "qwen2" else {}
    opened = _file(tmp_path / "m.gguf", tiny.config(architecture), fields=fields)
    export.write_folder(opened, tmp_path / "model", shard_bytes=200_000)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    held = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tensors = gguf_files.stacked(dict(opened.tensors()), is_fused=True)
    assert held.keys() == tensors.keys()
    assert all(held[name].dtype == np.float32 for name in held)
    assert all(np.array_equal(held[name], tensors[name]) for name in held)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer(_TEXT)["input_ids"] == opened.text_model().tokenizer.encode(_TEXT).ids
    with torch.inference_mode():
        assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


def test_what_a_config_cannot_say_is_not_written(tmp_path: Path) -> None:
    document = tiny.config()
    tensors = gguf_files.values(document) | {"rope_freqs.weight": np.full(8, 2.0, np.float32)}
    opened = _file(tmp_path / "m.gguf", document, tensors=tensors)
    with pytest.raises(ModelInvalid, match="cannot say"):
        export.write_folder(opened, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_nothing_is_written_over(tmp_path: Path) -> None:
    opened = _file(tmp_path / "m.gguf", tiny.config())
    with pytest.raises(FileExistsError):
        export.write_folder(opened, tmp_path)
