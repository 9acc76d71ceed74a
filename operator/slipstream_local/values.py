"""Helm values that run the project from this machine's own files instead of from built images.

The pods use one thin image and mount the interpreter, the virtual environment and the sources
read-only. Only these values know of host paths; no chart and no code does.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slipstream_local import images

PACKAGES = ("slipstream_api", "slipstream_engine", "slipstream_kernels")
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/etc/ssl")

# Of the weights that the examples in crds/examples name.
SAMPLE_VOLUME = "sample-model"


@dataclass(frozen=True, slots=True)
class Mount:
    name: str
    path: Path


def system_folders(root: Path = Path("/")) -> list[Path]:
    """Folders of the system itself; links into /usr are links in the image too."""
    candidates = (root / folder.lstrip("/") for folder in SYSTEM_FOLDERS)
    return [folder for folder in candidates if folder.is_dir() and not folder.is_symlink()]


def source_roots() -> list[Path]:
    """Where an editable install keeps the packages; inside the environment they need no mount."""
    roots: list[Path] = []
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            root = Path(found.origin).parent.parent
            if root not in roots:
                roots.append(root)
    return roots


def without_nested(paths: Sequence[Path]) -> list[Path]:
    """Each path once, and none that another one already contains."""
    unique = list(dict.fromkeys(paths))
    return [
        path
        for path in unique
        if not any(path != other and path.is_relative_to(other) for other in unique)
    ]


def mounts(extra: Mapping[str, Path]) -> list[Mount]:
    folders = [
        *system_folders(),
        Path(sys.base_prefix).resolve(),
        Path(sys.prefix).resolve(),
        *source_roots(),
    ]
    named = [Mount(f"host-{index}", path) for index, path in enumerate(without_nested(folders))]
    return named + [Mount(name, path) for name, path in extra.items()]


def environment() -> list[dict[str, str]]:
    variables = {
        "HOME": "/tmp",  # noqa: S108 - the container's own, and the only writable folder
        "PATH": f"{Path(sys.prefix).resolve() / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def values(extra: Mapping[str, Path]) -> dict[str, Any]:
    """`extra` mounts further folders under their own paths, for example one with models."""
    wanted = mounts(extra)
    volumes = [{"name": m.name, "hostPath": {"path": str(m.path)}} for m in wanted]
    volume_mounts = [{"name": m.name, "mountPath": str(m.path), "readOnly": True} for m in wanted]
    command = [str(Path(sys.prefix).resolve() / "bin" / "python"), "-m", "slipstream_cli"]
    repository, _, tag = images.THIN_IMAGE.rpartition(":")
    service = {
        "command": command,
        "extraVolumes": volumes,
        "extraVolumeMounts": volume_mounts,
        "extraEnv": environment(),
    }
    engine = {
        "name": "engine",
        "command": command,
        "imagePullPolicy": "Never",
        "volumeMounts": volume_mounts,
        "env": environment(),
    }
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "engine": {
            "image": images.THIN_IMAGE,
            "podDefaults": {"spec": {"volumes": volumes, "containers": [engine]}},
        },
        "operator": service,
        "gateway": service,
    }


def parse_mounts(texts: Sequence[str]) -> dict[str, Path]:
    """`name=/path` each; the folder must exist, because kubelet would only say so much later."""
    result: dict[str, Path] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) is None:
            raise ValueError(f"{text!r}: expected NAME=PATH with a lower-case name")
        if name in result or name == SAMPLE_VOLUME or name.startswith("host-"):
            raise ValueError(f"{text!r}: the name {name} is taken")
        if not Path(path).is_absolute() or not Path(path).exists():
            raise ValueError(f"{text!r}: {path} is not an absolute path that exists")
        result[name] = Path(path)
    return result


class _PlainDumper(yaml.SafeDumper):
    """Writes repeated parts out in full: people read these files."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def to_yaml(document: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(document), Dumper=_PlainDumper, sort_keys=False)
    return text
