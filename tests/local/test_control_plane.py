"""The control plane that other tests borrow: faults on purpose, an audit log, several at once."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream_local import cluster, kubectl, supervisor
from slipstream_local.cluster import ControlPlane
from slipstream_local.errors import ComponentError

pytestmark = pytest.mark.controlplane


def create_configmap(plane: ControlPlane, name: str) -> None:
    kubectl.must(plane.kube, plane.kubeconfig, ["create", "configmap", name])


def test_a_stopped_api_server_is_gone_and_a_started_one_has_all_that_was_stored(
    control_plane: ControlPlane,
) -> None:
    create_configmap(control_plane, "before")
    control_plane.stop("kube-apiserver")
    failed = kubectl.run(
        control_plane.kube, control_plane.kubeconfig, ["get", "configmaps", "--request-timeout=2s"]
    )
    assert failed.returncode != 0
    control_plane.start("kube-apiserver")
    create_configmap(control_plane, "after")
    items = kubectl.get(control_plane.kube, control_plane.kubeconfig, "configmaps")["items"]
    assert {"before", "after"} <= {item["metadata"]["name"] for item in items}


def test_the_audit_log_names_the_user_and_the_moment_of_each_write(
    control_plane: ControlPlane,
) -> None:
    for name in ("one", "two"):
        create_configmap(control_plane, name)
    deadline = time.monotonic() + 10
    names: list[str] = []
    while names != ["one", "two"]:
        assert time.monotonic() < deadline, names
        events = [json.loads(line) for line in control_plane.audit_log.read_text().splitlines()]
        writes = [
            event
            for event in events
            if event["verb"] == "create"
            and (event.get("objectRef") or {}).get("resource") == "configmaps"
            and event["user"]["username"] == "kubernetes-admin"
            and event["objectRef"].get("name") in ("one", "two")
        ]
        names = [event["objectRef"]["name"] for event in writes]
    moments = [event["stageTimestamp"] for event in writes]
    assert moments == sorted(moments)
    assert all(event["userAgent"] for event in writes)


def test_an_unknown_component_is_refused(control_plane: ControlPlane) -> None:
    with pytest.raises(ComponentError, match="kubelet"):
        control_plane.stop("kubelet")


def test_two_control_planes_live_side_by_side_and_leave_nothing(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    root = tmp_path / "second"
    with cluster.control_plane(root) as second:
        create_configmap(second, "only-in-second")
        found = kubectl.run(
            control_plane.kube, control_plane.kubeconfig, ["get", "configmap", "only-in-second"]
        )
        assert found.returncode != 0
    assert supervisor.marked_processes(root) == []
    assert not root.exists()


def test_a_control_plane_dies_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    root = tmp_path / "orphan"
    code = (
        "import time; from pathlib import Path; from slipstream_local import cluster\n"
        f"with cluster.control_plane(Path({str(root)!r})):\n"
        "    print('up', flush=True); time.sleep(300)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    assert len(supervisor.marked_processes(root)) == 4
    owner.kill()
    owner.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while supervisor.marked_processes(root):
        assert time.monotonic() < deadline
        time.sleep(0.1)
