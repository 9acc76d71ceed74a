"""Apply each one-line fault to a copy of the tree; the test it names must turn red.

    python tests/mutants/run.py [NAME ...]

A mutant is a patch file whose first line is `Test: <pytest node id>`. Before any fault is applied,
all named tests must pass on the copy, so that a red test means the fault and nothing else.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).resolve().parent
WORK = ROOT / "build" / "mutants"
SOURCES = ("operator", "engine", "kernels", "tests", "crds", "charts", ".ci")
FILES = ("pyproject.toml", "README.md", "Makefile")
TEST_LIMIT_S = 300
# Two cores: two copies of the tree side by side.
WORKERS = 2


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


def pytest(tree: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests against the copy: its source roots stand before the installed ones."""
    roots = os.pathsep.join(str(tree / root) for root in ("operator", "engine", "kernels"))
    return subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=TEST_LIMIT_S,
        check=False,
    )


def judge(mutant: Mutant, tree: Path) -> str | None:
    """None when the fault was caught, else what went wrong."""
    command = ["patch", "--batch", "--forward", "--strip=1", f"--input={mutant.patch}"]
    applied = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, timeout=30, check=False
    )
    if applied.returncode != 0:
        return f"does not apply: {applied.stdout.strip().splitlines()[-1:]}"
    try:
        result = pytest(tree, [mutant.test])
    except subprocess.TimeoutExpired:
        return None  # a fault that makes its test hang has been noticed
    finally:
        undo = [*command[:2], "--reverse", *command[3:]]
        subprocess.run(undo, cwd=tree, capture_output=True, timeout=30, check=True)
    if result.returncode == 1:
        return None
    return f"SURVIVED {mutant.test} (pytest said {result.returncode})"


def main() -> int:
    wanted = set(sys.argv[1:])
    mutants = [read(p) for p in sorted(PATCHES.glob("*.patch"))]
    mutants = [m for m in mutants if not wanted or m.name in wanted]
    if not mutants:
        print("no such mutant")
        return 2
    trees = [copy_tree(WORK / str(i)) for i in range(WORKERS)]
    print(f"{len(mutants)} mutants; first the named tests without any fault", flush=True)
    clean = pytest(trees[0], sorted({m.test for m in mutants}))
    if clean.returncode != 0:
        print(clean.stdout[-4000:] + clean.stderr[-2000:])
        print("a named test is red without any fault")
        return 1
    survivors = 0

    def share(index: int) -> int:
        lost = 0
        for mutant in mutants[index::WORKERS]:
            problem = judge(mutant, trees[index])
            lost += problem is not None
            print(f"{'caught' if problem is None else problem:<10} {mutant.name}", flush=True)
        return lost

    with ThreadPoolExecutor(WORKERS) as pool:
        survivors = sum(pool.map(share, range(WORKERS)))
    print(f"mutants: {len(mutants) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
