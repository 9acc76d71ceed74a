"""The one door to the package index: Python files of a release, through the ordinary client.

Only wheels are taken, so nothing of a package is run. A release is kept in the user's cache.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from slipstream_bench.errors import WorkloadError

_FETCH_LIMIT_S = 120


def default_cache(environ: Mapping[str, str] = os.environ) -> Path:
    base = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "slipstream" / "bench-packages"


def files_of(package: str, version: str, cache: Path) -> dict[str, str]:
    """Path → text of every Python file of a release. Raises WorkloadError."""
    folder = cache / f"{package.lower()}-{version}"
    if not folder.is_dir():
        _fetch(package, version, folder)
    texts: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(UnicodeDecodeError):  # some tests of encodings are none
                texts[str(path.relative_to(folder))] = path.read_text(encoding="utf-8")
    return texts


def _fetch(package: str, version: str, folder: Path) -> None:
    """Into a temporary folder first: a fetch that dies leaves no half release."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as parent:
        target = Path(parent) / "files"
        command = [
            *_installer(),
            *("--quiet", "--no-deps", "--only-binary", ":all:"),
            *("--target", str(target), f"{package}=={version}"),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise WorkloadError(
                f"{package}=={version} was not there after {_FETCH_LIMIT_S} s"
            ) from error
        if done.returncode != 0:
            reason = (done.stderr or done.stdout).strip()[-600:]
            raise WorkloadError(f"{package}=={version} cannot be fetched:\n{reason}")
        try:
            target.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # else another run was faster
                raise WorkloadError(f"{folder} cannot be written: {error}") from error


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    if not Path(uv).is_file():
        raise WorkloadError("the edit workload needs pip or uv, to fetch packages with")
    return [uv, "pip", "install", "--python", sys.executable]
