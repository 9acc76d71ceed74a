"""Where one local cluster keeps its files and which addresses it uses; writes nothing."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_NAME = "slipstream"
NODE_NAME = "node1"
PROGRAMS_FOLDER = "bin"
BRIDGE = "slipstream0"
POD_SUBNET = "10.244.0.0/16"
GATEWAY_IP = "10.244.0.1"
GATEWAY_PREFIX_LEN = 16
SERVICE_SUBNET = "10.96.0.0/16"
KUBERNETES_SERVICE_IP = "10.96.0.1"
CLUSTER_DOMAIN = "cluster.local"
# Linux refuses longer paths of Unix sockets; kubelet and containerd put sockets below these roots.
SOCKET_PATH_LIMIT = 107
LONGEST_SOCKET_SUFFIX = "/kubelet/plugins_registry/gpu.nvidia.com-reg.sock"
NAME_PATTERN = r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?"
# containerd names its shim sockets with 64 characters, which is too long below a home folder.
RUN_DIR = Path("/run/slipstream")


@dataclass(frozen=True, slots=True)
class Ports:
    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int
    kubelet: int
    kubelet_health: int
    proxy_health: int
    proxy_metrics: int
    coredns_ready: int
    kwok: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that decides a command line. `root` belongs to this cluster alone."""

    name: str
    root: Path
    ports: Ports
    node: bool
    kwok: bool = False
    gpu_profile: str | None = None

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def programs(self) -> Path:
        return self.root / PROGRAMS_FOLDER

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.jsonl"

    @property
    def kubelet_root(self) -> Path:
        return self.root / "kubelet"

    @property
    def pod_logs(self) -> Path:
        return self.root / "pod-logs"

    @property
    def containerd_root(self) -> Path:
        return self.root / "containerd"

    @property
    def containerd_state(self) -> Path:
        return RUN_DIR / self.name

    @property
    def containerd_socket(self) -> Path:
        return self.containerd_state / "containerd.sock"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def cni_config(self) -> Path:
        return self.config / "cni"

    @property
    def cni_data(self) -> Path:
        return self.root / "cni"

    @property
    def cni_network(self) -> str:
        return f"slipstream-{self.name}"

    @property
    def server_ip(self) -> str:
        return GATEWAY_IP if self.node else "127.0.0.1"

    @property
    def server_url(self) -> str:
        return f"https://127.0.0.1:{self.ports.apiserver}"

    def client_kubeconfig(self, user: str) -> Path:
        return self.config / f"{user}.kubeconfig"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"


def state_home(environ: Mapping[str, str] | None = None) -> Path:
    variables = os.environ if environ is None else environ
    base = variables.get("XDG_STATE_HOME") or str(
        Path(variables.get("HOME", "/root")) / ".local" / "state"
    )
    return Path(base) / "slipstream"


def root_of(name: str, environ: Mapping[str, str] | None = None) -> Path:
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise ValueError(
            f"cluster name {name!r}: lower-case letters, digits and dashes, at most 20"
        )
    return state_home(environ) / name


def check_socket_paths(root: Path) -> None:
    longest = str(root) + LONGEST_SOCKET_SUFFIX
    if len(longest) > SOCKET_PATH_LIMIT:
        raise ValueError(
            f"{root} is too long a folder for Unix sockets ({len(longest)} > "
            f"{SOCKET_PATH_LIMIT} characters); set XDG_STATE_HOME to a shorter one"
        )


def to_json(layout: Layout) -> dict[str, Any]:
    return {**dataclasses.asdict(layout), "root": str(layout.root)}


def from_json(document: Mapping[str, Any]) -> Layout:
    values = dict(document)
    values["root"] = Path(values["root"])
    values["ports"] = Ports(**values["ports"])
    return Layout(**values)
