"""The chart on an API server: what its tests share."""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipstream_api import names
from slipstream_cli.kubectl import Cluster

CHANGE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Release:
    """The chart installed in a namespace of its own."""

    cluster: Cluster
    chart: Path
    namespace: str

    def helm(self, *arguments: str) -> str:
        return self.cluster.run_helm("--namespace", self.namespace, *arguments)

    def upgrade(self, *arguments: str, chart: Path | None = None) -> str:
        return self.helm("upgrade", "--install", "slipstream", str(chart or self.chart), *arguments)

    def as_component(self, component: str, *arguments: str, document: Any = None) -> str:
        """kubectl with one component's own rights."""
        account = f"system:serviceaccount:{self.namespace}:slipstream-{component}"
        text = None if document is None else json.dumps(document)
        return self.cluster.run_kubectl("--as", account, *arguments, document=text)


def new_namespace(cluster: Cluster) -> str:
    """Restricted, as a careful administrator makes them. The control plane goes with the module."""
    name = f"chart-{secrets.token_hex(3)}"
    cluster.run_kubectl("create", "namespace", name)
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.run_kubectl("label", "namespace", name, label)
    wait_until(
        lambda: cluster.get("-n", name, "serviceaccount", "default") is not None,
        f"the default account of {name}",
    )
    return name


@contextmanager
def installed(cluster: Cluster, chart: Path) -> Iterator[Release]:
    """The chart in a new namespace; afterwards nothing of it is left on the cluster."""
    release = Release(cluster, chart, new_namespace(cluster))
    release.upgrade()
    try:
        yield release
    finally:
        release.helm("uninstall", "slipstream", "--ignore-not-found")
        cluster.run_kubectl("delete", "crd", "-l", f"{names.LABEL_MANAGED_BY}=Helm")


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + CHANGE_LIMIT_S
    while not is_true():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {CHANGE_LIMIT_S:.0f} s: {what}")
        time.sleep(0.2)


def model(name: str) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {"model": {"source": "file:///models/a.gguf"}},
    }


def apply(release: Release, document: dict[str, Any]) -> None:
    release.cluster.run_kubectl(
        "-n", release.namespace, "apply", "-f", "-", document=json.dumps(document)
    )


def deployments(release: Release) -> dict[str, dict[str, Any]]:
    found = release.cluster.get("-n", release.namespace, "deployments")
    assert found is not None
    return {d["metadata"]["name"]: d for d in found["items"]}
