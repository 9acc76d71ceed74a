"""Where the real scheduler puts tiered claims on each simulated machine."""

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slipstream_local import fakenodes, kubectl, topology
from slipstream_local.cluster import ControlPlane

pytestmark = pytest.mark.controlplane

TIERS = (
    ("same-root", topology.PCIE_ROOT),
    ("same-numa", topology.NUMA_NODE),
    ("same-node", None),
)
SETTLE_LIMIT_S = 60.0
# A pod counts as unschedulable when the scheduler said so, not when a wait ran out.
UNSCHEDULABLE = "Unschedulable"


def tiered_template(name: str, num_gpus: int, *, numa: bool = True) -> dict[str, Any]:
    """GPUs below one root, else of one NUMA node, else of one machine; never of two models."""
    tiers = [tier for tier in TIERS if numa or tier[0] != "same-numa"]
    entries = [
        {"name": tier, "deviceClassName": topology.DEVICE_CLASS, "count": num_gpus}
        for tier, _ in tiers
    ]
    constraints: list[dict[str, Any]] = [
        {"requests": ["gpus"], "matchAttribute": f"{topology.DRIVER}/productName"}
    ]
    constraints += [
        {"requests": [f"gpus/{tier}"], "matchAttribute": attribute}
        for tier, attribute in tiers
        if attribute is not None
    ]
    devices = {
        "requests": [{"name": "gpus", "firstAvailable": entries}],
        "constraints": constraints,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def pod(name: str, template: str, profile: str) -> dict[str, Any]:
    container = {"name": "engine", "image": "none", "resources": {"claims": [{"name": "gpus"}]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {topology.PROFILE_LABEL: profile},
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": template}],
            "containers": [container],
        },
    }


class Claims:
    """Pods with claims in one namespace, and where they went."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._namespace = f"--namespace={namespace}"

    def create(self, *objects: dict[str, Any]) -> None:
        text = kubectl.list_of(objects)
        arguments = [self._namespace, "create", "-f", "-"]
        kubectl.must(self._plane.kube, self._plane.kubeconfig, arguments, text)

    def delete_pods(self) -> None:
        """Returns when their GPUs are free: the next test needs them."""
        for arguments in (
            ["delete", "pods", "--all", "--timeout=60s"],
            ["wait", "--for=delete", "resourceclaims", "--all", "--timeout=60s"],
        ):
            kubectl.must(self._plane.kube, self._plane.kubeconfig, [self._namespace, *arguments])

    def _get(self, *arguments: str) -> dict[str, Any]:
        return kubectl.get(self._plane.kube, self._plane.kubeconfig, self._namespace, *arguments)

    def outcome(self, pod_name: str) -> tuple[str, list[str]]:
        """The tier with the names of the GPUs, or (UNSCHEDULABLE, [])."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while time.monotonic() < deadline:
            found = self._get("pod", pod_name)
            if found["status"]["phase"] == "Running":
                return self._allocation(found)
            conditions = found["status"].get("conditions", [])
            if any(c.get("reason") == UNSCHEDULABLE for c in conditions):
                return UNSCHEDULABLE, []
            time.sleep(0.2)
        pytest.fail(f"{pod_name} is neither running nor unschedulable: {found['status']}")

    def _allocation(self, found: dict[str, Any]) -> tuple[str, list[str]]:
        claim_name = found["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        claim = self._get("resourceclaim", claim_name)
        results = claim["status"]["allocation"]["devices"]["results"]
        tiers = {result["request"].removeprefix("gpus/") for result in results}
        assert len(tiers) == 1, results
        assert {result["pool"] for result in results} == {found["spec"]["nodeName"]}
        return tiers.pop(), [result["device"] for result in results]


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> dict[str, str]:
    """One simulated machine of every profile."""
    return {
        name: fakenodes.create(
            control_plane.kube, control_plane.kubeconfig, profile, 1, tainted=False
        )[0]
        for name, profile in topology.PROFILES.items()
    }


@pytest.fixture
def claims(control_plane: ControlPlane, nodes: dict[str, str]) -> Iterator[Claims]:
    del nodes
    namespace = f"topology-{secrets.token_hex(3)}"
    kube, kubeconfig = control_plane.kube, control_plane.kubeconfig
    kubectl.must(kube, kubeconfig, ["create", "namespace", namespace])
    made = Claims(control_plane, namespace)
    yield made
    made.delete_pods()
    kubectl.must(kube, kubeconfig, ["delete", "namespace", namespace, "--wait=false"])


EXPECTED = [
    ("dual-socket-four-pairs", 2, "same-root"),
    ("dual-socket-four-pairs", 4, "same-numa"),
    ("dual-socket-four-pairs", 8, "same-node"),
    ("dual-socket-two-quads", 2, "same-root"),
    ("dual-socket-two-quads", 4, "same-root"),
    ("dual-socket-two-quads", 8, "same-node"),
    ("dual-socket-direct", 2, "same-numa"),
    ("dual-socket-direct", 4, "same-numa"),
    ("dual-socket-direct", 8, "same-node"),
    ("single-socket-four-quads", 2, "same-root"),
    ("single-socket-four-quads", 4, "same-root"),
    ("single-socket-four-quads", 8, "same-numa"),
    ("workstation-direct", 2, "same-numa"),
    ("workstation-direct", 4, "same-numa"),
    ("workstation-direct", 8, UNSCHEDULABLE),
    ("desktop-pair", 2, "same-root"),
    ("desktop-pair", 4, UNSCHEDULABLE),
]


@pytest.mark.parametrize(
    ("profile_name", "num_gpus", "expected_tier"),
    EXPECTED,
    ids=[f"{profile}-tp{num_gpus}" for profile, num_gpus, _ in EXPECTED],
)
def test_a_claim_lands_on_the_best_tier_that_the_machine_has(
    claims: Claims, profile_name: str, num_gpus: int, expected_tier: str
) -> None:
    claims.create(tiered_template("gpus", num_gpus), pod("engine", "gpus", profile_name))
    tier, devices = claims.outcome("engine")
    assert tier == expected_tier
    assert len(devices) == (0 if tier == UNSCHEDULABLE else num_gpus)
    assert_devices_share(profile_name, tier, devices)


def assert_devices_share(profile_name: str, tier: str, devices: list[str]) -> None:
    """The GPUs really are what the tier promises."""
    attribute = dict(TIERS).get(tier)
    if attribute is None:
        return
    published = topology.devices(topology.profile_named(profile_name), "any")
    by_name = {device["name"]: device["attributes"][attribute] for device in published}
    assert len({str(by_name[device]) for device in devices}) == 1


def test_every_profile_is_expected_somewhere() -> None:
    assert {profile for profile, _, _ in EXPECTED} == set(topology.PROFILES)


def test_a_machine_fills_its_pairs_first_and_turns_the_fifth_pod_away(claims: Claims) -> None:
    profile = "dual-socket-four-pairs"
    names = [f"engine-{index}" for index in range(5)]
    claims.create(tiered_template("gpus", 2), *(pod(name, "gpus", profile) for name in names))
    outcomes = [claims.outcome(name) for name in names]
    placed = [(tier, devices) for tier, devices in outcomes if tier != UNSCHEDULABLE]
    assert [tier for tier, _ in placed] == ["same-root"] * 4
    assert len({device for _, devices in placed for device in devices}) == 8


def test_a_broken_island_falls_back_to_the_numa_node_and_then_to_the_machine(
    claims: Claims,
) -> None:
    """Two GPUs of each quad are taken: four in one quad are gone, four in the machine are not."""
    profile = "dual-socket-two-quads"
    claims.create(
        tiered_template("three", 3), tiered_template("two", 2), pod("a", "three", profile)
    )
    assert claims.outcome("a")[0] == "same-root"
    claims.create(pod("b", "three", profile))
    assert claims.outcome("b")[0] == "same-root"
    claims.create(pod("c", "two", profile))
    assert claims.outcome("c")[0] == "same-node"


def test_without_numa_attributes_the_claim_skips_that_tier(
    control_plane: ControlPlane, claims: Claims
) -> None:
    """As below drivers that publish no NUMA node: that tier can never be met there."""
    profile = topology.PROFILES["workstation-direct"]
    kube, kubeconfig = control_plane.kube, control_plane.kubeconfig
    (name,) = fakenodes.create(kube, kubeconfig, profile, 1, tainted=False, numa=False)
    try:
        wanted = pod("engine", "gpus", profile.name)
        wanted["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
        claims.create(tiered_template("gpus", 4), wanted)
        assert claims.outcome("engine")[0] == "same-node"
    finally:
        claims.delete_pods()
        kubectl.must(kube, kubeconfig, ["delete", "node", name])


def test_a_deleted_node_takes_its_slice_along(control_plane: ControlPlane) -> None:
    profile = topology.PROFILES["desktop-pair"]
    kube, kubeconfig = control_plane.kube, control_plane.kubeconfig
    (name,) = fakenodes.create(kube, kubeconfig, profile, 1, tainted=False)
    kubectl.must(kube, kubeconfig, ["delete", "node", name])
    kubectl.must(
        kube,
        kubeconfig,
        ["wait", "--for=delete", f"resourceslice/{name}-gpus", "--timeout=60s"],
    )
