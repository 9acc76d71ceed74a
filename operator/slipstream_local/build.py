"""Build the Go programs of the local cluster, once per content; knows no cluster and no ports.

Needs only the standard library, so that it can run before the project is installed:
`PYTHONPATH=operator python3 -m slipstream_local.build [--only kube,helm]`.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slipstream_local import prerequisites
from slipstream_local.errors import BuildError, LocalClusterError
from slipstream_local.gomods import GO_DIR
from slipstream_local.progress import Progress

BUILD_LIMIT_S = 45 * 60
LOG_LINES = 30


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    module: str
    package: str
    stamps: tuple[str, ...] = ()  # templates of `-X name=value`; {version} is the module's


# In the order in which they are useful: the control plane can start while the rest still builds.
PROGRAMS = (
    Program(
        "kube",
        "kube",
        ".",
        (
            "k8s.io/component-base/version.gitVersion={version}",
            "k8s.io/client-go/pkg/version.gitVersion={version}",
            "k8s.io/component-base/version.gitMajor={major}",
            "k8s.io/component-base/version.gitMinor={minor}",
        ),
    ),
    Program("pause", "pause", "."),
    Program(
        "containerd",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd",
        ("github.com/containerd/containerd/v2/version.Version={version}",),
    ),
    Program(
        "containerd-shim-runc-v2",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    Program("ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr"),
    Program("coredns", "coredns", "."),
    Program(
        "helm",
        "helm",
        "helm.sh/helm/v3/cmd/helm",
        ("helm.sh/helm/v3/internal/version.version={version}",),
    ),
    Program(
        "kwok",
        "kwok",
        "sigs.k8s.io/kwok/cmd/kwok",
        ("sigs.k8s.io/kwok/pkg/consts.Version={version}",),
    ),
)
BY_NAME = {program.name: program for program in PROGRAMS}
CONTROL_PLANE = ("kube",)
NODE = ("kube", "pause", "containerd", "containerd-shim-runc-v2", "ctr", "coredns")


def cache_dir(environ: dict[str, str] | None = None) -> Path:
    variables = os.environ if environ is None else environ
    base = variables.get("XDG_CACHE_HOME") or str(Path(variables.get("HOME", "/root")) / ".cache")
    return Path(base) / "slipstream" / "bin"


def link_flags(program: Program, version: str) -> str:
    major, minor = (*version.removeprefix("v").split("."), "", "")[:2]
    stamps = (s.format(version=version, major=major, minor=minor) for s in program.stamps)
    return " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in stamps)])


def command(program: Program, version: str, output: Path) -> list[str]:
    flags = [
        "-trimpath",
        "-buildvcs=false",
        "-mod=readonly",
        "-ldflags",
        link_flags(program, version),
    ]
    return ["go", "build", *flags, "-o", str(output), program.package]


def content_hash(program: Program, version: str, go_dir: Path = GO_DIR) -> str:
    """Changes with the sources, the pinned sums and the flags of this one program."""
    digest = hashlib.sha256()
    shape = command(program, version, Path("out"))
    digest.update(json.dumps([shape, platform.machine()]).encode())
    for path in sorted((go_dir / program.module).iterdir()):
        if path.name in ("go.mod", "go.sum") or path.suffix == ".go":
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def module_version(module: str, go_dir: Path = GO_DIR) -> str:
    versions = tomllib.loads((go_dir / "versions.toml").read_text())
    return str(versions["modules"][module].get("version", "v0.0.0"))


def path_of(name: str) -> Path:
    """Where the program is once it is built."""
    program = BY_NAME[name]
    return cache_dir() / content_hash(program, module_version(program.module)) / name


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.waiting(lambda: f"waiting for another build of {path.stem}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1].strip()[:60] if lines else "compiling"


def _build(program: Program, target: Path, position: str, progress: Progress) -> float:
    """Build into a temporary folder and rename it: a killed build leaves nothing half done."""
    started = time.monotonic()
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".building-{target.parent.name}-"
    for stale in target.parent.parent.glob(f"{prefix}*"):  # we hold the lock: nobody works there
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent, prefix=prefix) as folder:
        log = Path(folder) / "log"
        output = Path(folder) / "out" / program.name
        output.parent.mkdir()
        argv = command(program, module_version(program.module), output)
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
        progress.say(f"building {program.name} {position}")
        with (
            log.open("w") as stream,
            progress.waiting(lambda: f"building {program.name} {position}: {_last_line(log)}"),
        ):
            try:
                done = subprocess.run(
                    argv,
                    cwd=GO_DIR / program.module,
                    env=environment,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    timeout=BUILD_LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise BuildError(f"{program.name}: not built within {BUILD_LIMIT_S} s") from error
        if done.returncode != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise BuildError(f"go build of {program.name} failed:\n{tail}")
        shutil.rmtree(target.parent, ignore_errors=True)
        output.parent.rename(target.parent)
    return time.monotonic() - started


def ensure(names: Iterable[str], progress: Progress) -> dict[str, Path]:
    """Paths of the named programs, built where the cache does not have them."""
    paths = {name: path_of(name) for name in names}
    missing = [name for name in paths if not paths[name].exists()]
    if missing:
        prerequisites.check_go()
    for index, name in enumerate(missing):
        target = paths[name]
        position = f"({index + 1} of {len(missing)}, {len(missing) - index - 1} left after it)"
        with locked(target.parent.parent / f"{target.parent.name}.{name}.lock", progress):
            if not target.exists():
                seconds = _build(BY_NAME[name], target, position, progress)
                progress.say(f"built {name} in {seconds:.0f} s")
    return paths


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="slipstream_local.build", description=__doc__)
    names = ",".join(BY_NAME)
    parser.add_argument("--only", default=names, help=f"comma-separated, of: {names}")
    parser.add_argument("--paths", action="store_true", help="print the path of each program")
    options = parser.parse_args(arguments)
    wanted = [name for name in options.only.split(",") if name]
    unknown = [name for name in wanted if name not in BY_NAME]
    if unknown:
        parser.error(f"unknown program: {', '.join(unknown)} (known: {names})")
    try:
        paths = ensure(wanted, Progress())
    except LocalClusterError as error:
        print(error, file=sys.stderr)
        return 1
    if options.paths:
        for name, path in paths.items():
            print(f"{name}={path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
