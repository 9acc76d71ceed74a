"""Apply each one-line fault to a copy of the tree; the test it names must turn red.

    python tests/mutants/run.py [NAME ...]

A mutant is a patch file whose first line is `Test: <pytest node id>`. Before any fault is applied,
all named tests must pass on the copy, so that a red test means the fault and nothing else.
"""

import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).resolve().parent
WORK = ROOT / "build" / "mutants"
ROOTS = ("operator", "engine", "kernels")
SOURCES = (*ROOTS, "tests", "crds", "charts", ".ci")
FILES = ("pyproject.toml", "README.md", "Makefile")
TEST_LIMIT_S = 300
# Two cores: two copies of the tree side by side.
WORKERS = 2
# Exit code of a run that took a package from elsewhere: pytest's own are smaller.
FOREIGN = 99
# A test process starts as a copy of this one: importing takes longer than most tests.
FORK = multiprocessing.get_context("fork")
LIBRARIES = ("hypothesis", "pytest_asyncio", "pydantic", "yaml", "aiohttp", "torch", "tokenizers")


@dataclass(frozen=True)
class Mutant:
    name: str
    test: str
    patch: Path


def read(path: Path) -> Mutant:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    if not first.startswith("Test: "):
        raise SystemExit(f"{path.name}: the first line must be `Test: <node id>`")
    return Mutant(path.stem, first.removeprefix("Test: ").strip(), path)


def copy_tree(target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__", "build", ".hypothesis")
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    for file in FILES:
        shutil.copy2(ROOT / file, target / file)
    return target


def inside(tree: Path, tests: list[str], log: Path) -> NoReturn:
    """In a process of its own: run tests on the copy and end with pytest's exit code."""
    roots = [str(tree / root) for root in ROOTS]
    os.chdir(tree)
    # Before the installed ones, for this process and for those that tests start.
    sys.path[:0] = roots
    os.environ["PYTHONPATH"] = os.pathsep.join(roots)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    # The libraries that `preload` brought are tested by nobody here.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = int(pytest.main([*options, *tests]))
    foreign = [
        module.__file__
        for name, module in sys.modules.items()
        if name.startswith("slipstream_") and not Path(module.__file__ or "").is_relative_to(tree)
    ]
    if foreign:
        print(f"not taken from the copy: {foreign}")
        code = FOREIGN
    sys.stdout.flush()
    os._exit(code)


def run(tree: Path, tests: list[str]) -> tuple[int | None, str]:
    """pytest's exit code (None: it hung) and what it wrote."""
    log = tree / "pytest.log"
    process = FORK.Process(target=inside, args=(tree, tests, log))
    process.start()
    process.join(TEST_LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
        return None, ""
    return process.exitcode, log.read_text(encoding="utf-8", errors="replace")


def preload() -> None:
    """Import what tests import beside our own packages: once instead of once a mutant."""
    for name in LIBRARIES:
        importlib.import_module(name)


def judge(mutant: Mutant, tree: Path) -> str | None:
    """None when the fault was caught, else what went wrong."""
    options = ["--batch", "--no-backup-if-mismatch", "--reject-file=-", "--strip=1"]
    command = ["patch", *options, f"--input={mutant.patch}"]
    applied = subprocess.run(
        [*command, "--forward"], cwd=tree, capture_output=True, text=True, timeout=30, check=False
    )
    if applied.returncode != 0:
        return f"does not apply: {applied.stdout.strip().splitlines()[-1:]}"
    try:
        code, _ = run(tree, [mutant.test])
    finally:
        undo = [*command, "--reverse"]
        subprocess.run(undo, cwd=tree, capture_output=True, timeout=30, check=True)
    # A fault that makes its test hang has been noticed.
    return None if code in (None, 1) else f"SURVIVED {mutant.test} (exit code {code})"


def share(mutants: list[Mutant], tree: Path) -> None:
    """One worker's part; its exit code is the number of survivors."""
    lost = 0
    for mutant in mutants:
        problem = judge(mutant, tree)
        lost += problem is not None
        print(f"{'caught' if problem is None else problem:<10} {mutant.name}", flush=True)
    sys.exit(min(lost, 100))


def main() -> int:
    wanted = set(sys.argv[1:])
    mutants = [read(p) for p in sorted(PATCHES.glob("*.patch"))]
    unknown = wanted - {m.name for m in mutants}
    mutants = [m for m in mutants if not wanted or m.name in wanted]
    if unknown or not mutants:
        print(f"no such mutant: {', '.join(sorted(unknown))}")
        return 2
    trees = [copy_tree(WORK / str(i)) for i in range(WORKERS)]
    print(f"{len(mutants)} mutants; first the named tests without any fault", flush=True)
    sys.dont_write_bytecode = True
    preload()
    code, output = run(trees[0], sorted({m.test for m in mutants}))
    if code != 0:
        print(output[-6000:])
        print("a named test is red without any fault")
        return 1
    workers = [
        FORK.Process(target=share, args=(mutants[i::WORKERS], tree)) for i, tree in enumerate(trees)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    survivors = sum(abs(worker.exitcode or 0) for worker in workers)
    print(f"mutants: {len(mutants) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
