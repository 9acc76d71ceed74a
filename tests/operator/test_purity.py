"""What deciding modules may not do although their imports allow it: ask a clock or throw dice.

Imports themselves are import-linter's; its contract names the modules.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

# datetime is imported for its type, random for the type of an argument.
CLOCKS = frozenset({"now", "utcnow", "today", "localtime"})


def deciding(repository: Path) -> list[Path]:
    settings = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [
        c
        for c in settings["tool"]["importlinter"]["contracts"]
        if c["name"].startswith("The operator decides without clock")
    ]
    modules = [name.partition(".")[2] for name in contract["source_modules"]]
    folder = repository / "operator/slipstream_operator"
    found = [folder / f"{name}.py" for name in modules if not (folder / name).is_dir()]
    return found + [path for name in modules for path in sorted((folder / name).glob("*.py"))]


def questions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        of_random = isinstance(node.value, ast.Name) and node.value.id == "random"
        if node.attr in CLOCKS or (of_random and node.attr != "Random"):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_deciding_modules_ask_no_clock_and_throw_no_dice(repository: Path) -> None:
    modules = deciding(repository)
    assert {"plan", "rollout", "rotation", "schedule", "roofline"} <= {
        path.stem for path in modules
    }
    found = {
        path.name: list(questions(ast.parse(path.read_text(encoding="utf-8")))) for path in modules
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_check_sees_what_it_is_for() -> None:
    tree = ast.parse("datetime.now(UTC); random.random(); date.today(); rng: random.Random")
    assert [text.partition(": ")[2] for text in questions(tree)] == [
        "datetime.now",
        "random.random",
        "date.today",
    ]
