"""The package's README names every module, in an order in which they can be read."""

import re
from pathlib import Path


def test_the_file_table_has_every_module_and_no_other(repository: Path) -> None:
    folder = repository / "engine/slipstream_kvstore"
    text = (folder / "README.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)\.py` \|", text, flags=re.MULTILINE)
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert set(told) == modules
    assert len(told) == len(modules)
