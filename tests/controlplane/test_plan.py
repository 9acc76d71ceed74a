"""`slipstream plan --from-cluster` on a real API server, with claims that a real scheduler gave."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream_api import crds
from slipstream_local import fakenodes, kubectl, topology
from slipstream_local.cluster import ControlPlane

pytestmark = pytest.mark.controlplane

PROFILE = topology.PROFILES["single-socket-four-quads"]
FACTS = Path(__file__).parents[1] / "operator/planner/facts/qwen2.5-coder-32b.yaml"


def planned(plane: ControlPlane, tmp_path: Path) -> dict[str, Any]:
    """With a kubectl on the PATH, as a person has it."""
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {plane.kube} kubectl "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "slipstream_cli", "plan", "--from-cluster"),
            *("--facts", str(FACTS), "-o", "json"),
        ],
        env={
            **os.environ,
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(plane.kubeconfig),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def pair(name: str) -> list[dict[str, Any]]:
    """A pod on a node of the profile that takes two GPUs below one root."""
    request = {"name": "gpus", "exactly": {"deviceClassName": topology.DEVICE_CLASS, "count": 2}}
    same_root = {"requests": ["gpus"], "matchAttribute": topology.PCIE_ROOT}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request], "constraints": [same_root]}},
    }
    container = {"name": "engine", "image": "none", "resources": {"claims": [{"name": "gpus"}]}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeSelector": {topology.PROFILE_LABEL: PROFILE.name},
            "resourceClaims": [{"name": "gpus", "resourceClaimName": name}],
            "containers": [container],
        },
    }
    return [claim, pod]


def test_what_a_claim_was_given_is_missing_from_the_islands(
    control_plane: ControlPlane, repository: Path, tmp_path: Path
) -> None:
    kube, kubeconfig = control_plane.kube, control_plane.kubeconfig
    (kind,) = (kind for kind in crds.KINDS if kind.kind == "GPUClass")
    definition = crds.definition(kind)
    sample = repository / "crds/examples/gpuclasses/rtx-pro-6000.yaml"
    gpu_class = yaml.safe_load(sample.read_text(encoding="utf-8"))
    name = f"customresourcedefinition/{definition['metadata']['name']}"
    kubectl.apply(kube, kubeconfig, [definition])
    kubectl.must(kube, kubeconfig, ["wait", "--for=condition=Established", name, "--timeout=60s"])
    kubectl.apply(kube, kubeconfig, [gpu_class])
    (node,) = fakenodes.create(kube, kubeconfig, PROFILE, 1, tainted=False)
    try:
        before = planned(control_plane, tmp_path)
        on_node = [one["islands"] for one in before["layouts"] if node in one["nodes"]]
        assert set(on_node) == {"4+4+4+4"}
        kubectl.apply(kube, kubeconfig, pair("plan-pair"))
        wait = ["wait", "--for=condition=PodScheduled", "pod/plan-pair", "--timeout=60s"]
        kubectl.must(kube, kubeconfig, ["-n", "default", *wait])
        after = planned(control_plane, tmp_path)
        on_node = [one["islands"] for one in after["layouts"] if node in one["nodes"]]
        assert set(on_node) == {"2+4+4+4"}
        assert any("2 of" in note and "taken" in note for note in after["notes"])
    finally:
        gone = ["delete", "pod/plan-pair", "resourceclaim/plan-pair", "--ignore-not-found"]
        kubectl.must(kube, kubeconfig, ["-n", "default", *gone, "--grace-period=0", "--force"])
        kubectl.must(kube, kubeconfig, ["delete", "node", node])
