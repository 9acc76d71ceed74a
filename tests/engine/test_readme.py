"""The reading order in engine/README.md names every module of the engine and no other."""

import re
from pathlib import Path


def test_the_readme_walks_through_every_module(repository: Path) -> None:
    text = (repository / "engine" / "README.md").read_text(encoding="utf-8")
    for package in ("slipstream_engine", "slipstream_weights"):
        for name in _modules(repository / "engine" / package):
            assert f"`{name}`" in text, name
    named = set(re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE))
    assert named == _modules(repository / "engine" / "slipstream_engine")


def _modules(package: Path) -> set[str]:
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    return {name for name in found if not name.endswith("__init__.py")}
