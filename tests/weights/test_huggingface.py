"""Hugging Face folders: what is read, and how each kind of damage is named."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from slipstream_weights import source
from slipstream_weights.errors import ModelInvalid, ModelNotFound
from tests.engine import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "model")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder that this process may not look into; root gives its rights up for the test."""
    folder = tmp_path / "locked"
    folder.mkdir(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(user)


def test_a_folder_that_may_not_be_looked_into_is_named(locked: Path) -> None:
    with pytest.raises(ModelInvalid, match="Permission denied"):
        source.open_checkpoint(locked / "model")


def test_a_path_that_no_file_system_takes_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="File name too long"):
        source.open_checkpoint(tmp_path / ("x" * 300))


def _tensors(folder: Path) -> dict[str, Any]:
    return dict(load_file(str(folder / "model.safetensors")))


def _save(folder: Path, tensors: dict[str, Any]) -> None:
    save_file(tensors, str(folder / "model.safetensors"))


def _config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_tensors_come_back_as_they_were_stored(folder: Path) -> None:
    stored = _tensors(folder)
    found = dict(source.open_checkpoint(folder).tensors())
    assert set(found) == set(stored)
    assert all(np.array_equal(found[name], stored[name]) for name in stored)


def test_a_copy_of_tied_embeddings_is_ignored(folder: Path) -> None:
    _config(folder, tie_word_embeddings=True)
    stored = _tensors(folder)
    _save(folder, {**stored, "lm_head.weight": stored["model.embed_tokens.weight"]})
    opened = source.open_checkpoint(folder)
    assert opened.checkpoint.has_tied_embeddings
    assert "lm_head.weight" not in dict(opened.tensors())


def test_a_head_of_its_own_beside_tied_embeddings_is_left_over(folder: Path) -> None:
    _config(folder, tie_word_embeddings=True)
    stored = _tensors(folder)
    changed = stored["model.embed_tokens.weight"].copy()
    changed[-1, -1] += 1
    _save(folder, {**stored, "lm_head.weight": changed})
    with pytest.raises(ModelInvalid, match=r"left over.*lm_head\.weight"):
        list(source.open_checkpoint(folder).tensors())
    _save(folder, {**stored, "lm_head.weight": changed[:-1].copy()})
    with pytest.raises(ModelInvalid, match=r"left over.*lm_head\.weight"):
        source.open_checkpoint(folder)


def test_half_precision_is_widened_exactly(folder: Path) -> None:
    stored = {name: array.astype(np.float16) for name, array in _tensors(folder).items()}
    _save(folder, stored)
    for name, array in source.open_checkpoint(folder).tensors():
        assert np.array_equal(array, stored[name].astype(np.float32))


def test_end_tokens_come_from_every_file_that_names_one(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert source.open_checkpoint(folder).text_model().end_tokens == {1, 2, 7}


def test_a_template_file_comes_before_the_one_in_the_settings(folder: Path) -> None:
    assert source.open_checkpoint(folder).text_model().chat_template == tiny.CHAT_TEMPLATE
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert source.open_checkpoint(folder).text_model().chat_template == "{{ messages }}"


def test_a_template_for_tools_stands_in_the_settings_or_in_a_file(folder: Path) -> None:
    assert source.open_checkpoint(folder).text_model().tool_template is None
    path = folder / "tokenizer_config.json"
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": named}))
    text_model = source.open_checkpoint(folder).text_model()
    assert (text_model.chat_template, text_model.tool_template) == ("a", "b")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("c")
    text_model = source.open_checkpoint(folder).text_model()
    assert (text_model.chat_template, text_model.tool_template) == ("a", "c")


def test_a_folder_without_a_template_has_none(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    assert source.open_checkpoint(folder).text_model().chat_template is None


_NAME = "model.layers.0.self_attn.k_proj.weight"


def _without(folder: Path) -> None:
    tensors = _tensors(folder)
    del tensors[_NAME]
    _save(folder, tensors)


def _left_over(folder: Path) -> None:
    _save(folder, {**_tensors(folder), "model.layers.0.self_attn.k_proj.scale": np.ones(3)})


def _mis_shaped(folder: Path) -> None:
    tensors = _tensors(folder)
    _save(folder, {**tensors, _NAME: tensors[_NAME].T.copy()})


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _integers(folder: Path) -> None:
    tensors = _tensors(folder)
    _save(folder, {**tensors, _NAME: tensors[_NAME].astype(np.int32)})


def _eight_bits(folder: Path) -> None:
    """The header of a file whose first tensor is in FP8, as some publish their weights."""
    header = {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    content = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        len(content).to_bytes(8, "little") + content + b"\0" * 4
    )


_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing tensor": (_without, f"lacks a tensor .*{_NAME}"),
    "a left-over tensor": (_left_over, "no use for .*k_proj.scale"),
    "a mis-shaped tensor": (_mis_shaped, f"expected .*{_NAME}"),
    "a cut file": (_cut, "cut short"),
    "integers": (_integers, "dtype I32 is not supported"),
    "an empty file": (lambda f: (f / "model.safetensors").write_bytes(b""), "cannot be read"),
    "a header that is no JSON": (
        lambda f: (f / "model.safetensors").write_bytes(b"\x04" + b"\0" * 7 + b"{{{{"),
        "header is damaged",
    ),
    "a header longer than the file": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 12),
        "cut short",
    ),
    "eight-bit floats": (_eight_bits, "dtype F8_E4M3 is not supported"),
    "another architecture": (
        lambda f: _config(f, architectures=["BertModel"]),
        "'BertModel' is not supported",
    ),
    "no architecture": (lambda f: _config(f, architectures=None), "None is not supported"),
    "another stretch of positions": (
        lambda f: _config(f, rope_scaling={"type": "yarn", "factor": 2.0}),
        "rope scaling 'yarn'",
    ),
    "a sliding window": (lambda f: _config(f, use_sliding_window=True), "sliding window"),
    "another activation": (lambda f: _config(f, hidden_act="gelu"), "activation 'gelu'"),
    "quantised weights": (lambda f: _config(f, quantization_config={"bits": 4}), "quantised"),
    "a size as text": (lambda f: _config(f, hidden_size="64"), "hidden_size is '64'"),
    "no heads": (lambda f: _config(f, num_attention_heads=0), "number of heads is 0"),
    "heads that cannot be shared": (
        lambda f: _config(f, num_key_value_heads=3),
        "4 heads cannot share 3",
    ),
    "an odd head": (lambda f: _config(f, head_dim=15), "even head size"),
    "a config that is no JSON": (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
    "a config that is a list": (
        lambda f: (f / "config.json").write_text("[]"),
        "not a JSON object",
    ),
}


@pytest.mark.parametrize(("damage", "message"), _DAMAGE.values(), ids=_DAMAGE)
def test_a_damaged_folder_is_refused_and_the_damage_named(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(ModelInvalid, match=message) as caught:
        source.open_checkpoint(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_that_holds_no_checkpoint_is_not_found(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelNotFound):
        source.open_checkpoint(folder)


def test_a_tokeniser_that_is_not_byte_level_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["decoder"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    }
    path.write_text(json.dumps(document))
    with pytest.raises(ModelInvalid, match="not byte-level"):
        source.open_checkpoint(folder).text_model()


@pytest.mark.parametrize("content", [None, "{}", "["], ids=["missing", "empty", "cut"])
def test_a_damaged_tokeniser_is_refused(folder: Path, content: str | None) -> None:
    path = folder / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ModelInvalid, match=r"tokenizer"):
        source.open_checkpoint(folder).text_model()
