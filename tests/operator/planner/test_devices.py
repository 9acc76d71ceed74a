"""Which GPUs there are: read from slices, claims and labels as a cluster has them."""

import copy
from typing import Any

import pytest

from slipstream_local import topology
from slipstream_operator.planner import devices, islands, selectors
from slipstream_operator.planner.devices import Observed
from slipstream_operator.planner.islands import Board, Island
from slipstream_operator.planner.tiers import Tier
from tests.operator.planner import support

Document = dict[str, Any]

CAPABILITY = 'device.attributes["gpu.nvidia.com"].cudaComputeCapability'


def slices(profile: str, *nodes: str, numa: bool = True) -> list[Document]:
    found = topology.profile_named(profile)
    return [topology.resource_slice(found, node, numa=numa) for node in nodes]


def observe(pieces: list[Document], **more: Any) -> Observed:
    return devices.observe(support.classes(), [topology.device_class()], pieces, **more)


def boards(observed: Observed) -> list[Board]:
    return list(islands.boards(observed.gpus))


@pytest.mark.parametrize(
    ("profile", "card", "shape"),
    [
        ("dual-socket-four-pairs", "rtx-pro-6000", "2+2 | 2+2"),
        ("dual-socket-two-quads", "a100-pcie-80gb", "4 | 4"),
        ("dual-socket-direct", "l40s", "1+1+1+1 | 1+1+1+1"),
        ("single-socket-four-quads", "rtx-pro-6000", "4+4+4+4"),
        ("workstation-direct", "rtx-pro-6000", "1+1+1+1"),
        ("desktop-pair", "rtx-4090", "2"),
    ],
)
def test_every_machine_is_one_board_of_the_right_card(profile: str, card: str, shape: str) -> None:
    (board,) = boards(observe(slices(profile, "a", "b")))
    assert (board.card, board.shape, board.nodes) == (card, shape, ("a", "b"))


@pytest.mark.parametrize(
    ("profile", "size", "groups"),
    [
        ("dual-socket-four-pairs", 2, (4, 4, 4)),
        ("dual-socket-four-pairs", 3, (0, 2, 2)),
        ("dual-socket-four-pairs", 4, (0, 2, 2)),
        ("dual-socket-two-quads", 4, (2, 2, 2)),
        ("dual-socket-direct", 2, (0, 4, 4)),
        ("dual-socket-direct", 8, (0, 0, 1)),
        ("single-socket-four-quads", 8, (0, 2, 2)),
    ],
)
def test_groups_that_each_tier_can_place(
    profile: str, size: int, groups: tuple[int, int, int]
) -> None:
    board = support.board(profile, "l40s")
    assert tuple(board.num_groups(tier, size) for tier in Tier) == groups


def test_what_a_claim_holds_is_not_free() -> None:
    results = [
        {"driver": topology.DRIVER, "pool": "a", "device": "gpu-0", "request": "gpus/same-root"}
    ]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    pending: Document = {"spec": {}}
    (board,) = boards(observe(slices("dual-socket-four-pairs", "a"), claims=[claim, pending]))
    assert board.shape == "1+2 | 2+2"


def test_a_tainted_device_is_not_free() -> None:
    (piece,) = slices("dual-socket-two-quads", "a")
    piece["spec"]["devices"][7]["taints"] = [{"key": "link", "effect": "NoSchedule"}]
    (board,) = boards(observe([piece]))
    assert board.shape == "4 | 3"


def test_only_the_newest_generation_counts_and_only_when_it_is_whole() -> None:
    (old,) = slices("dual-socket-two-quads", "a")
    new = copy.deepcopy(old)
    new["spec"]["pool"]["generation"] = 2
    new["spec"]["devices"] = new["spec"]["devices"][:4]
    (board,) = boards(observe([old, new]))
    assert board.shape == "4"
    new["spec"]["pool"]["resourceSliceCount"] = 2
    assert boards(observe([old, new])) == []


def test_without_numa_nodes_no_group_is_made_by_them() -> None:
    (board,) = boards(observe(slices("dual-socket-direct", "a", numa=False)))
    assert board.islands == (Island(-1, 1),) * 8
    assert [board.num_groups(tier, 2) for tier in Tier] == [0, 0, 4]


def test_a_drivers_own_numa_attribute_and_a_list_of_nodes_are_read() -> None:
    gpu = {
        "name": "gpu-0",
        "attributes": {
            "type": {"string": "amdgpu"},
            "productName": {"string": "AMD Radeon AI PRO R9700"},
            "numaNode": {"int": 1},
            devices.PCIE_ROOT: {"string": "pci0000:40"},
        },
    }
    other = {**gpu, "name": "gpu-1"}
    other["attributes"] = {**gpu["attributes"], devices.NUMA_NODE: {"ints": [0, 1]}}  # type: ignore[dict-item]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.amd.com", "nodeName": "a", "pool": pool, "devices": [gpu, other]}
    found = observe([{"spec": spec}]).gpus
    assert [(one.card, one.root, one.numa) for one in found] == [
        ("r9700", "pci0000:40", 1),
        ("r9700", "pci0000:40", 0),
    ]


def test_a_gpu_without_a_root_is_an_island_of_its_own() -> None:
    (piece,) = slices("desktop-pair", "a")
    for device in piece["spec"]["devices"]:
        del device["attributes"][topology.PCIE_ROOT]
    (board,) = boards(observe([piece]))
    assert board.shape == "1+1"


def test_a_device_that_no_class_means_is_left_out() -> None:
    (piece,) = slices("desktop-pair", "a")
    piece["spec"]["devices"][0]["attributes"]["productName"] = {"string": "Another"}
    assert len(observe([piece]).gpus) == 1


def test_a_device_class_narrows_what_its_classes_mean() -> None:
    none = topology.device_class()
    none["spec"]["selectors"] = [{"cel": {"expression": "false"}}]
    found = devices.observe(support.classes(), [none], slices("desktop-pair", "a"))
    assert found.gpus == ()


def test_a_selector_that_is_no_cel_is_told() -> None:
    broken = support.gpu_class("l40s").model_copy(deep=True)
    object.__setattr__(broken.selectors[0].cel, "expression", "device.driver ==")
    found = devices.observe({"mine": broken}, [], slices("dual-socket-direct", "a"))
    assert found.gpus == ()
    assert found.notes[0].startswith("mine: a selector cannot be read:")


@pytest.mark.parametrize(
    ("expression", "is_match"),
    [
        ('device.driver == "gpu.nvidia.com"', True),
        ('device.attributes["gpu.nvidia.com"].type == "gpu"', True),
        ('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0', True),
        ('device.capacity["gpu.nvidia.com"].memory.isLessThan(quantity("40Gi"))', False),
        (
            f'{CAPABILITY}.compareTo(semver("8.9.0")) >= 0',
            True,
        ),
        (
            f'{CAPABILITY}.isGreaterThan(semver("8.10.0"))',
            False,
        ),
        ('device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:10"', True),
        ('has(device.attributes["gpu.nvidia.com"].nothing)', False),
        ('device.attributes["gpu.nvidia.com"].nothing == "x"', False),
        ('device.attributes["elsewhere"].type == "gpu"', False),
        ("1", False),
    ],
)
def test_selectors_mean_what_they_mean_to_the_allocator(expression: str, is_match: bool) -> None:
    (piece,) = slices("dual-socket-direct", "a")
    device = piece["spec"]["devices"][0]
    assert selectors.compiled([expression]).matches(topology.DRIVER, device) is is_match


def node(name: str, **labels: str) -> Document:
    named = {
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe",
    }
    return {"metadata": {"name": name, "labels": named | labels}}


def test_without_dra_labels_say_what_there_is_and_ours_how_it_is_grouped() -> None:
    labelled = node("a", **{devices.ISLANDS_LABEL: "2x4"})
    found = devices.observe(support.classes(), [], [], nodes=[labelled])
    (board,) = boards(found)
    assert (board.card, board.islands) == ("a100-pcie-80gb", (Island(-1, 4),) * 2)
    assert found.notes == ()


@pytest.mark.parametrize("label", [{}, {devices.ISLANDS_LABEL: "3x2"}])
def test_without_a_label_that_fits_no_two_gpus_are_near(label: dict[str, str]) -> None:
    found = devices.observe(support.classes(), [], [], nodes=[node("a", **label)])
    (board,) = boards(found)
    assert board.islands == (Island(-1, 1),) * 8
    assert devices.ISLANDS_LABEL in found.notes[0]


def test_a_node_that_slices_speak_of_is_not_counted_twice() -> None:
    pieces = slices("dual-socket-two-quads", "a")
    found = observe(pieces, nodes=[node("a"), {"metadata": {"name": "b"}}])
    assert len(found.gpus) == 8
