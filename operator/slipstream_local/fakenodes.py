"""Create simulated GPU nodes in a cluster that has KWOK; what they look like is topology.py's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream_local import kubectl, topology
from slipstream_local.topology import Profile


def create(
    kube: Path,
    kubeconfig: Path,
    profile: Profile,
    count: int,
    *,
    tainted: bool,
    numa: bool = True,
) -> list[str]:
    """Names of the new nodes. Existing ones of the profile stay and are counted on from."""
    selector = f"--selector={topology.PROFILE_LABEL}={profile.name}"
    existing = {
        node["metadata"]["name"]
        for node in kubectl.get(kube, kubeconfig, "nodes", selector)["items"]
    }
    candidates = topology.fake_node_names(profile, count + len(existing))
    names = [name for name in candidates if name not in existing][:count]
    nodes = [topology.fake_node(profile, name, tainted=tainted) for name in names]
    stored = kubectl.create(kube, kubeconfig, nodes)
    slices: list[dict[str, Any]] = []
    for node in stored:
        metadata = node["metadata"]
        slices.append(
            topology.resource_slice(profile, metadata["name"], metadata["uid"], numa=numa)
        )
    kubectl.apply(kube, kubeconfig, [topology.device_class()])
    kubectl.create(kube, kubeconfig, slices)
    return names
