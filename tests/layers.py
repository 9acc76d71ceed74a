"""Run the test layers in order, with progress, a budget each, and a table at the end.

    python3 tests/layers.py all            what CI runs
    python3 tests/layers.py check          format, lint, types, imports, generated files
    python3 tests/layers.py unit engine    some layers

Standard library only: it starts before the environment exists. The programs of the local cluster
are built in the background while the environment is made and the first layers run. A layer that
takes twice its budget is ended and counts as failed; one over its budget is only marked, since
the machine may be shared.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path("build/venv/bin")
NO_CLUSTER = "not controlplane and not cluster"


@dataclass(frozen=True)
class Layer:
    """One step. `budget_s` is for two cold cores; `full_factor` stretches it at full depth."""

    name: str
    budget_s: int
    commands: tuple[tuple[str, ...], ...]
    full_factor: int = 1
    needs_tools: bool = False


def pytest(*arguments: str) -> tuple[str, ...]:
    return (str(BIN / "python"), "-m", "pytest", "-q", "--durations=5", *arguments)


UNIT = (
    "tests/api",
    "tests/bench_serve",
    "tests/judge",
    "tests/local",
    "tests/operator",
    "tests/gateway",
    "tests/weights",
    "tests/kvstore",
)

LAYERS = (
    Layer("environment", 300, (("make", "environment"),)),
    Layer(
        "check",
        180,
        (
            (str(BIN / "ruff"), "format", "--check", "--quiet", "."),
            (str(BIN / "ruff"), "check", "--quiet", "."),
            (str(BIN / "mypy"),),
            (str(BIN / "lint-imports"),),
            (str(BIN / "slipstream"), "crds", "generate", "--check"),
        ),
    ),
    Layer(
        "unit",
        240,
        (pytest("-m", NO_CLUSTER, "tests/test_layout.py", *UNIT),),
        full_factor=30,
    ),
    Layer(
        "engine",
        # A minute of bad clients, the real model against transformers, drafts and forms over HTTP.
        1200,
        (pytest("-m", NO_CLUSTER, "tests/engine", "tests/kernels"),),
        full_factor=20,
    ),
    Layer(
        "tools",
        900,
        ((sys.executable, "-m", "slipstream_local.build"),),
        needs_tools=True,
    ),
    Layer("chart", 60, (pytest("-m", NO_CLUSTER, "tests/chart"),), needs_tools=True),
    Layer(
        "control plane",
        600,
        (pytest("-m", "controlplane", "tests"),),
        full_factor=4,
        needs_tools=True,
    ),
    Layer(
        "node",
        600,
        (
            # CI starts from nothing; a developer's own cluster is left as it is.
            *(((str(BIN / "slipstream"), "local", "down"),) if "CI" in os.environ else ()),
            pytest("-m", "cluster", "tests/local"),
        ),
        needs_tools=True,
    ),
    Layer(
        "end to end",
        1200,
        (pytest("-m", "cluster", "tests/e2e"),),
        needs_tools=True,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="+", help="all, or: " + ", ".join(x.name for x in LAYERS))
    parser.add_argument("--depth", choices=("normal", "full"), default="normal")
    options = parser.parse_args()
    unknown = set(options.layers) - {"all"} - {layer.name for layer in LAYERS}
    if unknown:
        parser.error(f"no such layer: {', '.join(sorted(unknown))}")
    chosen = [x for x in LAYERS if "all" in options.layers or x.name in options.layers]
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = "operator"
    has_node = any(layer.name in ("node", "end to end") for layer in chosen)
    prerequisites = (sys.executable, "-m", "slipstream_local.prerequisites")
    if run((*prerequisites, *(("--node",) if has_node else ())), 60) != 0:
        return 1
    builder = start_tools() if any(layer.needs_tools for layer in chosen) else None
    results = []
    for layer in chosen:
        passed, took_s = run_layer(layer, options.depth)
        results.append((layer, passed, took_s))
        if not passed and layer.name == "environment":
            break  # nothing after it can run
    if builder is not None:
        end(builder)
    return report(results, options.depth)


def start_tools() -> subprocess.Popen[bytes]:
    """Build the cluster's programs beside the first layers; its lines are shown as they come."""
    return subprocess.Popen(
        (sys.executable, "-m", "slipstream_local.build"), start_new_session=True
    )


def run_layer(layer: Layer, depth: str) -> tuple[bool, float]:
    budget_s = layer.budget_s * (layer.full_factor if depth == "full" else 1)
    print(f"\n=== {layer.name}: budget {budget_s} s", flush=True)
    begun = time.monotonic()
    passed = True
    for command in layer.commands:
        words = (*command, "--depth", depth) if "pytest" in command else command
        left_s = 2 * budget_s - (time.monotonic() - begun)
        if run(words, left_s) != 0:
            passed = False
    took_s = time.monotonic() - begun
    print(f"=== {layer.name}: {'ok' if passed else 'FAILED'} in {took_s:.0f} s", flush=True)
    return passed, took_s


def run(command: tuple[str, ...], limit_s: float) -> int:
    """Run to the end or to the limit; the whole process group goes with it."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(timeout=max(limit_s, 1))
    except subprocess.TimeoutExpired:
        print(f"=== ended after {limit_s:.0f} s: {' '.join(command)}", flush=True)
        end(process)
        return 124


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def report(results: list[tuple[Layer, bool, float]], depth: str) -> int:
    print(f"\n{'layer':<16}{'result':<10}{'seconds':>8}{'budget':>8}")
    for layer, passed, took_s in results:
        budget_s = layer.budget_s * (layer.full_factor if depth == "full" else 1)
        mark = "" if took_s <= budget_s else "  over budget"
        word = "ok" if passed else "FAILED"
        print(f"{layer.name:<16}{word:<10}{took_s:>8.0f}{budget_s:>8}{mark}")
    failed = sum(not passed for _, passed, _ in results)
    print(f"layers: {len(results) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
