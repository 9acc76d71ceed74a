"""The operator with exactly the rights that the chart gives it, and no more."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream_api import names
from slipstream_local import build
from slipstream_local.cluster import ControlPlane
from slipstream_local.progress import Progress
from tests.chart.helm import NAMESPACE, Helm
from tests.controlplane import operator_kit as kit
from tests.controlplane.operator_kit import Api

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{ns}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


@pytest.fixture(scope="module")
def helm(repository: Path) -> Helm:
    programs = build.ensure(["helm"], Progress())
    return Helm(programs["helm"], repository / "charts/slipstream")


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    with kit.prepared(control_plane.kubeconfig) as api:
        yield api


def install_rights(api: Api, documents: list[dict[str, Any]]) -> str:
    """Apply accounts, roles and bindings; the name of the operator's account."""
    account = ""
    for document in documents:
        path = PATHS.get(document["kind"])
        if path is None:
            continue
        name = document["metadata"]["name"]
        namespace = document["metadata"].get("namespace", NAMESPACE)
        api.apply(path.format(ns=namespace) + f"/{name}", document)
        if document["kind"] == "ServiceAccount" and "operator" in name:
            account = name
    return account


def kubeconfig_of(api: Api, original: Path, account: str, directory: Path) -> Path:
    """The cluster as that account sees it."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    token = api.must("POST", path, body)["status"]["token"]
    config = yaml.safe_load(original.read_text(encoding="utf-8"))
    for user in config["users"]:
        user["user"] = {"token": token}
    copy = directory / "operator.kubeconfig"
    copy.write_text(yaml.safe_dump(config), encoding="utf-8")
    return copy


@pytest.mark.parametrize("mode", ["namespaced", "cluster"])
def test_the_charts_rights_are_enough_for_the_life_of_a_model(
    control_plane: ControlPlane, api: Api, helm: Helm, tmp_path: Path, mode: str
) -> None:
    namespace = kit.make_namespace(api, f"rights-{mode}")
    kit.make_namespace(api, NAMESPACE)
    options = []
    if mode == "namespaced":
        options = [
            "--set=rbac.namespaced=true",
            f"--set-json=watchNamespaces={json.dumps([namespace])}",
        ]
    release = f"rights-{mode}"
    account = install_rights(api, helm.documents(*options, release=release))
    kubeconfig = kubeconfig_of(api, control_plane.kubeconfig, account, tmp_path)
    lease = next(
        rule["resourceNames"][0]
        for document in helm.documents(*options, release=release)
        if document["kind"] == "Role" and "operator" in document["metadata"]["name"]
        for rule in document["rules"]
        if rule["verbs"] == ["update"]
    )
    with kit.operator(
        kubeconfig,
        tmp_path,
        f"rights-{mode}",
        [namespace] if mode == "namespaced" else None,
        leaseName=lease,
        operatorNamespace=NAMESPACE,
    ) as operator:
        # Names of their own: the models of the other mode may still be there, and hold theirs.
        first, second = f"first-{mode}", f"second-{mode}"
        kit.create_model(api, namespace, kit.model(first, scaling={"replicas": 2}))
        api.wait_condition(namespace, first, "Ready", "True")
        kit.patch_model(api, namespace, first, {"model": {"source": "file:///other.gguf"}})
        api.wait_condition(namespace, first, "Ready", "True")
        kit.create_model(api, namespace, kit.model(second))
        api.wait_condition(namespace, second, "Ready", "True")
        secret = f"/api/v1/namespaces/{namespace}/secrets/{names.TOKEN_SECRET}"
        kit.wait_for(
            lambda: len(api.must("GET", secret)["metadata"]["ownerReferences"]) == 2,
            "two owners of the token",
        )
        kit.patch_model(api, namespace, first, {"scaling": {"replicas": 0}})
        api.wait_condition(namespace, first, "Ready", "False", "ScaledToZero")
        assert operator.metric('slipstream_operator_reconcile_errors_total{cause="bug"}') == 0
        kit.wait_for(lambda: kit.has_no_late_watch(operator), "watches that brought every write")
        log = operator.log.read_text()
        assert operator.stop() == 0
    # How the API server words a missing right; admission refuses other tests' models in its way.
    assert "system:serviceaccount:" not in log, log
