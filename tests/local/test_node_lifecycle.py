"""A cluster with a node comes up, is repaired and goes without a trace, whatever was done to it.

Each test has a machine of its own (see fixtures_local), so nothing outside is touched.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kube-proxy",
    "coredns",
    "kubelet",
    "dra-driver",
)
SMALL_COMPONENTS = (
    "etcd",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "coredns",
    "dra-driver",
)
NAME = "lifecycle"


def local(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "slipstream_cli", "local", *arguments)


def recorded(machine: Any) -> dict[str, int]:
    """Component -> process id, as seen inside the machine."""
    document = json.loads((machine.state_home / "slipstream" / NAME / "cluster.json").read_text())
    return {name: record["pid"] for name, record in document["processes"].items()}


def kill(machine: Any, pid: int) -> None:
    assert machine.run("kill", "-9", str(pid)).returncode == 0


def kubectl(machine: Any, *arguments: str) -> str:
    answer: str = machine.local("kubectl", "--name", NAME, "--", *arguments)
    return answer


def run_pod(machine: Any, name: str) -> None:
    """A pod of the thin image that lives until it is stopped, by a program of this machine."""
    overrides = {
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
            "containers": [
                {
                    "name": name,
                    "image": "slipstream.dev/local/thin:latest",
                    "imagePullPolicy": "Never",
                    "command": ["/usr/bin/sleep", "infinity"],
                    "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": True}],
                }
            ],
        }
    }
    arguments = ("--image=none", "--restart=Always", f"--overrides={json.dumps(overrides)}")
    kubectl(machine, "run", name, *arguments)
    kubectl(machine, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")


def restarts_and_id(machine: Any, name: str) -> tuple[int, str]:
    pod = json.loads(kubectl(machine, "get", "pod", name, "-o", "json"))
    status = pod["status"]["containerStatuses"][0]
    return status["restartCount"], status["containerID"]


def test_up_is_idempotent_repairs_each_component_and_down_leaves_nothing(machine: Any) -> None:
    before = machine.leftovers()
    up = ("up", "--name", NAME, "--gpu-profile", "desktop-pair")
    machine.local(*up)
    first = recorded(machine)
    assert set(first) == set(COMPONENTS)

    machine.local(*up)
    assert recorded(machine) == first, "the second up restarted something"

    run_pod(machine, "survivor")
    container = restarts_and_id(machine, "survivor")
    for broken in (("kube-apiserver",), ("containerd",), ("kubelet",), SMALL_COMPONENTS):
        pids = recorded(machine)
        for component in broken:
            kill(machine, pids[component])
        machine.local("up", "--name", NAME)
        after = recorded(machine)
        changed = {name for name in COMPONENTS if after[name] != pids[name]}
        # The driver goes with the kubelet, which forgets the node's slices when it starts.
        expected = {*broken, "dra-driver"} if "kubelet" in broken else set(broken)
        assert changed == expected
        machine.local("status", "--name", NAME)
    assert restarts_and_id(machine, "survivor") == container, "the container did not survive"
    slices = kubectl(machine, "get", "resourceslices", "-o", "name").split()
    assert len(slices) == 1

    machine.local("down", "--name", NAME)
    assert machine.leftovers() == before


# Seconds after the start of `up`: before, while and after the components start, and with pods.
@pytest.mark.parametrize("after_s", [0.4, 1.0, 2.0, 3.5, 5.0, 7.0])
def test_down_after_a_killed_up_leaves_nothing(machine: Any, after_s: float) -> None:
    before = machine.leftovers()
    argv = machine.command(*local("up", "--name", NAME, "--gpu-profile", "desktop-pair"))
    with subprocess.Popen(
        argv,
        env=machine.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as starter:
        time.sleep(after_s)
        os.killpg(starter.pid, signal.SIGKILL)
        starter.wait(10)
    machine.local("down", "--name", NAME)
    assert machine.leftovers() == before


def test_down_with_running_pods_and_an_unreadable_state_file_leaves_nothing(machine: Any) -> None:
    before = machine.leftovers()
    machine.local("up", "--name", NAME)
    run_pod(machine, "left-behind")
    (machine.state_home / "slipstream" / NAME / "cluster.json").write_text("{half a docu")
    machine.local("down", "--name", NAME)
    assert machine.leftovers() == before


def test_pods_reach_each_other_where_forwarding_is_dropped_by_default(machine: Any) -> None:
    """As on a machine with a Docker engine."""
    if machine.run("iptables", "-P", "FORWARD", "DROP").returncode != 0:
        pytest.skip("no iptables here, so nobody has such a rule")
    before = machine.leftovers()
    machine.local("up", "--name", NAME)
    for name in ("one", "two"):
        run_pod(machine, name)
    address = kubectl(machine, "get", "pod", "two", "-o", "jsonpath={.status.podIP}")
    # Nobody listens: an answer that refuses the connection has crossed the bridge both ways.
    code = f"import socket; socket.create_connection(('{address}', 9), timeout=3)"
    argv = ("exec", "one", "--", "/usr/bin/python3", "-c", code)
    done = machine.run(*local("kubectl", "--name", NAME, "--", *argv))
    assert "ConnectionRefusedError" in done.stderr, done.stderr
    machine.local("down", "--name", NAME)
    assert machine.leftovers() == before
    assert "slipstream0" not in machine.run("iptables-save").stdout


def test_a_second_cluster_with_a_node_is_refused_and_one_without_a_node_is_not(
    machine: Any,
) -> None:
    machine.local("up", "--name", NAME)
    done = machine.run(*local("up", "--name", "second"))
    assert done.returncode == 1
    assert NAME in done.stderr
    machine.local("up", "--name", "second", "--control-plane-only")
    machine.local("status", "--name", "second")
    machine.local("down", "--name", "second")
    machine.local("status", "--name", NAME)
    machine.local("down", "--name", NAME)
