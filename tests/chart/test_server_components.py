"""Operator and gateway at work with the rights and the files that the chart gives them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream_api import names
from slipstream_cli.kubectl import Cluster
from tests.chart.helm import Helm
from tests.chart.server import Release, installed, model, new_namespace, wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

STOP_LIMIT_S = 30


@dataclass(frozen=True, slots=True)
class Component:
    """One of our programs, outside a Pod but with its account's token."""

    process: subprocess.Popen[bytes]
    log: Path

    def refusals(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if "forbidden" in line.lower() or "403" in line]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=STOP_LIMIT_S)


def kubeconfig_of(release: Release, account: str, folder: Path) -> Path:
    """A kubeconfig that holds nothing but the account's token."""
    document = yaml.safe_load(release.cluster.kubeconfig.read_text(encoding="utf-8"))
    token = release.cluster.run_kubectl("-n", release.namespace, "create", "token", account).strip()
    for user in document["users"]:
        user["user"] = {"token": token}
    path = folder / f"{account}.kubeconfig"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    release: Release, name: str, component: str, folder: Path, **changes: Any
) -> Iterator[Component]:
    """Start what the chart's Pod would start, with the chart's own configuration file."""
    found = release.cluster.get("-n", release.namespace, "configmap", f"{name}-{component}")
    assert found is not None
    config = {**json.loads(found["data"][f"{component}.json"]), **changes}
    path = folder / f"{component}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig_of(release, f"{name}-{component}", folder)),
        "POD_NAME": f"{component}-0",
        "POD_NAMESPACE": release.namespace,
    }
    log = folder / f"{component}.log"
    command = (sys.executable, "-m", "slipstream_cli", component, "serve", "--config", str(path))
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield Component(process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=STOP_LIMIT_S)


@pytest.fixture
def release(cluster: Cluster, helm: Helm) -> Iterator[Release]:
    with installed(cluster, helm.chart) as found:
        yield found


def serve_one_model(release: Release, name: str, where: str, folder: Path) -> None:
    """A model applied in `where` reaches the gateway, with no right missing anywhere."""
    cluster = release.cluster

    def has(kind: str, object_name: str) -> bool:
        return cluster.get("-n", where, kind, object_name) is not None

    def gateways() -> list[str]:
        route = cluster.get("-n", where, "modelroute", "m")
        status = (route or {}).get("status") or {}
        return [g["name"] for g in status.get("gateways", [])]

    def conditions() -> set[str]:
        found = cluster.get("-n", where, "inferencemodel", "m")
        assert found is not None
        return {c["type"] for c in found.get("status", {}).get("conditions", [])}

    def pods() -> list[dict[str, Any]]:
        found = cluster.get("-n", where, "pods", "-l", f"{names.LABEL_MODEL}=m")
        items: list[dict[str, Any]] = (found or {}).get("items", [])
        return items

    operator_ = running(release, name, "operator", folder, metricsPort=free_port())
    with operator_ as operator, running(release, name, "gateway", folder, port=0) as gateway:
        cluster.run_kubectl("-n", where, "apply", "-f", "-", document=json.dumps(model("m")))
        wait_until(lambda: len(pods()) == 1, f"a Pod: {operator.log.read_text()[-2000:]}")
        wait_until(lambda: has("secret", names.TOKEN_SECRET), "the token")
        wait_until(lambda: {"Accepted", "Ready"} <= conditions(), "conditions")
        wait_until(lambda: gateways() == ["gateway-0"], "the gateway's acknowledgement")
        cluster.run_kubectl("-n", where, "scale", "inferencemodel", "m", "--replicas=0")
        wait_until(lambda: pods() == [], "no Pod after scaling to zero")
        assert gateway.stop() == 0
        wait_until(lambda: gateways() == [], "the gateway's entry withdrawn")
        lease = cluster.get("-n", release.namespace, "lease", "gateway-0")
        assert lease is None
        assert operator.stop() == 0
        assert operator.refusals() == []
        assert gateway.refusals() == []


def test_on_the_whole_cluster_the_rights_are_enough(release: Release, tmp_path: Path) -> None:
    serve_one_model(release, "slipstream", new_namespace(release.cluster), tmp_path)


@pytest.mark.parametrize("watches_itself", [True, False])
def test_in_namespaced_mode_the_rights_are_enough(
    release: Release, tmp_path: Path, watches_itself: bool
) -> None:
    where = release.namespace if watches_itself else new_namespace(release.cluster)
    release.upgrade("--set", "rbac.namespaced=true", "--set", f"watchNamespaces={{{where}}}")
    serve_one_model(release, "slipstream", where, tmp_path)
