"""The reading order in engine/README.md names every module of the engine and no other."""

import re
from pathlib import Path


def test_the_readme_walks_through_every_module(repository: Path) -> None:
    text = (repository / "engine" / "README.md").read_text(encoding="utf-8")
    for package in ("slipstream_engine", "slipstream_weights"):
        files = {path.name for path in (repository / "engine" / package).glob("*.py")}
        for name in files - {"__init__.py"}:
            assert f"`{name}`" in text, name
    named = set(re.findall(r"^\| `(\w+\.py)` \|", text, re.MULTILINE))
    present = {path.name for path in (repository / "engine" / "slipstream_engine").glob("*.py")}
    assert named == present - {"__init__.py"}
