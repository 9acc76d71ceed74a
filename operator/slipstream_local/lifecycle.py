"""Bring the processes of a cluster to what its layout asks for: keep, start, restart, wait.

Knows components and their readiness; nothing of names, certificates or command lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slipstream_local import containers, probes, state, supervisor
from slipstream_local.components import Component
from slipstream_local.errors import ComponentError
from slipstream_local.layout import NODE_NAME, Layout
from slipstream_local.state import ClusterState
from slipstream_local.topology import DRIVER

POLL_S = 0.1
KEPT_READY_WITHIN_S = 8.0
STOP_GRACE_S = 15.0
SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3D" + NODE_NAME


def is_node_ready(layout: Layout) -> bool:
    node = probes.get_object(layout.server_url, f"/api/v1/nodes/{NODE_NAME}", layout.pki)
    conditions = node["status"].get("conditions", []) if node else []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def has_slices(layout: Layout) -> bool:
    slices = probes.get_object(layout.server_url, SLICES_PATH, layout.pki)
    return any(item["spec"]["driver"] == DRIVER for item in (slices or {}).get("items", []))


def has_service_account(layout: Layout) -> bool:
    """Pods of the default namespace are refused before the controller has made it."""
    path = "/api/v1/namespaces/default/serviceaccounts/default"
    return probes.get_object(layout.server_url, path, layout.pki) is not None


def is_ready(layout: Layout, component: Component, programs: Mapping[str, Path]) -> bool:
    if component.probe is not None and not probes.is_ready(component.probe.url, layout.pki):
        return False
    checks: dict[str, Callable[[], bool]] = {
        "containerd": lambda: containers.is_ready(programs["ctr"], layout),
        "kubelet": lambda: is_node_ready(layout),
        "dra-driver": lambda: has_slices(layout),
        "kube-controller-manager": lambda: has_service_account(layout),
    }
    return checks.get(component.name, lambda: True)()


def _is_running(current: ClusterState, component: Component) -> bool:
    record = current.processes.get(component.name)
    return record is not None and supervisor.is_alive(record)


def wait_ready(
    current: ClusterState, component: Component, programs: Mapping[str, Path], within_s: float
) -> None:
    layout = current.layout
    deadline = time.monotonic() + within_s
    while not is_ready(layout, component, programs):
        log = layout.log(component.name)
        if not _is_running(current, component):
            raise ComponentError(
                f"{component.name} ended; its last lines ({log}):\n{supervisor.last_lines(log)}"
            )
        if time.monotonic() > deadline:
            raise ComponentError(
                f"{component.name} was not ready within {within_s:.0f} s; "
                f"its last lines ({log}):\n{supervisor.last_lines(log)}"
            )
        time.sleep(POLL_S)


def start(current: ClusterState, component: Component, *, tied: bool) -> ClusterState:
    layout = current.layout
    record = supervisor.start(component.argv, layout.root, layout.log(component.name), tied=tied)
    current = current.with_process(component.name, record)
    state.save(current)
    return current


def stop(current: ClusterState, name: str, grace_s: float = STOP_GRACE_S) -> ClusterState:
    record = current.processes.get(name)
    if record is None:
        return current
    supervisor.stop(record, grace_s)
    current = current.without_process(name)
    state.save(current)
    return current


def drop_unwanted(current: ClusterState, wanted: Sequence[Component]) -> ClusterState:
    for name in set(current.processes) - {component.name for component in wanted}:
        current = stop(current, name)
    return current


def kill_unrecorded(current: ClusterState, wanted: Sequence[Component]) -> None:
    """A starter that was killed between starting and recording left a process that holds a port."""
    recorded = {record.pid for record in current.processes.values()}
    command_lines = {component.argv for component in wanted}
    for pid in supervisor.marked_processes(current.layout.root):
        if pid not in recorded and supervisor.command_line(pid) in command_lines:
            supervisor.kill(pid)


def _ensure_started(
    current: ClusterState, component: Component, restarted: set[str], *, tied: bool
) -> ClusterState:
    record = current.processes.get(component.name)
    alive = record is not None and supervisor.is_alive(record)
    fits = record is not None and record.argv == component.argv
    if alive and fits and restarted.isdisjoint(component.restart_with):
        return current
    current = stop(current, component.name)
    restarted.add(component.name)
    return start(current, component, tied=tied)


def ensure_phase(
    current: ClusterState,
    components: Sequence[Component],
    programs: Mapping[str, Path],
    restarted: set[str],
    *,
    tied: bool,
) -> ClusterState:
    """Start what is missing and wait for all; what was kept but is silent is restarted once."""
    for component in components:
        current = _ensure_started(current, component, restarted, tied=tied)
    for component in components:
        if component.name not in restarted:
            try:
                wait_ready(current, component, programs, KEPT_READY_WITHIN_S)
                continue
            except ComponentError:
                current = stop(current, component.name)
                restarted.add(component.name)
                current = start(current, component, tied=tied)
        wait_ready(current, component, programs, component.ready_within_s)
    return current
