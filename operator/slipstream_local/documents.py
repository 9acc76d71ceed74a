"""The configuration documents of every component, as pure functions of a Layout; writes no file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from slipstream_local.certificates import Pair
from slipstream_local.images import PAUSE_IMAGE
from slipstream_local.layout import (
    BRIDGE,
    CLUSTER_DOMAIN,
    GATEWAY_IP,
    NODE_NAME,
    POD_SUBNET,
    Layout,
)

Document = dict[str, Any]


def kubeconfig(server: str, authority_pem: bytes, user: str, pair: Pair) -> Document:
    def encode(data: bytes) -> str:
        return base64.b64encode(data).decode()

    cluster = {"server": server, "certificate-authority-data": encode(authority_pem)}
    credentials = {
        "client-certificate-data": encode(pair.certificate_pem),
        "client-key-data": encode(pair.key_pem),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
        "current-context": "local",
    }


def audit_policy() -> Document:
    """Every write by anybody, and what people and our own programs read."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["/*"]},
            {"level": "None", "resources": [{"group": "events.k8s.io"}]},
            {"level": "None", "resources": [{"group": "", "resources": ["events"]}]},
            {
                "level": "None",
                "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"],
                "verbs": ["get", "list", "watch"],
            },
            {
                "level": "None",
                "users": [
                    "system:apiserver",
                    "system:coredns",
                    "system:kube-controller-manager",
                    "system:kube-proxy",
                    "system:kube-scheduler",
                ],
                "verbs": ["get", "list", "watch"],
            },
            {
                "level": "None",
                "userGroups": ["system:nodes"],
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            },
            {"level": "Metadata"},
        ],
    }


def scheduler(layout: Layout) -> Document:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(layout.client_kubeconfig("system:kube-scheduler")),
            "qps": 200,
            "burst": 400,
        },
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
        # A pod that did not fit is looked at again after a second.
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }


def kubelet(layout: Layout) -> Document:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": GATEWAY_IP,
        "port": layout.ports.kubelet,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": layout.ports.kubelet_health,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet-server.key"),
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "clusterDNS": [GATEWAY_IP],
        "clusterDomain": CLUSTER_DOMAIN,
        "podLogsDir": str(layout.pod_logs),
        "volumePluginDir": str(layout.root / "volume-plugins"),
        # The machine may have any cgroup layout, also the hybrid one of small virtual machines.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "failSwapOn": False,
        # Nothing can be pulled again, so nothing may be collected.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "nodefs.available": "0%",
            "imagefs.available": "0%",
            "memory.available": "100Mi",
        },
        # With the default 40 s lease and the controller's short grace period the node would flap.
        "nodeLeaseDurationSeconds": 8,
        "nodeStatusUpdateFrequency": "4s",
        "syncFrequency": "10s",
        "registerNode": True,
        "serializeImagePulls": False,
        "shutdownGracePeriod": "0s",
    }


def proxy(layout: Layout) -> Document:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": POD_SUBNET,
        "hostnameOverride": NODE_NAME,
        "clientConnection": {"kubeconfig": str(layout.client_kubeconfig("system:kube-proxy"))},
        "healthzBindAddress": f"127.0.0.1:{layout.ports.proxy_health}",
        "metricsBindAddress": f"127.0.0.1:{layout.ports.proxy_metrics}",
        # Zero leaves the machine's own connection-tracking limits and time-outs alone.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def cni(layout: Layout) -> Document:
    return {
        "cniVersion": "1.0.0",
        "name": layout.cni_network,
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                "hairpinMode": True,
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(layout.cni_data),
                    "ranges": [[{"subnet": POD_SUBNET, "gateway": GATEWAY_IP}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def containerd(layout: Layout, runc: Path, cni_dir: Path) -> str:
    """TOML; every value is a JSON scalar or list, which TOML writes alike."""

    def quoted(value: object) -> str:
        return json.dumps(str(value))

    state = layout.containerd_state
    return f"""version = 3
root = {quoted(layout.containerd_root)}
state = {quoted(state)}
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = {quoted(layout.containerd_socket)}

[ttrpc]
  address = {quoted(str(layout.containerd_socket) + ".ttrpc")}

[plugins.'io.containerd.internal.v1.opt']
  path = {quoted(layout.containerd_root / "opt")}

[plugins.'io.containerd.shim.v1.manager']
  socket_dir = {quoted(state / "s")}

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = {quoted(PAUSE_IMAGE)}

[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE the score cannot be lowered and runc would not start a container.
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = [{quoted(layout.cdi)}]

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [{quoted(cni_dir)}]
  conf_dir = {quoted(layout.cni_config)}

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = {quoted(runc)}
  Root = {quoted(state / "runc")}
  SystemdCgroup = false
"""


def corefile(layout: Layout, *, has_upstream: bool) -> str:
    """Without a name server to forward to, CoreDNS would refuse to start: a machine offline."""
    forward = "forward . /etc/resolv.conf" if has_upstream else ""
    return f""".:53 {{
    bind {GATEWAY_IP}
    errors
    ready 127.0.0.1:{layout.ports.coredns_ready}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {layout.client_kubeconfig("system:coredns")}
        pods insecure
        ttl 5
    }}
    {forward}
    cache 5
}}
"""


def coredns_access() -> list[Document]:
    """What CoreDNS may read; it runs as a host process with a client certificate."""
    rules = [
        {
            "apiGroups": [""],
            "resources": ["services", "namespaces", "pods", "endpoints"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
    ]
    api = "rbac.authorization.k8s.io"
    name = {"name": "system:coredns"}
    return [
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": name, "rules": rules},
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": name,
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", **name},
            "subjects": [{"apiGroup": api, "kind": "User", **name}],
        },
    ]
