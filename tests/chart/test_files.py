"""Samples that readers copy, and Dockerfiles that no test here can build: checked as text."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from slipstream_api import names
from slipstream_api.inferencemodel import InferenceModelSpec

DOCKERFILES = {
    "operator/Dockerfile.operator": "operator",
    "engine/Dockerfile.gateway": "gateway",
    "engine/Dockerfile.engine": "engine,tracing,compiler",
    "engine/Dockerfile.cache": "cache",
}


def sample_documents(repository: Path) -> list[tuple[Path, dict[str, object]]]:
    return [
        (path, document)
        for path in sorted((repository / "crds/examples").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def test_every_sample_is_a_valid_model(repository: Path) -> None:
    models = [
        (path.name, document)
        for path, document in sample_documents(repository)
        if document["kind"] == "InferenceModel"
    ]
    assert {name for name, _ in models} == {
        path.name for path in (repository / "crds/examples").glob("*.yaml")
    }
    for _, document in models:
        assert document["apiVersion"] == names.API_VERSION
        InferenceModelSpec.model_validate(document["spec"])


def test_samples_can_be_applied_together(repository: Path) -> None:
    """Two samples with one name or alias would take it from each other."""
    claimed: list[str] = []
    for _, document in sample_documents(repository):
        if document["kind"] == "InferenceModel":
            spec = InferenceModelSpec.model_validate(document["spec"])
            metadata = document["metadata"]
            assert isinstance(metadata, dict)
            claimed += [metadata["name"], *spec.model.aliases]
    assert len(claimed) == len(set(claimed))


def dockerfile(repository: Path, path: str) -> list[str]:
    text = (repository / path).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("path", DOCKERFILES)
def test_images_run_as_a_numbered_user_and_start_our_program(repository: Path, path: str) -> None:
    lines = dockerfile(repository, path)
    (user,) = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", user)
    assert lines[-1] == 'ENTRYPOINT ["slipstream"]'
    assert lines.index(f"USER {user}") > max(
        i for i, line in enumerate(lines) if line.startswith(("RUN ", "COPY "))
    )


@pytest.mark.parametrize("path", DOCKERFILES)
def test_images_install_extras_that_exist_from_pinned_versions(repository: Path, path: str) -> None:
    text = (repository / path).read_text(encoding="utf-8")
    extras = tomllib.loads((repository / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (installed,) = re.findall(r"install '\.\[([\w,]+)\]'", text)
    assert installed == DOCKERFILES[path]
    assert set(installed.split(",")) <= set(extras)
    assert "PIP_CONSTRAINT=/src/.ci/constraints.txt" in text


@pytest.mark.parametrize("path", DOCKERFILES)
def test_what_images_copy_exists_and_reaches_the_build(repository: Path, path: str) -> None:
    reaching = {
        line.removeprefix("!")
        for line in (repository / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    sources = [
        word
        for line in dockerfile(repository, path)
        if line.startswith("COPY ") and "--from=" not in line
        for word in line.split()[1:-1]
    ]
    assert set(sources) == reaching
    for source in sources:
        assert (repository / source).exists(), source
