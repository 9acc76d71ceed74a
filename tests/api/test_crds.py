"""The generated CustomResourceDefinitions: current, structural, with the columns people read."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slipstream_api import crds, names
from slipstream_api.gpuclass import GPUClassSpec
from slipstream_api.inferencemodel import InferenceModelSpec
from slipstream_cli.main import app


@pytest.mark.parametrize("file", sorted(crds.generate()))
def test_generated_files_are_current(repository: Path, file: str) -> None:
    text = crds.generate()[file]
    assert (repository / "crds" / file).read_text(encoding="utf-8") == text
    chart = repository / "charts/slipstream/templates/crds" / file
    assert chart.read_text(encoding="utf-8") == crds.chart_template(text)


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for child in schema.get("properties", {}).values():
        yield from nodes(child)
    if "items" in schema:
        yield from nodes(schema["items"])


@pytest.mark.parametrize("kind", crds.KINDS, ids=lambda k: k.kind)
def test_schemas_are_structural_and_hold_no_floats(kind: crds.Kind) -> None:
    version = crds.definition(kind)["spec"]["versions"][0]
    for node in nodes(version["schema"]["openAPIV3Schema"]):
        assert node["type"] in {"object", "array", "string", "integer", "boolean"}, node
        assert not {"anyOf", "$ref", "$defs", "const", "title", "nullable"} & set(node)


def test_a_model_shows_model_ready_replicas_reason_age() -> None:
    version = crds.definition(crds.KINDS[0])["spec"]["versions"][0]
    columns = [c["name"] for c in version["additionalPrinterColumns"]]
    assert columns == ["Model", "Ready", "Replicas", "Reason", "Age"]
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.scaling.replicas"


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).resolve().parents[2].glob("crds/examples/*.yaml")), ids=str
)
def test_every_example_is_a_valid_model(path: Path) -> None:
    documents = [d for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d]
    assert documents
    for document in documents:
        if document["kind"] == "InferenceModel":
            assert document["apiVersion"] == names.API_VERSION
            InferenceModelSpec.model_validate(document["spec"])


@pytest.mark.parametrize(
    "path",
    sorted(Path(__file__).resolve().parents[2].glob("crds/examples/gpuclasses/*.yaml")),
    ids=lambda path: path.stem,
)
def test_every_sample_of_a_card_is_a_valid_class_and_says_where_its_figures_are_from(
    path: Path,
) -> None:
    text = path.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    assert (document["apiVersion"], document["kind"]) == (names.API_VERSION, "GPUClass")
    assert document["metadata"] == {"name": path.stem}
    GPUClassSpec.model_validate(document["spec"])
    for what in ("# Figures: ", "# Price: ", "fficiencies"):
        assert what in text


def test_a_card_is_of_the_cluster_and_nobody_writes_its_status() -> None:
    (kind,) = (kind for kind in crds.KINDS if kind.kind == "GPUClass")
    spec = crds.definition(kind)["spec"]
    assert spec["scope"] == "Cluster"
    (version,) = spec["versions"]
    assert "subresources" not in version
    assert "status" not in version["schema"]["openAPIV3Schema"]["properties"]


def test_outside_of_the_repository_the_command_says_what_it_looks_for(tmp_path: Path) -> None:
    for more in ([], ["--check"]):
        words = ["crds", "generate", "--root", str(tmp_path), *more]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1
        assert f"there is no {tmp_path}/charts/slipstream/Chart.yaml" in result.stderr
        assert "stale" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_command_tells_which_file_is_not_current(repository: Path, tmp_path: Path) -> None:
    for folder in ("crds", "charts/slipstream"):
        shutil.copytree(repository / folder, tmp_path / folder)
    words = ["crds", "generate", "--root", str(tmp_path)]
    assert CliRunner().invoke(app, [*words, "--check"]).exit_code == 0
    stale = tmp_path / "crds" / "inferencemodels.yaml"
    stale.write_text("old", encoding="utf-8")
    checked = CliRunner().invoke(app, [*words, "--check"])
    assert (checked.exit_code, checked.stdout) == (1, f"stale {stale}\n")
    assert CliRunner().invoke(app, words).stdout == f"wrote {stale}\n"
    assert CliRunner().invoke(app, [*words, "--check"]).exit_code == 0
