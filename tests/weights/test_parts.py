"""Mixtures of experts, however a file stacks them, and parts of tensors read alone."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from slipstream_weights import huggingface, source
from slipstream_weights.checkpoint import Array, OpenCheckpoint, expected_tensors
from slipstream_weights.errors import ModelInvalid
from slipstream_weights.grouped import Grouped
from tests.depth import cases
from tests.engine import tiny
from tests.weights import gguf_files

_MIXTURES = ("qwen3_moe", "glm4_moe")


def _folder(path: Path, document: dict[str, Any], tensors: dict[str, Array]) -> Path:
    """A folder that holds these tensors and no others."""
    tiny.write(path, document)
    save_file({n: np.ascontiguousarray(a) for n, a in tensors.items()}, path / "model.safetensors")
    return path


def _equal(found: dict[str, Array], expected: dict[str, Array]) -> bool:
    return found.keys() == expected.keys() and all(
        np.array_equal(found[name], expected[name]) for name in expected
    )


@pytest.mark.parametrize("architecture", _MIXTURES)
@pytest.mark.parametrize("is_fused", [False, True], ids=["stacked", "gate and up fused"])
def test_experts_come_one_by_one_from_a_stack(
    tmp_path: Path, architecture: str, is_fused: bool
) -> None:
    document = tiny.config(architecture)
    tensors = gguf_files.values(document)
    stacks = gguf_files.stacked(tensors, is_fused=is_fused)
    assert any(array.ndim == 3 for array in stacks.values())
    assert ("model.layers.1.mlp.experts.gate_up_proj" in stacks) == is_fused
    folder = _folder(tmp_path / "model", document, stacks)
    file = gguf_files.write(tmp_path / "m.gguf", document, tensors, is_fused=is_fused)
    for path in (folder, file):
        assert _equal(dict(source.open_checkpoint(path).tensors()), tensors)


@pytest.mark.parametrize("is_fused", [False, True], ids=["stacked", "gate and up fused"])
@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0])
def test_each_expert_of_a_quantised_stack_keeps_its_codes(
    tmp_path: Path, kind: GGMLQuantizationType, is_fused: bool
) -> None:
    document = tiny.config("glm4_moe")
    tensors = gguf_files.values(document)
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors, kind=kind, is_fused=is_fused)
    packed = dict(source.open_checkpoint(path).packed_tensors())
    for expert in range(8):
        for name in ("gate_proj", "up_proj", "down_proj"):
            whole = f"model.layers.1.mlp.experts.{expert}.{name}.weight"
            values = packed[whole]
            assert isinstance(values, Grouped)
            expected = quants.dequantize(quants.quantize(tensors[whole], kind), kind)
            assert np.array_equal(values.dequantise(), expected), whole


_DENSE: dict[str, tuple[str, dict[str, Any], set[int]]] = {
    "GLM's first": ("glm4_moe", {"first_k_dense_replace": 2}, {0, 1}),
    "none of GLM's": ("glm4_moe", {"first_k_dense_replace": 0}, set()),
    "all of GLM's": ("glm4_moe", {"first_k_dense_replace": 9}, {0, 1, 2, 3, 4}),
    "none of Qwen's": ("qwen3_moe", {}, set()),
    "named ones": ("qwen3_moe", {"mlp_only_layers": [1, 3]}, {1, 3}),
    "every other": ("qwen3_moe", {"decoder_sparse_step": 2}, {0, 2, 4}),
    "both": ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, {0, 1, 2, 4}),
}


@pytest.mark.parametrize(("architecture", "changes", "dense"), _DENSE.values(), ids=_DENSE)
def test_which_layers_have_no_experts(
    architecture: str, changes: dict[str, Any], dense: set[int]
) -> None:
    document = tiny.config(architecture, num_hidden_layers=5, **changes)
    checkpoint = huggingface.describe(document, "config.json")
    assert checkpoint.experts is not None
    assert checkpoint.experts.dense_layers == dense


_LAYER = "model.layers.1.mlp.experts"


def _without_an_expert(tensors: dict[str, Array]) -> dict[str, Array]:
    del tensors[f"{_LAYER}.3.up_proj.weight"]
    return tensors


def _one_expert_more(tensors: dict[str, Array]) -> dict[str, Array]:
    return tensors | {f"{_LAYER}.8.up_proj.weight": tensors[f"{_LAYER}.7.up_proj.weight"]}


def _stack_of_too_few(tensors: dict[str, Array]) -> dict[str, Array]:
    stacks = gguf_files.stacked(tensors)
    return stacks | {f"{_LAYER}.up_proj": stacks[f"{_LAYER}.up_proj"][:-1]}


def _stack_turned(tensors: dict[str, Array]) -> dict[str, Array]:
    stacks = gguf_files.stacked(tensors, is_fused=True)
    name = f"{_LAYER}.down_proj"
    return stacks | {name: stacks[name].swapaxes(1, 2)}


def _stack_and_one_of_it(tensors: dict[str, Array]) -> dict[str, Array]:
    name = f"{_LAYER}.0.up_proj.weight"
    return gguf_files.stacked(tensors) | {name: tensors[name]}


def _stack_in_a_dense_layer(tensors: dict[str, Array]) -> dict[str, Array]:
    stacks = gguf_files.stacked(tensors)
    return stacks | {"model.layers.0.mlp.experts.up_proj": stacks[f"{_LAYER}.up_proj"]}


_DAMAGE: dict[str, tuple[Callable[[dict[str, Array]], dict[str, Array]], str, str]] = {
    "an expert's matrix missing": (
        _without_an_expert,
        "lacks a tensor",
        f"{_LAYER}.3.up_proj.weight",
    ),
    "an expert too many": (_one_expert_more, "no use for", f"{_LAYER}.8.up_proj.weight"),
    "a stack of too few": (_stack_of_too_few, r"shape \[7, 32, 64\]", f"{_LAYER}.up_proj"),
    "a stack turned": (_stack_turned, r"expected \[8, 64, 32\]", f"{_LAYER}.down_proj"),
    "a stack and one of it": (_stack_and_one_of_it, "twice", f"{_LAYER}.0.up_proj.weight"),
    "a stack in a dense layer": (
        _stack_in_a_dense_layer,
        "no use for",
        "model.layers.0.mlp.experts.up_proj",
    ),
}


@pytest.mark.parametrize(("damage", "message", "name"), _DAMAGE.values(), ids=_DAMAGE)
def test_damaged_experts_are_refused_by_name(
    tmp_path: Path,
    damage: Callable[[dict[str, Array]], dict[str, Array]],
    message: str,
    name: str,
) -> None:
    document = tiny.config("glm4_moe")
    folder = _folder(tmp_path / "model", document, damage(gguf_files.values(document)))
    with pytest.raises(ModelInvalid, match=message) as caught:
        source.open_checkpoint(folder)
    assert caught.value.tensor == name
    assert caught.value.path == str(folder)


def test_a_stack_in_a_model_without_experts_is_left_over(tmp_path: Path) -> None:
    document = tiny.config("qwen3")
    tensors = gguf_files.values(document) | {f"{_LAYER}.up_proj": np.ones((2, 3, 4), np.float32)}
    with pytest.raises(ModelInvalid, match="no use for") as caught:
        source.open_checkpoint(_folder(tmp_path / "model", document, tensors))
    assert caught.value.tensor == f"{_LAYER}.up_proj"


@pytest.mark.parametrize("is_file", [False, True], ids=["folder", "file"])
def test_layers_for_later_tokens_are_skipped(tmp_path: Path, is_file: bool) -> None:
    document = tiny.config("glm4_moe", num_nextn_predict_layers=1)
    tensors = gguf_files.values(document)
    more = gguf_files.left_overs(document)
    assert "model.layers.2.eh_proj.weight" in more
    assert "model.layers.2.mlp.experts.7.up_proj.weight" in more
    if is_file:
        path = gguf_files.write(tmp_path / "m.gguf", document, tensors | more)
    else:
        path = _folder(tmp_path / "model", document, tensors | more)
    opened = source.open_checkpoint(path)
    assert (opened.checkpoint.num_layers, opened.checkpoint.num_mtp_layers) == (2, 1)
    assert _equal(dict(opened.tensors()), tensors)


_FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "another name in that layer": ({"num_nextn_predict_layers": 1}, "model.layers.2.new.weight"),
    "a layer after it": ({"num_nextn_predict_layers": 1}, "model.layers.3.enorm.weight"),
    "such a layer where there is none": (
        {"num_nextn_predict_layers": 0},
        "model.layers.2.enorm.weight",
    ),
    "one of its names in another layer": (
        {"num_nextn_predict_layers": 1},
        "model.layers.1.enorm.weight",
    ),
}


@pytest.mark.parametrize(("changes", "name"), _FOREIGN.values(), ids=_FOREIGN)
def test_nothing_else_is_skipped(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    document = tiny.config("glm4_moe", **changes)
    tensors = gguf_files.values(document) | {name: np.ones(64, np.float32)}
    with pytest.raises(ModelInvalid, match="no use for") as caught:
        source.open_checkpoint(_folder(tmp_path / "model", document, tensors))
    assert caught.value.tensor == name


def _dense(values: Array | Grouped) -> Array:
    return values.dequantise() if isinstance(values, Grouped) else values


_KINDS = ("F32", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> list[OpenCheckpoint]:
    """One model in each form: interleaved rows, stacks, vectors, every kind of block."""
    folder = tmp_path_factory.mktemp("forms")
    opened = []
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    documents = {
        "llama": tiny.config("llama", attention_bias=True, **sizes),
        "glm4_moe": tiny.config("glm4_moe", moe_intermediate_size=256, **sizes),
    }
    for architecture, document in documents.items():
        tensors = gguf_files.values(document)
        for name in _KINDS:
            path = folder / f"{architecture}-{name}.gguf"
            gguf_files.write(path, document, tensors, kind=GGMLQuantizationType[name])
            opened.append(source.open_checkpoint(path))
        stacks = gguf_files.stacked(tensors, is_fused=True)
        opened.append(source.open_checkpoint(_folder(folder / architecture, document, stacks)))
    return opened


def _slices(size: int) -> st.SearchStrategy[slice | None]:
    ends = st.none() | st.integers(-size - 2, size + 2) | st.sampled_from((0, size // 2, size))
    return st.none() | st.builds(slice, ends, ends)


@cases(300)
@given(data=st.data())
def test_a_part_read_alone_is_the_part_of_the_whole(
    forms: list[OpenCheckpoint], data: st.DataObject
) -> None:
    opened = data.draw(st.sampled_from(forms))
    shapes = expected_tensors(opened.checkpoint)
    name = data.draw(st.sampled_from(sorted(shapes)))
    shape = shapes[name]
    whole = _dense(opened.read(name))
    assert whole.shape == shape
    rows = data.draw(_slices(shape[0]))
    cols = data.draw(_slices(shape[1])) if len(shape) > 1 else None
    part = opened.read(name, rows, cols)
    kept = (rows or slice(None),) if len(shape) == 1 else (rows or slice(None), cols or slice(None))
    assert np.array_equal(_dense(part), whole[kept])
    assert _dense(part).dtype == np.float32


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q4_K"])
def test_columns_keep_their_codes_unless_a_group_is_cut(tmp_path: Path, kind: str) -> None:
    document = tiny.config(hidden_size=256, intermediate_size=512, head_dim=64)
    tensors = gguf_files.values(document)
    path = tmp_path / "m.gguf"
    gguf_files.write(path, document, tensors, kind=GGMLQuantizationType[kind])
    opened = source.open_checkpoint(path)
    name = "model.layers.0.mlp.down_proj.weight"
    assert isinstance(opened.read(name, None, slice(96, 352)), Grouped)
    assert isinstance(opened.read(name, None, slice(96, 350)), np.ndarray)
    assert isinstance(opened.read(name, slice(3, 5)), Grouped)


def test_what_cannot_be_read_is_said(forms: list[OpenCheckpoint]) -> None:
    for opened in forms:
        with pytest.raises(KeyError):
            opened.read("model.layers.9.self_attn.q_proj.weight")
        with pytest.raises(ValueError, match="step 2"):
            opened.read("model.norm.weight", slice(0, 8, 2))
        with pytest.raises(ValueError, match="no columns"):
            opened.read("model.norm.weight", None, slice(0, 8))


def test_few_rows_of_a_large_matrix_take_little_memory(tmp_path: Path) -> None:
    document = tiny.config(vocab_size=20_000)
    tensors = gguf_files.values(document)
    folder = _folder(tmp_path / "model", document, tensors)
    file = gguf_files.write(tmp_path / "m.gguf", document, tensors, kind=GGMLQuantizationType.Q4_1)
    for path in (folder, file):
        opened = source.open_checkpoint(path)
        opened.read("lm_head.weight", slice(0, 1))  # imports are not what is measured
        tracemalloc.start()
        try:
            opened.read("lm_head.weight", slice(19_000, 19_010))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # The whole is 5.1 MB in float32.
        assert peak_bytes < 100_000
