"""Containers of the node through ctr and runc; knows no Kubernetes objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slipstream_local import prerequisites
from slipstream_local.errors import ComponentError
from slipstream_local.layout import Layout

NAMESPACE = "k8s.io"
LIMIT_S = 120


def _ctr(ctr: Path, layout: Layout, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    argv = [str(ctr), "--address", str(layout.containerd_socket), "--namespace", NAMESPACE]
    return subprocess.run(
        [*argv, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def is_ready(ctr: Path, layout: Layout) -> bool:
    """True when containerd answers and its Kubernetes plugin is loaded."""
    done = _ctr(ctr, layout, ["plugins", "ls"])
    wanted = ("io.containerd.grpc.v1", "cri")
    lines = [line.split() for line in done.stdout.splitlines()]
    return any(
        tuple(fields[:2]) == wanted and fields[-1] == "ok" for fields in lines if len(fields) > 2
    )


def images(ctr: Path, layout: Layout) -> list[str]:
    return _ctr(ctr, layout, ["images", "ls", "-q"]).stdout.split()


def import_image(ctr: Path, layout: Layout, archive: Path) -> list[str]:
    """The names of the images in the archive."""
    before = set(images(ctr, layout))
    done = _ctr(ctr, layout, ["images", "import", "--local", str(archive)])
    if done.returncode != 0:
        raise ComponentError(f"{archive} could not be imported: {done.stderr.strip()}")
    named = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("unpacking ")]
    return named or sorted(set(images(ctr, layout)) - before)


def delete_all(layout: Layout) -> list[str]:
    """Kill every container with its processes and cgroups; works without containerd."""
    root = layout.containerd_state / "runc" / NAMESPACE
    runc = prerequisites.which("runc")
    if runc is None or not root.exists():
        return []
    argv = [runc, "--root", str(root)]
    listed = subprocess.run(
        [*argv, "list", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    ids = [entry["id"] for entry in json.loads(listed.stdout or "null") or []]
    for container in ids:
        subprocess.run(
            [*argv, "delete", "--force", container],
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    return ids
