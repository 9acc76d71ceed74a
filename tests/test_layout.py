"""The layout's promises: source roots hold packages only, every package is shipped and judged."""

import operator
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOTS = ("operator", "engine", "kernels")


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


def packages(repository: Path) -> set[str]:
    return {
        f"{root}/{folder.name}"
        for root in ROOTS
        for folder in (repository / root).iterdir()
        if folder.is_dir() and folder.name.startswith("slipstream_")
    }


def test_source_roots_hold_no_python_file(repository: Path) -> None:
    assert [p for root in ROOTS for p in (repository / root).glob("*.py")] == []


def test_operator_is_still_the_standard_library(repository: Path) -> None:
    assert operator.__file__ is not None
    assert not operator.__file__.startswith(str(repository))
    result = subprocess.run(
        [sys.executable, "-c", "import json, operator; print(operator.add(1, 2))"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert result.stdout == "3\n"


def test_every_package_is_shipped(repository: Path, project: dict[str, Any]) -> None:
    shipped = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packages(repository) == shipped


def test_every_package_is_held_to_the_import_contracts(
    repository: Path, project: dict[str, Any]
) -> None:
    known = set(project["tool"]["importlinter"]["root_packages"])
    assert {p.split("/")[1] for p in packages(repository)} == known


def test_every_package_says_what_it_is_for(repository: Path) -> None:
    silent = [
        p for p in packages(repository) if '"""' not in (repository / p / "__init__.py").read_text()
    ]
    assert silent == []


@pytest.mark.parametrize("root", ROOTS)
def test_every_source_root_has_a_readme_that_names_its_packages(
    repository: Path, root: str
) -> None:
    text = (repository / root / "README.md").read_text(encoding="utf-8")
    missing = [
        p.split("/")[1]
        for p in packages(repository)
        if p.startswith(f"{root}/") and p.split("/")[1] not in text
    ]
    assert missing == []


def test_modules_stay_readable(repository: Path) -> None:
    """400 lines a module: a longer one has two reasons to change."""
    long = {
        str(path.relative_to(repository)): lines
        for root in ROOTS
        for path in (repository / root).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}


def test_constraints_name_no_index_and_no_path(repository: Path) -> None:
    text = (repository / ".ci/constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--" not in text
    assert all("==" in line for line in text.splitlines() if line and not line.startswith("#"))
