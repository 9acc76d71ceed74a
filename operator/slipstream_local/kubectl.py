"""Run kubectl and helm against one cluster; the only door of this package to its API objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream_local.errors import ComponentError

LIMIT_S = 120


def run(
    kube: Path, kubeconfig: Path, arguments: Sequence[str], stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    argv = [str(kube), "kubectl", f"--kubeconfig={kubeconfig}", *arguments]
    return subprocess.run(
        argv, input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def must(kube: Path, kubeconfig: Path, arguments: Sequence[str], stdin: str | None = None) -> str:
    done = run(kube, kubeconfig, arguments, stdin)
    if done.returncode != 0:
        raise ComponentError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def list_of(objects: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def apply(kube: Path, kubeconfig: Path, objects: Sequence[dict[str, Any]]) -> None:
    must(
        kube,
        kubeconfig,
        ["apply", "--server-side", "--force-conflicts", "-f", "-"],
        list_of(objects),
    )


def parse_stream(text: str) -> list[dict[str, Any]]:
    """kubectl prints several objects one after the other, not as a list."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    rest = text.lstrip()
    while rest:
        document, end = decoder.raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found


def create(kube: Path, kubeconfig: Path, objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects as the server stored them."""
    answer = must(kube, kubeconfig, ["create", "-o", "json", "-f", "-"], list_of(objects))
    return parse_stream(answer)


def get(kube: Path, kubeconfig: Path, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(must(kube, kubeconfig, ["get", "-o", "json", *arguments]))
    return answer
