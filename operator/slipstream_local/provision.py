"""Write a cluster's certificates and configuration files; starts nothing."""

from __future__ import annotations

import datetime
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from slipstream_local import certificates, documents, prerequisites, topology
from slipstream_local.certificates import Pair
from slipstream_local.errors import PrerequisiteError
from slipstream_local.layout import GATEWAY_IP, KUBERNETES_SERVICE_IP, NODE_NAME, Layout
from slipstream_local.state import write_atomically

ADMIN_USER = "kubernetes-admin"
KWOK_DOCUMENTS = Path(__file__).parent / "kwok.yaml"
RESOLV_CONF = Path("/etc/resolv.conf")
# user, group, file name
CLIENTS = (
    (ADMIN_USER, "system:masters", "admin"),
    ("kube-apiserver-kubelet-client", "system:masters", "apiserver-kubelet-client"),
    ("system:kube-controller-manager", None, "controller-manager"),
    ("system:kube-scheduler", None, "scheduler"),
    ("system:kube-proxy", "system:node-proxier", "proxy"),
    ("system:coredns", None, "coredns"),
    (f"system:node:{NODE_NAME}", "system:nodes", "kubelet"),
)


def _write_pair(folder: Path, name: str, pair: Pair) -> None:
    write_atomically(folder / f"{name}.crt", pair.certificate_pem)
    write_atomically(folder / f"{name}.key", pair.key_pem, 0o600)


def ensure_certificates(layout: Layout) -> None:
    """All or nothing: a killed run leaves no half-filled folder behind."""
    if layout.pki.exists():
        return
    now = datetime.datetime.now(datetime.UTC)
    layout.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=layout.root, prefix=".pki-"))
    authority = certificates.make_authority(f"slipstream-local-{layout.name}", now)
    _write_pair(folder, "ca", authority.pair)
    _write_pair(folder, "service-account", certificates.make_service_account_key())
    for user, group, name in CLIENTS:
        _write_pair(folder, name, certificates.make_client(authority, user, group, now))
    api_names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    api_addresses = ["127.0.0.1", KUBERNETES_SERVICE_IP, GATEWAY_IP]
    servers = (
        ("apiserver", "kube-apiserver", api_names, api_addresses),
        ("loopback", "localhost", ["localhost"], ["127.0.0.1"]),
        ("kubelet-server", f"system:node:{NODE_NAME}", [NODE_NAME], [GATEWAY_IP]),
    )
    for name, common_name, dns_names, addresses in servers:
        pair = certificates.make_server(authority, common_name, dns_names, addresses, now)
        _write_pair(folder, name, pair)
    folder.chmod(0o700)
    folder.rename(layout.pki)


def _write_json(path: Path, document: dict[str, Any], mode: int = 0o644) -> None:
    write_atomically(path, json.dumps(document, indent=1).encode(), mode)


def _write_kubeconfigs(layout: Layout) -> None:
    authority = (layout.pki / "ca.crt").read_bytes()
    for user, _, name in CLIENTS:
        pair = Pair(
            (layout.pki / f"{name}.crt").read_bytes(), (layout.pki / f"{name}.key").read_bytes()
        )
        document = documents.kubeconfig(layout.server_url, authority, user, pair)
        path = layout.kubeconfig if user == ADMIN_USER else layout.client_kubeconfig(user)
        write_atomically(path, yaml.safe_dump(document, sort_keys=False).encode(), 0o600)


def has_name_server(path: Path) -> bool:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.split()[:1] == ["nameserver"] for line in lines)


def write_node_files(layout: Layout) -> None:
    runc, cni_dir = prerequisites.which("runc"), prerequisites.cni_dir()
    if runc is None or cni_dir is None:
        raise PrerequisiteError("runc or the CNI plugins are missing")
    config = layout.config
    _write_json(config / "kubelet.json", documents.kubelet(layout))
    _write_json(config / "proxy.json", documents.proxy(layout))
    _write_json(layout.cni_config / "10-slipstream.conflist", documents.cni(layout))
    text = documents.containerd(layout, Path(runc), cni_dir)
    write_atomically(config / "containerd.toml", text.encode())
    corefile = documents.corefile(layout, has_upstream=has_name_server(RESOLV_CONF))
    write_atomically(config / "Corefile", corefile.encode())
    for folder in (layout.kubelet_root, layout.pod_logs, layout.cdi, layout.containerd_root):
        folder.mkdir(parents=True, exist_ok=True)
    layout.containerd_state.mkdir(parents=True, exist_ok=True)
    if layout.gpu_profile is not None:
        profile = topology.profile_named(layout.gpu_profile)
        document = topology.driver_profile(profile, NODE_NAME)
        _write_json(config / f"gpus-{layout.gpu_profile}.json", document)


def link_programs(layout: Layout, programs: Mapping[str, Path]) -> None:
    """One folder with all programs, on the components' PATH.

    containerd finds its shim there: for a shim set by path it loses the containers at a restart.
    """
    layout.programs.mkdir(parents=True, exist_ok=True)
    for name, target in programs.items():
        temporary = layout.programs / f".{name}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(layout.programs / name)


def write_files(layout: Layout, programs: Mapping[str, Path]) -> None:
    for folder in (layout.config, layout.logs):
        folder.mkdir(parents=True, exist_ok=True)
    link_programs(layout, programs)
    ensure_certificates(layout)
    _write_kubeconfigs(layout)
    _write_json(layout.config / "audit-policy.json", documents.audit_policy())
    _write_json(layout.config / "scheduler.json", documents.scheduler(layout))
    if layout.kwok:
        shutil.copyfile(KWOK_DOCUMENTS, layout.config / "kwok.yaml")
    if layout.node:
        write_node_files(layout)
