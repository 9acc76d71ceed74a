"""The simulated machines: what is published must be possible, unique and what the table says."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_local import topology
from slipstream_local.topology import PCIE_ROOT, PROFILES, Profile

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)

# GPUs, largest group below one root, largest group of one NUMA node, NUMA nodes
TABLE = {
    "dual-socket-four-pairs": (8, 2, 4, 2),
    "dual-socket-two-quads": (8, 4, 4, 2),
    "dual-socket-direct": (8, 1, 4, 2),
    "single-socket-four-quads": (16, 4, 16, 1),
    "workstation-direct": (4, 1, 4, 1),
    "desktop-pair": (2, 2, 2, 1),
}


def value(device: dict[str, Any], attribute: str) -> object:
    (found,) = device["attributes"][attribute].values()
    return found


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_each_machine_has_the_groups_of_the_table(profile: Profile) -> None:
    groups = (profile.largest_root, profile.largest_numa_node, profile.num_numa_nodes)
    assert (profile.num_gpus, *groups) == TABLE[profile.name]


def test_the_table_and_the_profiles_name_the_same_machines() -> None:
    assert set(TABLE) == set(PROFILES)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_devices_are_what_a_resource_slice_allows(profile: Profile) -> None:
    for device in topology.devices(profile, "node"):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device["name"])
        assert len(device["attributes"]) + len(device["capacity"]) <= 32
        for attribute in device["attributes"].values():
            ((kind, content),) = attribute.items()
            assert kind in {"string", "int", "bool", "version"}
            assert kind != "string" or len(content) <= 64
            assert kind != "version" or re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", content)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_gpus_of_one_root_stand_together_and_on_one_numa_node(profile: Profile) -> None:
    """The scheduler takes the first that fit: neighbours in the list must be neighbours."""
    devices = topology.devices(profile, "node")
    roots = [value(device, PCIE_ROOT) for device in devices]
    changes = sum(before != after for before, after in itertools.pairwise(roots))
    assert changes == len(set(roots)) - 1 == len(profile.roots) - 1
    numa_of_root = {(value(d, PCIE_ROOT), value(d, topology.NUMA_NODE)) for d in devices}
    assert len(numa_of_root) == len(profile.roots)
    addresses = [value(device, topology.PCI_BUS_ID) for device in devices]
    assert len(set(addresses)) == profile.num_gpus


@given(first=NAMES, second=NAMES, profile=st.sampled_from(list(PROFILES.values())))
def test_a_gpu_is_the_same_on_every_call_and_another_on_every_node(
    first: str, second: str, profile: Profile
) -> None:
    ours = [value(device, "uuid") for device in topology.devices(profile, first)]
    assert ours == [value(device, "uuid") for device in topology.devices(profile, first)]
    theirs = [value(device, "uuid") for device in topology.devices(profile, second)]
    assert len(set(ours)) == profile.num_gpus
    assert first == second or not set(ours) & set(theirs)


def test_the_numa_node_can_be_left_out_as_older_drivers_do() -> None:
    profile = PROFILES["dual-socket-direct"]
    for device in topology.devices(profile, "node", numa=False):
        assert topology.NUMA_NODE not in device["attributes"]
        assert PCIE_ROOT in device["attributes"]


def test_a_slice_goes_with_its_node() -> None:
    made = topology.resource_slice(PROFILES["desktop-pair"], "n", "the-uid")
    assert made["metadata"]["ownerReferences"][0]["uid"] == "the-uid"
    assert made["spec"]["pool"] == {"name": "n", "generation": 1, "resourceSliceCount": 1}


def test_only_a_tainted_node_keeps_other_pods_away() -> None:
    profile = PROFILES["desktop-pair"]
    assert "taints" not in topology.fake_node(profile, "n", tainted=False)["spec"]
    (taint,) = topology.fake_node(profile, "n", tainted=True)["spec"]["taints"]
    assert taint["effect"] == "NoSchedule"


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="desktop-pair"):
        topology.profile_named("mainframe")
