"""The record of an inspected checkpoint: the same from both forms, with all bytes accounted for."""

from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType

from slipstream_operator.planner import weights as planner_weights
from slipstream_weights import facts, gguf_header, shards
from tests.engine import tiny
from tests.weights import gguf_files

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe")


@pytest.fixture(params=ARCHITECTURES)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    return tiny.config(request.param)


def test_a_folder_says_what_its_configuration_says(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    folder = tiny.write(tmp_path / "model", document)
    found = facts.read(folder)
    assert found.name == "model"
    assert found.source == f"file://{folder}"
    assert found.architecture == document["architectures"][0]
    assert found.num_layers == document["num_hidden_layers"]
    assert found.num_kv_heads == document["num_key_value_heads"]
    assert found.weight_format == "fp32"
    assert found.weight_group is None
    assert (found.experts is None) == ("moe" not in document["model_type"])


def test_every_byte_of_a_folder_is_of_some_use(tmp_path: Path, document: dict[str, Any]) -> None:
    folder = tiny.write(tmp_path / "model", document)
    found = facts.read(folder)
    assert found.weights is not None
    stored = sum(tensor.end - tensor.start for tensor in shards.read(folder))
    assert found.weights.total == stored


def test_what_is_read_is_what_would_be_derived_but_for_norms_and_biases(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    found = facts.read(tiny.write(tmp_path / "model", document))
    assert found.weights is not None
    derived = planner_weights.in_bytes(found.model_copy(update={"weights": None}))
    for name, counted in derived.model_dump().items():
        # Tiny models have large norms.
        assert getattr(found.weights, name) == pytest.approx(counted, rel=0.2), name


@pytest.mark.parametrize(
    ("kind", "weight_format"),
    [(GGMLQuantizationType.Q8_0, "int8"), (GGMLQuantizationType.Q4_1, "int4")],
)
def test_a_file_in_codes_says_so_and_counts_its_bytes(
    tmp_path: Path, document: dict[str, Any], kind: GGMLQuantizationType, weight_format: str
) -> None:
    values = gguf_files.values(document)
    path = gguf_files.write(tmp_path / "model.gguf", document, values, kind=kind)
    found = facts.read(path)
    assert (found.name, found.weight_format, found.weight_group) == ("model", weight_format, 32)
    assert found.weights is not None
    stored = sum(tensor.end - tensor.start for tensor in gguf_header.read(path).tensors)
    assert found.weights.total == stored
