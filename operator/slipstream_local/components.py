"""Which processes make a cluster, their command lines and how each shows that it is ready.

Pure functions of a Layout; starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream_local.layout import NODE_NAME, SERVICE_SUBNET, Layout

KWOK_ANNOTATION = "kwok.x-k8s.io/node=fake"
KWOK_NODE_IP = "10.250.0.1"
KWOK_POD_SUBNET = "10.251.0.1/16"


@dataclass(frozen=True, slots=True)
class Probe:
    """An address that answers 2xx when the component is ready; https uses the admin certificate."""

    url: str


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    argv: tuple[str, ...]
    ready_within_s: float
    phase: int  # all of one phase start together, after the phase before is ready
    probe: Probe | None = None  # None: another kind of readiness, which cluster.py knows
    restart_with: tuple[str, ...] = ()  # when one of these was restarted, so is this one


def _etcd(layout: Layout, kube: str) -> Component:
    client = f"http://127.0.0.1:{layout.ports.etcd}"
    peer = f"http://127.0.0.1:{layout.ports.etcd_peer}"
    argv = (
        kube,
        "etcd",
        f"--data-dir={layout.root / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=2147483648",
        "--log-level=error",
    )
    return Component("etcd", argv, 60, 0, Probe(f"{client}/health"))


def _apiserver(layout: Layout, kube: str) -> Component:
    pki = layout.pki
    reach: tuple[str, ...]
    if layout.node:
        reach = ("--bind-address=0.0.0.0", f"--advertise-address={layout.server_ip}")
    else:
        # Nothing in this cluster would dial the address, and the machine may be offline: without
        # one the server looks for a default route. Endpoints of a loopback address are refused.
        reach = (
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
        )
    argv = (
        kube,
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{layout.ports.etcd}",
        *reach,
        f"--secure-port={layout.ports.apiserver}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-account.crt'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-cluster-ip-range={SERVICE_SUBNET}",
        "--enable-admission-plugins=NodeRestriction",
        "--profiling=false",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--audit-policy-file={layout.config / 'audit-policy.json'}",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-format=json",
        "--audit-log-maxsize=200",
        "--audit-log-maxbackup=2",
    )
    return Component("kube-apiserver", argv, 120, 1, Probe(f"{layout.server_url}/readyz"))


def _controller_manager(layout: Layout, kube: str) -> Component:
    pki = layout.pki
    argv = (
        kube,
        "kube-controller-manager",
        f"--kubeconfig={layout.client_kubeconfig('system:kube-controller-manager')}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.ports.controller_manager}",
        f"--tls-cert-file={pki / 'loopback.crt'}",
        f"--tls-private-key-file={pki / 'loopback.key'}",
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=12s",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--profiling=false",
    )
    probe = Probe(f"https://127.0.0.1:{layout.ports.controller_manager}/healthz")
    return Component("kube-controller-manager", argv, 90, 2, probe)


def _scheduler(layout: Layout, kube: str) -> Component:
    argv = (
        kube,
        "kube-scheduler",
        f"--config={layout.config / 'scheduler.json'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.ports.scheduler}",
        f"--tls-cert-file={layout.pki / 'loopback.crt'}",
        f"--tls-private-key-file={layout.pki / 'loopback.key'}",
    )
    probe = Probe(f"https://127.0.0.1:{layout.ports.scheduler}/healthz")
    return Component("kube-scheduler", argv, 90, 2, probe)


def _kwok(layout: Layout, kwok: str) -> Component:
    argv = (
        kwok,
        f"--config={layout.config / 'kwok.yaml'}",
        f"--kubeconfig={layout.kubeconfig}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={KWOK_ANNOTATION}",
        f"--server-address=127.0.0.1:{layout.ports.kwok}",
        f"--node-ip={KWOK_NODE_IP}",
        f"--cidr={KWOK_POD_SUBNET}",
    )
    return Component("kwok", argv, 60, 2, Probe(f"http://127.0.0.1:{layout.ports.kwok}/healthz"))


def _containerd(layout: Layout, containerd: str) -> Component:
    argv = (containerd, f"--config={layout.config / 'containerd.toml'}", "--log-level=info")
    return Component("containerd", argv, 60, 0)


def _kubelet(layout: Layout, kube: str) -> Component:
    argv = (
        kube,
        "kubelet",
        f"--config={layout.config / 'kubelet.json'}",
        f"--kubeconfig={layout.client_kubeconfig('system:node:' + NODE_NAME)}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={layout.server_ip}",
        f"--root-dir={layout.kubelet_root}",
        f"--cert-dir={layout.kubelet_root / 'pki'}",
    )
    probe = Probe(f"http://127.0.0.1:{layout.ports.kubelet_health}/healthz")
    return Component("kubelet", argv, 90, 2, probe)


def _proxy(layout: Layout, kube: str) -> Component:
    argv = (kube, "kube-proxy", f"--config={layout.config / 'proxy.json'}")
    probe = Probe(f"http://127.0.0.1:{layout.ports.proxy_health}/livez")
    return Component("kube-proxy", argv, 60, 2, probe)


def _coredns(layout: Layout, coredns: str) -> Component:
    argv = (coredns, "-conf", str(layout.config / "Corefile"))
    probe = Probe(f"http://127.0.0.1:{layout.ports.coredns_ready}/ready")
    return Component("coredns", argv, 60, 2, probe)


def _dra_driver(layout: Layout, kube: str) -> Component:
    argv = (
        kube,
        "dra-driver",
        f"--profile={layout.config / f'gpus-{layout.gpu_profile}.json'}",
        f"--kubeconfig={layout.client_kubeconfig('system:node:' + NODE_NAME)}",
        f"--node-name={NODE_NAME}",
        f"--kubelet-root-dir={layout.kubelet_root}",
        f"--cdi-dir={layout.cdi}",
    )
    # A restarted kubelet deletes the node's slices; a driver that lives on re-creates them late.
    return Component("dra-driver", argv, 60, 3, restart_with=("kubelet",))


def wanted(layout: Layout, programs: Mapping[str, Path]) -> list[Component]:
    """All components of the cluster, in start order; stop order is the reverse."""
    kube = str(programs["kube"])
    components = [_etcd(layout, kube), _apiserver(layout, kube)]
    components += [_controller_manager(layout, kube), _scheduler(layout, kube)]
    if layout.kwok:
        components.append(_kwok(layout, str(programs["kwok"])))
    if layout.node:
        components += [
            _containerd(layout, str(programs["containerd"])),
            _proxy(layout, kube),
            _coredns(layout, str(programs["coredns"])),
            _kubelet(layout, kube),
        ]
        if layout.gpu_profile is not None:
            components.append(_dra_driver(layout, kube))
    return components


def wanted_programs(layout: Layout) -> list[str]:
    programs = ["kube"]
    if layout.kwok:
        programs.append("kwok")
    if layout.node:
        programs += ["pause", "containerd", "containerd-shim-runc-v2", "ctr", "coredns"]
    return programs
