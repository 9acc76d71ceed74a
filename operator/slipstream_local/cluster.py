"""Bring a named local cluster up, look at it, and lend control planes to tests.

The order of steps lives here; what each component is started with lives in components.py.
"""

from __future__ import annotations

import dataclasses
import fcntl
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slipstream_local import (
    build,
    components,
    containers,
    documents,
    fakenodes,
    images,
    kubectl,
    lifecycle,
    network,
    ports,
    prerequisites,
    provision,
    state,
    supervisor,
    teardown,
    topology,
)
from slipstream_local import (
    layout as layouts,
)
from slipstream_local.components import Component
from slipstream_local.errors import ComponentError, LocalClusterError
from slipstream_local.layout import Layout
from slipstream_local.progress import Progress
from slipstream_local.state import ClusterState

LOCK_WITHIN_S = 300.0
NO_GPUS = "none"


@dataclass(frozen=True, slots=True)
class Options:
    """What `up` was asked for; None leaves a running cluster as it is."""

    node: bool = True
    kwok: bool | None = None
    gpu_profile: str | None = None


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    name: str
    pid: int | None
    state: str  # Running | NotReady | Dead
    last_log_line: str


@contextmanager
def locked(root: Path, progress: Progress) -> Iterator[None]:
    """One `up` or `down` at a time per cluster; the lock goes with its process."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / f".{root.name}.lock").open("w") as lock:
        deadline = time.monotonic() + LOCK_WITHIN_S
        with progress.waiting(lambda: f"waiting for another command on cluster {root.name}"):
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LocalClusterError(
                            f"another command works on cluster {root.name} for too long"
                        ) from None
                    time.sleep(0.2)
        yield


def all_states() -> dict[str, ClusterState]:
    found = {}
    for file in sorted(layouts.state_home().glob(f"*/{state.FILE_NAME}")):
        try:
            loaded = state.load(file.parent)
        except LocalClusterError:
            continue
        if loaded is not None:
            found[file.parent.name] = loaded
    return found


def _new_layout(name: str, root: Path, others: Sequence[ClusterState], options: Options) -> Layout:
    taken = {p for other in others for p in dataclasses.astuple(other.layout.ports)}
    chosen = ports.choose(taken, random.SystemRandom())
    return Layout(name=name, root=root, ports=chosen, node=options.node)


def resolve(before: Layout | None, fresh: Layout, options: Options) -> Layout:
    """The layout to bring up: what is there, changed by what was asked for."""
    base = before if before is not None else fresh
    if base.node and not options.node:
        raise LocalClusterError(
            f"cluster {base.name} has a node; take it down before starting it without one"
        )
    kwok = base.kwok if options.kwok is None else options.kwok
    profile = base.gpu_profile
    if options.gpu_profile is not None:
        profile = None if options.gpu_profile == NO_GPUS else options.gpu_profile
        if profile is not None:
            topology.profile_named(profile)
    if profile is not None and not options.node:
        raise LocalClusterError("simulated GPUs of the real node need a node; use `nodes create`")
    return dataclasses.replace(base, node=options.node, kwok=kwok, gpu_profile=profile)


def _prepare_node(
    layout: Layout, others: Mapping[str, ClusterState], *, is_new: bool, progress: Progress
) -> None:
    prerequisites.check_root()
    layouts.check_socket_paths(layout.root)
    with_node = [name for name, other in others.items() if other.layout.node]
    if with_node:
        raise LocalClusterError(
            f"cluster {with_node[0]} already has this machine as its node; "
            f"`slipstream local down --name {with_node[0]}` first, or use --control-plane-only"
        )
    prerequisites.ensure_node_packages(progress)
    if is_new:
        network.check_free()


def _import_images(layout: Layout, programs: Mapping[str, Path]) -> None:
    machine = platform.machine()
    wanted: dict[str, Callable[[], bytes]] = {
        images.PAUSE_IMAGE: lambda: images.pause_archive(programs["pause"].read_bytes(), machine),
        images.THIN_IMAGE: lambda: images.thin_archive(images.host_links(), machine),
    }
    present = set(containers.images(programs["ctr"], layout))
    for name, make in wanted.items():
        if name not in present:
            archive = layout.root / "image.tar"
            archive.write_bytes(make())
            containers.import_image(programs["ctr"], layout, archive)
            archive.unlink()


def _between_phases(layout: Layout, phase: int, programs: Mapping[str, Path]) -> None:
    if phase == 0 and layout.node:
        _import_images(layout, programs)
    if phase == 1:
        objects = documents.coredns_access() if layout.node else []
        if layout.kwok or layout.gpu_profile is not None:
            objects.append(topology.device_class())
        if objects:
            kubectl.apply(programs["kube"], layout.kubeconfig, objects)


def _waiting_for(members: Sequence[Component]) -> str:
    return "waiting for " + ", ".join(component.name for component in members)


def bring_up(
    current: ClusterState, programs: Mapping[str, Path], progress: Progress, *, tied: bool = False
) -> ClusterState:
    layout = current.layout
    provision.write_files(layout, programs)
    wanted = components.wanted(layout, programs)
    current = lifecycle.drop_unwanted(current, wanted)
    lifecycle.kill_unrecorded(current, wanted)
    if layout.node:
        network.ensure_bridge()
    restarted: set[str] = set()
    for phase in sorted({component.phase for component in wanted}):
        members = [component for component in wanted if component.phase == phase]
        with progress.waiting(partial(_waiting_for, members)):
            current = lifecycle.ensure_phase(current, members, programs, restarted, tied=tied)
            _between_phases(layout, phase, programs)
    if restarted:
        progress.say(f"started {', '.join(c.name for c in wanted if c.name in restarted)}")
    return current


def up(name: str, options: Options, progress: Progress) -> Layout:
    """Create the cluster, or repair and change the one that is there."""
    prerequisites.check_platform()
    root = layouts.root_of(name)
    with locked(root, progress):
        before = state.load(root)
        others = {key: value for key, value in all_states().items() if key != name}
        fresh = before.layout if before else _new_layout(name, root, list(others.values()), options)
        layout = resolve(before.layout if before else None, fresh, options)
        if layout.node:
            is_new = before is None or not before.layout.node
            _prepare_node(layout, others, is_new=is_new, progress=progress)
        programs = build.ensure(components.wanted_programs(layout), progress)
        sysctls = before.sysctls_before if before else {}
        if layout.node and not sysctls:
            sysctls = network.read_sysctls()
        processes = before.processes if before else {}
        current = ClusterState(layout, processes, sysctls)
        # Saved before the first process and device, so that `down` knows what to look for.
        root.mkdir(parents=True, exist_ok=True)
        state.save(current)
        bring_up(current, programs, progress)
    return layout


def down(name: str, progress: Progress) -> bool:
    """Remove everything of the cluster; False when there was nothing."""
    root = layouts.root_of(name)
    with locked(root, progress):
        return teardown.remove(name, root)


def require(name: str) -> ClusterState:
    current = state.load(layouts.root_of(name))
    if current is None:
        raise LocalClusterError(f"there is no cluster {name}; `slipstream local up` makes one")
    return current


def load_image(name: str, archive: Path) -> list[str]:
    """Names of the images in the archive, now on the node."""
    layout = require(name).layout
    if not layout.node:
        raise LocalClusterError(f"cluster {name} has no node to load an image into")
    if not archive.is_file():
        raise LocalClusterError(f"there is no file {archive}")
    return containers.import_image(build.path_of("ctr"), layout, archive)


def create_nodes(name: str, profile: str, count: int, *, numa: bool) -> list[str]:
    layout = require(name).layout
    if not layout.kwok:
        raise LocalClusterError(
            f"cluster {name} plays no simulated nodes; `slipstream local up --kwok` turns it on"
        )
    chosen = topology.profile_named(profile)
    return fakenodes.create(
        build.path_of("kube"), layout.kubeconfig, chosen, count, tainted=layout.node, numa=numa
    )


def status(name: str) -> list[ComponentStatus]:
    current = require(name)
    layout = current.layout
    programs = {program: build.path_of(program) for program in components.wanted_programs(layout)}
    return [_status_of(current, c, programs) for c in components.wanted(layout, programs)]


def _status_of(
    current: ClusterState, component: Component, programs: Mapping[str, Path]
) -> ComponentStatus:
    record = current.processes.get(component.name)
    last_line = supervisor.last_lines(current.layout.log(component.name), 1).strip()
    if record is None or not supervisor.is_alive(record):
        return ComponentStatus(component.name, None, "Dead", last_line)
    if lifecycle.is_ready(current.layout, component, programs):
        return ComponentStatus(component.name, record.pid, "Running", "")
    return ComponentStatus(component.name, record.pid, "NotReady", last_line)


class ControlPlane:
    """A control plane that a test owns; `stop` and `start` are for faults on purpose."""

    def __init__(self, current: ClusterState, programs: Mapping[str, Path]) -> None:
        self._state = current
        self._programs = programs

    @property
    def layout(self) -> Layout:
        return self._state.layout

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def audit_log(self) -> Path:
        return self.layout.audit_log

    @property
    def kube(self) -> Path:
        return self._programs["kube"]

    def _component(self, name: str) -> Component:
        for component in components.wanted(self.layout, self._programs):
            if component.name == name:
                return component
        raise ComponentError(f"no component {name} in this cluster")

    def stop(self, name: str, grace_s: float = lifecycle.STOP_GRACE_S) -> None:
        self._component(name)
        self._state = lifecycle.stop(self._state, name, grace_s)

    def start(self, name: str) -> None:
        component = self._component(name)
        self._state = lifecycle.start(self._state, component, tied=True)
        lifecycle.wait_ready(self._state, component, self._programs, component.ready_within_s)

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)


@contextmanager
def control_plane(
    directory: Path, *, kwok: bool = False, progress: Progress | None = None
) -> Iterator[ControlPlane]:
    """A control plane without a node in `directory`; it dies with the process that asked for it."""
    reporter = progress or Progress()
    root = directory.absolute()
    options = Options(node=False, kwok=kwok)
    # Other control planes of tests are not listed anywhere; a taken port is seen by binding it.
    fresh = _new_layout(root.name, root, list(all_states().values()), options)
    layout = resolve(None, fresh, options)
    programs = build.ensure(components.wanted_programs(layout), reporter)
    root.mkdir(parents=True, exist_ok=True)
    current = ClusterState(layout)
    state.save(current)
    try:
        yield ControlPlane(bring_up(current, programs, reporter, tied=True), programs)
    finally:
        teardown.remove(root.name, root)
