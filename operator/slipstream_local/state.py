"""The state file of a cluster: which processes belong to it. Nobody else reads or writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream_local import layout as layouts
from slipstream_local.errors import LocalClusterError
from slipstream_local.layout import Layout

FILE_NAME = "cluster.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """`start_ticks` tells a recorded process from a later one with the same id."""

    pid: int
    start_ticks: int
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterState:
    layout: Layout
    processes: Mapping[str, ProcessRecord] = field(default_factory=dict)
    sysctls_before: Mapping[str, str] = field(default_factory=dict)

    def with_process(self, name: str, record: ProcessRecord) -> ClusterState:
        return replace(self, processes={**self.processes, name: record})

    def without_process(self, name: str) -> ClusterState:
        return replace(self, processes={k: v for k, v in self.processes.items() if k != name})


def to_json(state: ClusterState) -> dict[str, Any]:
    return {
        "schemaVersion": SCHEMA_VERSION,
        "layout": layouts.to_json(state.layout),
        "processes": {name: asdict(record) for name, record in state.processes.items()},
        "sysctlsBefore": dict(state.sysctls_before),
    }


def from_json(document: Mapping[str, Any]) -> ClusterState:
    processes = {
        name: ProcessRecord(record["pid"], record["start_ticks"], tuple(record["argv"]))
        for name, record in document["processes"].items()
    }
    return ClusterState(layouts.from_json(document["layout"]), processes, document["sysctlsBefore"])


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    temporary.replace(path)


def save(state: ClusterState) -> None:
    text = json.dumps(to_json(state), indent=1)
    write_atomically(state.layout.root / FILE_NAME, text.encode(), 0o600)


def load(root: Path) -> ClusterState | None:
    """None when there is no cluster in this folder."""
    try:
        text = (root / FILE_NAME).read_text()
    except FileNotFoundError:
        return None
    try:
        document = json.loads(text)
        if document["schemaVersion"] != SCHEMA_VERSION:
            raise ValueError(f"schemaVersion {document['schemaVersion']}")
        return from_json(document)
    except (ValueError, KeyError, TypeError) as error:
        raise LocalClusterError(
            f"{root / FILE_NAME} is not a state file of this version ({error}); "
            "`slipstream local down` with this cluster's name removes it"
        ) from error
