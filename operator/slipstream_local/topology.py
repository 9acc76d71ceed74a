"""GPU machines as data, and the Kubernetes objects that describe them; pure, touches no cluster.

The six profiles are taken from real machines: how many GPUs hang below each PCIe root complex and
which NUMA node each root belongs to.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

DRIVER = "gpu.nvidia.com"
DEVICE_CLASS = "gpu.nvidia.com"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
NUMA_NODE = "resource.kubernetes.io/numaNode"
PROFILE_LABEL = "slipstream.dev/gpu-profile"
FAKE_NODE = "kwok.x-k8s.io/node"
DEVICES_PER_SLICE = 128
UUID_SPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "gpus.local.slipstream.dev")


@dataclass(frozen=True, slots=True)
class Card:
    product: str
    architecture: str
    compute_capability: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Root:
    """One PCIe root complex, named by the number of its first bus."""

    bus: int
    numa_node: int
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    description: str
    card: Card
    roots: tuple[Root, ...]

    @property
    def num_gpus(self) -> int:
        return sum(root.num_gpus for root in self.roots)

    @property
    def num_numa_nodes(self) -> int:
        return len({root.numa_node for root in self.roots})

    @property
    def largest_root(self) -> int:
        return max(root.num_gpus for root in self.roots)

    @property
    def largest_numa_node(self) -> int:
        per_node: dict[int, int] = {}
        for root in self.roots:
            per_node[root.numa_node] = per_node.get(root.numa_node, 0) + root.num_gpus
        return max(per_node.values())


L40S = Card("NVIDIA L40S", "Ada Lovelace", "8.9.0", 46068)
A100 = Card("NVIDIA A100 80GB PCIe", "Ampere", "8.0.0", 81920)
RTX_PRO_6000 = Card("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Blackwell", "12.0.0", 97887)
RTX_PRO_6000_WORKSTATION = Card(
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "Blackwell", "12.0.0", 97887
)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", "Ada Lovelace", "8.9.0", 24564)


def _roots(per_root: int, numa_of_root: tuple[int, ...]) -> tuple[Root, ...]:
    return tuple(
        Root(bus=0x10 * (index + 1), numa_node=numa, num_gpus=per_root)
        for index, numa in enumerate(numa_of_root)
    )


_ALL = (
    Profile(
        "dual-socket-four-pairs",
        "8 GPUs, two sockets, two switch chips with two virtual switches each: pairs share a root",
        RTX_PRO_6000,
        _roots(2, (0, 0, 1, 1)),
    ),
    Profile(
        "dual-socket-two-quads",
        "8 GPUs, two sockets, one switch of four GPUs per socket",
        A100,
        _roots(4, (0, 1)),
    ),
    Profile(
        "dual-socket-direct",
        "8 GPUs, two sockets, every slot its own root complex",
        L40S,
        _roots(1, (0, 0, 0, 0, 1, 1, 1, 1)),
    ),
    Profile(
        "single-socket-four-quads",
        "16 GPUs, one socket, four switches of four GPUs",
        RTX_PRO_6000,
        _roots(4, (0, 0, 0, 0)),
    ),
    Profile(
        "workstation-direct",
        "4 GPUs in a workstation, every slot its own root complex",
        RTX_PRO_6000_WORKSTATION,
        _roots(1, (0, 0, 0, 0)),
    ),
    Profile(
        "desktop-pair",
        "2 GPUs in a desktop, below the one root complex of its processor",
        RTX_4090,
        (Root(bus=0x00, numa_node=0, num_gpus=2),),
    ),
)
PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in _ALL}


def profile_named(name: str) -> Profile:
    profile = PROFILES.get(name)
    if profile is None:
        raise ValueError(f"unknown GPU profile {name!r}; known: {', '.join(PROFILES)}")
    return profile


def _device(card: Card, node: str, index: int, root: Root, bus: int, *, numa: bool) -> Document:
    attributes: Document = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{uuid.uuid5(UUID_SPACE, f'{node}/{index}')}"},
        "productName": {"string": card.product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": card.architecture},
        "cudaComputeCapability": {"version": card.compute_capability},
        "driverVersion": {"version": "580.95.5"},
        "cudaDriverVersion": {"version": "13.0.0"},
        PCI_BUS_ID: {"string": f"0000:{bus:02x}:00.0"},
        PCIE_ROOT: {"string": f"pci0000:{root.bus:02x}"},
    }
    if numa:
        attributes[NUMA_NODE] = {"int": root.numa_node}
    capacity = {"memory": {"value": f"{card.memory_mib}Mi"}}
    return {"name": f"gpu-{index}", "attributes": attributes, "capacity": capacity}


def devices(profile: Profile, node: str, *, numa: bool = True) -> list[Document]:
    """In order of their roots: the scheduler takes the first that fit.

    Without `numa` the machine looks as it does below drivers that publish no NUMA node.
    """
    result: list[Document] = []
    for root in profile.roots:
        for position in range(root.num_gpus):
            bus = root.bus + 1 + position
            result.append(_device(profile.card, node, len(result), root, bus, numa=numa))
    return result


def resource_slice(
    profile: Profile, node: str, node_uid: str | None = None, *, numa: bool = True
) -> Document:
    """With the node's uid the slice goes when the node goes."""
    metadata: Document = {"name": f"{node}-gpus", "labels": {PROFILE_LABEL: profile.name}}
    if node_uid is not None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
        metadata["ownerReferences"] = [owner]
    published = devices(profile, node, numa=numa)
    if len(published) > DEVICES_PER_SLICE:
        raise ValueError(f"{profile.name}: {len(published)} devices do not fit one slice")
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": published,
        },
    }


def device_class() -> Document:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DEVICE_CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def fake_node(profile: Profile, name: str, *, tainted: bool) -> Document:
    """A node that KWOK plays; with the taint, only pods that tolerate it come here."""
    spec: Document = {}
    if tainted:
        spec["taints"] = [{"key": FAKE_NODE, "value": "fake", "effect": "NoSchedule"}]
    resources = {"cpu": "128", "memory": "1Ti", "pods": "256"}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        FAKE_NODE: "fake",
        PROFILE_LABEL: profile.name,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {FAKE_NODE: "fake"}},
        "spec": spec,
        "status": {"capacity": resources, "allocatable": resources},
    }


def fake_node_names(profile: Profile, count: int, first: int = 0) -> list[str]:
    return [f"fake-{profile.name}-{index:03d}" for index in range(first, first + count)]


def driver_profile(profile: Profile, node: str) -> Document:
    """What the simulated driver of the real node publishes."""
    return {"driver": DRIVER, "devices": devices(profile, node)}
