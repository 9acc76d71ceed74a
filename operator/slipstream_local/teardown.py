"""Remove everything that a cluster put on the machine, whatever state it was left in.

Works from what is there, not from what was recorded: a killed `up` records little.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

from slipstream_local import containers, network, state, supervisor
from slipstream_local.errors import ComponentError, LocalClusterError
from slipstream_local.layout import RUN_DIR, Layout, Ports
from slipstream_local.state import ClusterState

CONTAINER_LOG_LINKS = Path("/var/log/containers")
CNI_RESULTS = Path("/var/lib/cni/results")
DEVICE_PLUGIN_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
CGROUPS = Path("/sys/fs/cgroup")
MOUNT_ATTEMPTS = 5
NO_PORTS = Ports(**dict.fromkeys((field.name for field in dataclasses.fields(Ports)), 0))


def mounts_below(mountinfo: str, folders: tuple[Path, ...]) -> list[str]:
    """Mount points at or below the folders, deepest and newest first."""
    points = []
    for line in mountinfo.splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if any(Path(point).is_relative_to(folder) for folder in folders):
            points.append(point)
    points.reverse()
    return sorted(points, key=lambda point: point.count("/"), reverse=True)


def _unmount(folders: tuple[Path, ...]) -> None:
    for _ in range(MOUNT_ATTEMPTS):
        points = mounts_below(Path("/proc/self/mountinfo").read_text(), folders)
        if not points:
            return
        for point in points:
            # Lazy: a process that is about to die may still hold a file open.
            subprocess.run(
                ["umount", "--lazy", "--no-mtab", point],
                capture_output=True,
                timeout=20,
                check=False,
            )
    raise ComponentError(f"these mounts do not go: {', '.join(points)}")


def _remove_links(layout: Layout) -> None:
    if not CONTAINER_LOG_LINKS.is_dir():
        return
    for link in CONTAINER_LOG_LINKS.iterdir():
        if link.is_symlink() and link.readlink().is_relative_to(layout.pod_logs):
            link.unlink()
    _remove_if_empty(CONTAINER_LOG_LINKS)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not folder.is_mount() and not any(folder.iterdir()):
        folder.rmdir()


def _remove_network_records(layout: Layout) -> None:
    """The CNI library keeps one file per attachment in a folder of its own choice."""
    if CNI_RESULTS.is_dir():
        for record in CNI_RESULTS.iterdir():
            if str(layout.containerd_state) in record.read_text(errors="replace"):
                record.unlink()
    for folder in (CNI_RESULTS, CNI_RESULTS.parent):
        _remove_if_empty(folder)


def _remove_fixed_paths() -> None:
    """What kubelet and runc make at paths that no option moves."""
    DEVICE_PLUGIN_SOCKET.unlink(missing_ok=True)
    for folder in (DEVICE_PLUGIN_SOCKET.parent, DEVICE_PLUGIN_SOCKET.parent.parent):
        _remove_if_empty(folder)
    for hierarchy in (CGROUPS, *CGROUPS.iterdir()):
        group = hierarchy / containers.NAMESPACE
        # Folders in it are containers, and after delete_all those of somebody else.
        if group.is_dir() and not any(entry.is_dir() for entry in group.iterdir()):
            group.rmdir()


def _remove_node(current: ClusterState) -> None:
    layout = current.layout
    containers.delete_all(layout)
    _unmount((layout.root, layout.containerd_state))
    network.remove_bridge()
    network.remove_nft_tables()
    network.remove_forwarding()
    network.restore_sysctls(current.sysctls_before)
    _remove_links(layout)
    _remove_network_records(layout)
    _remove_fixed_paths()
    shutil.rmtree(layout.containerd_state, ignore_errors=True)
    _remove_if_empty(RUN_DIR)


def remove(name: str, root: Path) -> bool:
    """False when there was nothing to remove."""
    try:
        current = state.load(root)
    except LocalClusterError:
        # An unreadable state file must not keep a cluster alive: look for all there can be.
        has_node = (RUN_DIR / name).exists()
        current = ClusterState(Layout(name, root, NO_PORTS, node=has_node))
    marked = supervisor.marked_processes(root)
    if current is None and not marked and not root.exists():
        return False
    supervisor.kill_marked(root)
    if current is not None and current.layout.node:
        _remove_node(current)
    shutil.rmtree(root)
    return True
