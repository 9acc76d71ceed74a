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


def _list_of(objects: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def apply(kube: Path, kubeconfig: Path, objects: Sequence[dict[str, Any]]) -> None:
    must(
        kube,
        kubeconfig,
        ["apply", "--server-side", "--force-conflicts", "-f", "-"],
        _list_of(objects),
    )


def create(kube: Path, kubeconfig: Path, objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects as the server stored them."""
    answer = must(kube, kubeconfig, ["create", "-o", "json", "-f", "-"], _list_of(objects))
    document = json.loads(answer) if len(objects) == 1 else json.loads(answer or "{}")
    items = document.get("items") if document.get("kind") == "List" else [document]
    return list(items or [])


def get(kube: Path, kubeconfig: Path, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(must(kube, kubeconfig, ["get", "-o", "json", *arguments]))
    return answer
