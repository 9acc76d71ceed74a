"""Rights: exactly these, without a wildcard, and nothing on the cluster in namespaced mode."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.helm import NAMESPACE, Document, Helm, select

ROLES = ("Role", "ClusterRole")
BINDINGS = ("RoleBinding", "ClusterRoleBinding")
CLUSTER_SCOPED = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace")

OPERATOR = """
controllerrevisions.apps: create delete get list patch watch
events.events.k8s.io: create
inferencemodels.slipstream.dev: get list watch
inferencemodels/status.slipstream.dev: patch
modelroutes.slipstream.dev: create get list patch watch
modelroutes/status.slipstream.dev: patch
pods: create delete get list patch watch
services: create delete get list patch watch
configmaps: create delete get list patch watch
networkpolicies.networking.k8s.io: create delete get list patch watch
secrets: create
secrets[slipstream-internal-token]: delete get list patch watch
leases.coordination.k8s.io: get list watch
"""
GATEWAY = """
endpointslices.discovery.k8s.io: get list watch
modelroutes.slipstream.dev: get list watch
modelroutes/status.slipstream.dev: patch
secrets[slipstream-internal-token]: get list watch
"""
OPERATOR_LEASE = """
leases.coordination.k8s.io: create get list watch
leases.coordination.k8s.io[slipstream-operator]: update
"""
OPERATOR_LEASE_NAMESPACED = (
    OPERATOR_LEASE
    + """
controllerrevisions.apps: get list watch
inferencemodels.slipstream.dev: get list watch
modelroutes.slipstream.dev: get list watch
pods: get list watch
services: get list watch
configmaps: get list watch
networkpolicies.networking.k8s.io: get list watch
secrets[slipstream-internal-token]: get list watch
"""
)
GATEWAY_LEASE = """
leases.coordination.k8s.io: create delete patch
"""
OPERATOR_GPUS = """
gpuclasses.slipstream.dev: get list watch
resourceslices.resource.k8s.io: get list watch
deviceclasses.resource.k8s.io: get list watch
"""
VIEW = """
gpuclasses.slipstream.dev: get list watch
inferencemodels.slipstream.dev: get list watch
inferencemodels/status.slipstream.dev: get list watch
inferencemodels/scale.slipstream.dev: get list watch
modelroutes.slipstream.dev: get list watch
"""
EDIT = """
inferencemodels.slipstream.dev: create delete deletecollection patch update
inferencemodels/scale.slipstream.dev: patch update
"""


def rights(role: Document) -> dict[str, set[str]]:
    """`resource[/sub][.group][[name]]` -> verbs."""
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert "nonResourceURLs" not in rule
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    key = resource + (f".{group}" if group else "") + (f"[{name}]" if name else "")
                    found.setdefault(key, set()).update(rule["verbs"])
    return found


def expected(table: str) -> dict[str, set[str]]:
    rows = (line.rsplit(": ", 1) for line in table.splitlines() if line)
    return {resource: set(verbs.split()) for resource, verbs in rows}


def roles(documents: list[Document]) -> dict[tuple[str, str, str], Document]:
    return {
        (d["kind"], d["metadata"].get("namespace", ""), d["metadata"]["name"]): d
        for kind in ROLES
        for d in select(documents, kind)
    }


def test_on_the_whole_cluster_the_rights_are_exactly_these(helm: Helm) -> None:
    found = {key: rights(role) for key, role in roles(helm.documents()).items()}
    assert found == {
        ("ClusterRole", "", "slipstream-operator"): expected(OPERATOR),
        ("ClusterRole", "", "slipstream-operator-gpus"): expected(OPERATOR_GPUS),
        ("ClusterRole", "", "slipstream-gateway"): expected(GATEWAY),
        ("Role", NAMESPACE, "slipstream-operator-lease"): expected(OPERATOR_LEASE),
        ("Role", NAMESPACE, "slipstream-gateway-lease"): expected(GATEWAY_LEASE),
        ("ClusterRole", "", "slipstream-view"): expected(VIEW),
        ("ClusterRole", "", "slipstream-edit"): expected(EDIT),
    }


def test_in_namespaced_mode_each_namespace_grants_the_same_and_no_more(helm: Helm) -> None:
    documents = helm.documents(
        *("--set", "rbac.namespaced=true"), *("--set", "watchNamespaces={a,b}")
    )
    found = {key: rights(role) for key, role in roles(documents).items()}
    assert found == {
        ("Role", "a", "slipstream-operator"): expected(OPERATOR),
        ("Role", "b", "slipstream-operator"): expected(OPERATOR),
        ("Role", "a", "slipstream-gateway"): expected(GATEWAY),
        ("Role", "b", "slipstream-gateway"): expected(GATEWAY),
        ("Role", NAMESPACE, "slipstream-operator-lease"): expected(OPERATOR_LEASE_NAMESPACED),
        ("Role", NAMESPACE, "slipstream-gateway-lease"): expected(GATEWAY_LEASE),
    }


def test_namespaced_mode_makes_nothing_on_the_cluster(helm: Helm, values_dir: Path) -> None:
    documents = helm.documents("-f", str(values_dir / "namespaced.yaml"))
    assert [d for kind in CLUSTER_SCOPED for d in select(documents, kind)] == []
    assert {d["metadata"]["namespace"] for d in documents} == {NAMESPACE, "team-a", "team-b"}


@pytest.mark.parametrize("values", ["default", "namespaced", "thin", "everything"])
def test_no_rule_has_a_wildcard(helm: Helm, values_dir: Path, values: str) -> None:
    documents = helm.documents("-f", str(values_dir / f"{values}.yaml"))
    for role in roles(documents).values():
        assert "*" not in yaml.safe_dump(role["rules"]), role["metadata"]["name"]


@pytest.mark.parametrize("arguments", [(), ("--set", "rbac.namespaced=true")])
def test_each_binding_gives_its_role_to_the_account_of_its_component(
    helm: Helm, arguments: tuple[str, ...]
) -> None:
    documents = helm.documents(*arguments)
    known = roles(documents)
    accounts = {
        (d["metadata"]["namespace"], d["metadata"]["name"])
        for d in select(documents, "ServiceAccount")
    }
    used = {
        d["spec"]["template"]["spec"]["serviceAccountName"] for d in select(documents, "Deployment")
    }
    bindings = [d for kind in BINDINGS for d in select(documents, kind)]
    assert len(bindings) == (4 if arguments else 5)
    for binding in bindings:
        (subject,) = binding["subjects"]
        assert (subject["namespace"], subject["name"]) in accounts
        assert subject["name"] in used
        reference: dict[str, Any] = binding["roleRef"]
        namespace = binding["metadata"].get("namespace", "")
        assert (reference["kind"], namespace, reference["name"]) in known
        component = binding["metadata"]["labels"]["app.kubernetes.io/component"]
        assert subject["name"].endswith(component)
        assert component in reference["name"]


def test_rights_can_be_left_to_the_administrator(helm: Helm) -> None:
    documents = helm.documents("--set", "rbac.create=false", "--set", "watchNamespaces={a}")
    assert [d for kind in (*ROLES, *BINDINGS) for d in select(documents, kind)] == []
