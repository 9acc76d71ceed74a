"""Clusters that tests share; each is made when the first test asks for it.

With SLIPSTREAM_KUBECONFIG set, tests marked `cluster` use the cluster it names.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slipstream_local import build, cluster, layout
from slipstream_local.cluster import ControlPlane, Options
from slipstream_local.progress import Progress

KUBECONFIG_VARIABLE = "SLIPSTREAM_KUBECONFIG"
GPU_PROFILE = "dual-socket-four-pairs"
LOCAL = (sys.executable, "-m", "slipstream_cli", "local")
# What the programs of a node keep at fixed places.
PRIVATE_FOLDERS = ("/run/slipstream", "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """API server, scheduler and controllers with KWOK, for this test session alone."""
    directory = tmp_path_factory.mktemp("control-plane")
    with cluster.control_plane(directory, kwok=True) as plane:
        yield plane


@pytest.fixture(scope="session")
def node_cluster() -> Iterator[Path]:
    """The kubeconfig of a cluster with a node; one that was there before is left running."""
    given = os.environ.get(KUBECONFIG_VARIABLE)
    if given:
        yield Path(given)
        return
    was_there = (layout.root_of(layout.DEFAULT_NAME) / "cluster.json").exists()
    made = cluster.up(layout.DEFAULT_NAME, Options(gpu_profile=GPU_PROFILE), Progress())
    yield made.kubeconfig
    if not was_there:
        cluster.down(layout.DEFAULT_NAME, Progress())


@pytest.fixture
def local_node(node_cluster: Path) -> Path:
    """The same, for tests that look at the machine's own node."""
    if KUBECONFIG_VARIABLE in os.environ:
        pytest.skip(f"{KUBECONFIG_VARIABLE} names a cluster that is not on this machine")
    return node_cluster


@dataclass(frozen=True)
class Machine:
    """A machine inside this one: its own processes, mounts, network and kubelet folders.

    Clusters can be broken in it at will; what the developer runs outside is never touched.
    """

    holder_pid: int
    state_home: Path

    def run(self, *argv: str, limit_s: float = 180) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*argv),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def command(self, *argv: str) -> list[str]:
        return ["nsenter", f"--target={self.holder_pid}", "--mount", "--net", "--pid", "--", *argv]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.state_home)}

    def local(self, *arguments: str, limit_s: float = 180) -> str:
        """Run `slipstream local …` and return what it printed; a failure fails the test."""
        done = self.run(*LOCAL, *arguments, limit_s=limit_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def leftovers(self) -> dict[str, list[str]]:
        """All that a cluster could leave behind, to be compared before and after."""
        folders = (*PRIVATE_FOLDERS, str(self.state_home / "slipstream"))
        looks = {
            "processes": ("ps", "-e", "-o", "args="),
            "mounts": ("findmnt", "--raw", "--noheadings", "--output", "TARGET"),
            "links": ("ip", "-brief", "link"),
            "namespaces": ("ip", "netns"),
            "tables": ("nft", "list", "tables"),
            "files": ("find", *folders, "-mindepth", "1", "-not", "-name", ".*.lock"),
        }
        found = {name: self.run(*argv).stdout.splitlines() for name, argv in looks.items()}
        # A defunct process has ended; its entry goes when its parent looks.
        ignored = ("ps -e", "<defunct>")
        found["processes"] = [
            line for line in found["processes"] if not any(word in line for word in ignored)
        ]
        return {name: sorted(lines) for name, lines in found.items()}


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Gone with everything in it when the test ends: the kernel ends its processes."""
    if os.geteuid() != 0:
        pytest.skip("a node needs root")
    # Short, because Unix sockets lie below it.
    state_home = Path(tempfile.mkdtemp(prefix="slm-"))
    (state_home / "slipstream").mkdir()
    build.ensure(["pause"], Progress())
    for folder in PRIVATE_FOLDERS:
        Path(folder).mkdir(parents=True, exist_ok=True)
    # A cluster outside unmounts its own as it likes; what was inherited would change meanwhile.
    outside = f"^({layout.state_home()}|{layout.RUN_DIR})/"
    inherited = f"findmnt --raw --noheadings --output TARGET | grep -E '{outside}' | tac"
    mounts = " && ".join(f"mount -t tmpfs tmpfs {folder}" for folder in PRIVATE_FOLDERS)
    steps = (
        f"{inherited} | xargs --no-run-if-empty umount --lazy",
        "ip link set lo up",
        mounts,
        "echo ready",
        f"exec {build.path_of('pause')}",
    )
    script = " && ".join(steps)
    unshare = ["unshare", "--fork", "--pid", "--mount-proc", "--mount", "--net"]
    holder = subprocess.Popen(
        [*unshare, "--kill-child", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        yield Machine(int(children[0]), state_home)
    finally:
        holder.kill()
        holder.communicate(timeout=10)
        shutil.rmtree(state_home, ignore_errors=True)
