"""Create simulated GPU nodes in a cluster that has KWOK; what they look like is topology.py's."""

from __future__ import annotations

from pathlib import Path

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
    """Names of the new nodes; existing ones of the profile stay.

    Every node of the profile that has no slice gets one, so that a call that was cut short is
    repaired by the next.
    """
    selector = f"--selector={topology.PROFILE_LABEL}={profile.name},{topology.FAKE_NODE}=fake"
    existing = kubectl.get(kube, kubeconfig, "nodes", selector)["items"]
    slices = kubectl.get(kube, kubeconfig, "resourceslices")["items"]
    taken = {node["metadata"]["name"] for node in existing}
    candidates = topology.fake_node_names(profile, count + len(taken))
    names = [name for name in candidates if name not in taken][:count]
    nodes = [topology.fake_node(profile, name, tainted=tainted) for name in names]
    kubectl.apply(kube, kubeconfig, [topology.device_class()])
    stored = [*existing, *kubectl.create(kube, kubeconfig, nodes)]
    published = {item["spec"].get("nodeName") for item in slices}
    missing = [
        topology.resource_slice(
            profile, node["metadata"]["name"], node["metadata"]["uid"], numa=numa
        )
        for node in stored
        if node["metadata"]["name"] not in published
    ]
    kubectl.create(kube, kubeconfig, missing)
    return names
