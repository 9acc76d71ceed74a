"""Check what this machine must have, and install the Debian packages a node needs.

Standard library alone; knows no cluster.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from slipstream_local.errors import PrerequisiteError
from slipstream_local.gomods import GO_DIR
from slipstream_local.progress import Progress

CNI_DIRS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback")
# What a node needs beyond what is built from Go modules: program -> Debian package.
NODE_PACKAGES = {
    "runc": "runc",
    "nft": "nftables",
    "conntrack": "conntrack",
    "ip": "iproute2",
}
CNI_PACKAGE = "containernetworking-plugins"
APT_LIMIT_S = 600


def check_platform() -> None:
    if platform.system() != "Linux":
        raise PrerequisiteError(
            f"the local cluster needs Linux, this is {platform.system()}. "
            "Use a Linux machine or virtual machine, or a cluster you already have."
        )
    if sys.version_info < (3, 11):  # noqa: UP036 - also runs before anything is installed
        raise PrerequisiteError(
            f"Python 3.11 or newer is needed, this is {platform.python_version()}."
        )


def check_root() -> None:
    if os.geteuid() != 0:
        raise PrerequisiteError(
            "a node starts containers and network devices and therefore needs root: "
            "run the same command with sudo -E, or use --control-plane-only."
        )


def minimum_go() -> tuple[int, ...]:
    """The newest `go` line among our modules."""
    lines = (path.read_text() for path in GO_DIR.glob("*/go.mod"))
    found = (re.search(r"^go (\d+)\.(\d+)\.(\d+)$", text, re.MULTILINE) for text in lines)
    return max(tuple(int(part) for part in match.groups()) for match in found if match)


def check_go() -> None:
    wanted = ".".join(str(part) for part in minimum_go())
    advice = (
        f"Install Go {wanted} or newer (https://go.dev/dl/) and put its bin folder on PATH; "
        "the cluster's programs are built from source."
    )
    if shutil.which("go") is None:
        raise PrerequisiteError(f"no `go` command on PATH. {advice}")
    # Asked inside a module: with GOTOOLCHAIN=auto an older Go answers with the one it would fetch.
    answer = subprocess.run(
        ["go", "env", "GOVERSION"],
        cwd=GO_DIR / "containerd",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer.stdout.strip())
    version = tuple(int(part or 0) for part in found.groups()) if found else ()
    if answer.returncode != 0 or version < minimum_go():
        said = answer.stdout.strip() or answer.stderr.strip()
        raise PrerequisiteError(f"the `go` on PATH is too old ({said}). {advice}")


def cni_dir() -> Path | None:
    for directory in CNI_DIRS:
        if all((directory / plugin).exists() for plugin in CNI_PLUGINS):
            return directory
    return None


def which(program: str) -> str | None:
    """Also looks where root's programs are: a user's PATH often lacks them."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def missing_packages() -> list[str]:
    packages = [package for program, package in NODE_PACKAGES.items() if which(program) is None]
    if cni_dir() is None:
        packages.append(CNI_PACKAGE)
    return packages


def _apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=300", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        timeout=APT_LIMIT_S,
        check=False,
    )


def ensure_node_packages(progress: Progress) -> None:
    packages = missing_packages()
    if not packages:
        return
    wanted = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise PrerequisiteError(
            f"a node needs the programs of these packages and there is no apt-get here: {wanted}. "
            "Install them with this system's package manager and run the command again."
        )
    progress.say(f"installing {wanted} with apt-get")
    install = ("install", "-y", "--no-install-recommends", *packages)
    with progress.waiting(lambda: f"installing {wanted}"):
        done = _apt_get(*install)
        if done.returncode != 0:  # most often: package lists never fetched
            _apt_get("update")
            done = _apt_get(*install)
    still_missing = missing_packages()
    if done.returncode != 0 or still_missing:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise PrerequisiteError(
            f"apt-get could not install {' '.join(still_missing) or wanted}:\n{tail}\n"
            f"Install them yourself (apt-get install {wanted}) and run the command again."
        )


def main() -> int:
    """Checked before anything is built; `--node` adds what only a node needs."""
    try:
        check_platform()
        if "--node" in sys.argv[1:]:
            check_root()
        check_go()
    except PrerequisiteError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
