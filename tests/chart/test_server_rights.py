"""The chart's rights and Pods, tried on a real API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream_api import names
from slipstream_cli.kubectl import Cluster, CommandError
from tests.chart.helm import NAMESPACE, Helm, select
from tests.chart.server import (
    Release,
    deployments,
    installed,
    model,
    new_namespace,
    wait_until,
)
from tests.chart.test_pod_security import engine_spec

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]


@pytest.fixture(scope="module")
def release(cluster: Cluster, helm: Helm) -> Iterator[Release]:
    with installed(cluster, helm.chart) as found:
        yield found


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "judged"}, "spec": spec}


def test_a_restricted_namespace_takes_every_pod_of_ours(release: Release) -> None:
    specs = [d["spec"]["template"]["spec"] for d in deployments(release).values()]
    assert len(specs) == 2
    for spec in [*specs, engine_spec()]:
        release.cluster.run_kubectl(
            *("-n", release.namespace, "create", "--dry-run=server", "-f", "-"),
            document=json.dumps(pod(spec)),
        )


def test_a_restricted_namespace_takes_no_host_mount(
    release: Release, helm: Helm, values_dir: Path
) -> None:
    rendered = select(helm.documents("-f", str(values_dir / "thin.yaml")), "Deployment")
    for deployment in rendered:
        with pytest.raises(CommandError, match="restricted volume types"):
            release.cluster.run_kubectl(
                *("-n", release.namespace, "create", "--dry-run=server", "-f", "-"),
                document=json.dumps(pod(deployment["spec"]["template"]["spec"])),
            )


def test_the_api_server_warns_of_nothing(cluster: Cluster, helm: Helm) -> None:
    namespace = new_namespace(cluster)
    text = helm.text("--set", "crds.install=false").replace(NAMESPACE, namespace)
    command = ("-n", namespace, "--warnings-as-errors", "apply", "--dry-run=server", "-f", "-")
    cluster.run_kubectl(*command, document=text)


SECRET = names.TOKEN_SECRET
BY_NAME = f"--field-selector=metadata.name={SECRET}"


@pytest.mark.parametrize(
    ("component", "words"),
    [
        ("operator", "get inferencemodels -A"),
        ("operator", "get modelroutes,pods,services,configmaps,controllerrevisions -A"),
        ("operator", "get networkpolicies -A"),
        ("operator", "get gpuclasses,resourceslices,deviceclasses"),
        ("operator", f"get secrets -A {BY_NAME}"),
        ("operator", f"-n NAMESPACE get secret {SECRET} --ignore-not-found"),
        ("operator", "-n NAMESPACE get leases"),
        ("gateway", "get modelroutes,endpointslices -A"),
        ("gateway", f"get secrets -A {BY_NAME}"),
    ],
)
def test_components_may_read_what_they_use(release: Release, component: str, words: str) -> None:
    release.as_component(component, *words.replace("NAMESPACE", release.namespace).split())


@pytest.mark.parametrize(
    ("component", "words"),
    [
        ("operator", "get secrets -A"),
        ("operator", "-n NAMESPACE get secret other"),
        ("operator", "get nodes"),
        ("operator", "get namespaces"),
        ("operator", "-n NAMESPACE delete inferencemodel a"),
        ("operator", "-n NAMESPACE delete deployment slipstream-gateway"),
        ("operator", "-n NAMESPACE delete lease slipstream-gateway-x"),
        ("operator", "-n default delete lease a"),
        ("gateway", "get secrets -A"),
        ("gateway", "get pods -A"),
        ("gateway", "get inferencemodels -A"),
        ("gateway", "-n NAMESPACE delete modelroute a"),
        ("gateway", "-n default delete lease a"),
    ],
)
def test_components_may_not_do_more(release: Release, component: str, words: str) -> None:
    with pytest.raises(CommandError, match="Forbidden"):
        release.as_component(component, *words.replace("NAMESPACE", release.namespace).split())


def test_each_side_of_a_route_writes_its_own_half(release: Release) -> None:
    route = {
        "apiVersion": names.API_VERSION,
        "kind": "ModelRoute",
        "metadata": {"name": "m", "namespace": release.namespace},
    }
    spec = {**route, "spec": {"model": "m", "names": ["m"], "tracks": []}}
    entry = {"name": "g", "namespace": release.namespace, "observedGeneration": 1}
    status = {**route, "status": {"gateways": [entry]}}
    command = ("apply", "--server-side", "-f", "-")
    with pytest.raises(CommandError, match="Forbidden"):
        release.as_component("gateway", *command, document=spec)
    release.as_component("operator", *command, document=spec)
    as_gateway = ("--subresource=status", "--field-manager=of-g")
    release.as_component("gateway", *command, *as_gateway, document=status)
    written = release.cluster.get("-n", release.namespace, "modelroute", "m")
    assert written is not None
    assert written["status"]["gateways"] == [entry]
    replace = ("replace", "--subresource=status", "-f", "-")
    with pytest.raises(CommandError, match="Forbidden"):
        release.as_component("operator", *replace, document=written)
    # What a dead gateway left: applied anew without it, in its name.
    emptied = {**route, "status": {"gateways": []}}
    release.as_component("operator", *command, *as_gateway, document=emptied)
    written = release.cluster.get("-n", release.namespace, "modelroute", "m")
    assert written is not None
    assert "gateways" not in (written.get("status") or {})


def test_the_operator_makes_and_changes_its_own_secret_only(release: Release) -> None:
    def secret(name: str, value: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": release.namespace}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "stringData": {"current": value},
        }

    apply_ = ("apply", "--server-side", "-f", "-")
    release.as_component("operator", "create", "-f", "-", document=secret(SECRET, "a"))
    release.as_component("operator", *apply_, "--force-conflicts", document=secret(SECRET, "b"))
    release.as_component("operator", "create", "-f", "-", document=secret("other", "a"))
    with pytest.raises(CommandError, match="Forbidden"):
        release.as_component("operator", *apply_, document=secret("other", "b"))


def test_whoever_edits_a_namespace_edits_its_models(release: Release) -> None:
    release.cluster.run_kubectl(
        *("-n", release.namespace, "create", "rolebinding", "dev"),
        "--clusterrole=edit",
        "--user=dev",
    )
    command = ("--as=dev", "-n", release.namespace)

    def may_apply() -> bool:
        try:
            release.cluster.run_kubectl(
                *command, "apply", "-f", "-", document=json.dumps(model("devs"))
            )
        except CommandError as error:
            if "Forbidden" not in str(error):
                raise
            return False
        return True

    # The aggregation is a controller's work.
    wait_until(may_apply, "the edit role has our rights")
    release.cluster.run_kubectl(*command, "scale", "inferencemodel", "devs", "--replicas=3")
    found = release.cluster.get("-n", release.namespace, "inferencemodel", "devs")
    assert found is not None
    assert found["spec"]["scaling"]["replicas"] == 3


def test_namespaced_mode_installs_for_someone_with_two_namespaces(
    release: Release, repository: Path
) -> None:
    """The definitions are there (the `release` fixture); the rest needs no right outside."""
    cluster = release.cluster
    own, other = new_namespace(cluster), new_namespace(cluster)
    for name in (own, other):
        cluster.run_kubectl(
            *("-n", name, "create", "rolebinding", "owner"),
            *("--clusterrole=cluster-admin", "--user=owner"),
        )
    values = {
        "crds": {"install": False},
        "rbac": {"namespaced": True},
        "watchNamespaces": [own, other],
        "fullnameOverride": "mine",
    }
    cluster.run_helm(
        *("--namespace", own, "install", "mine", str(release.chart), "--kube-as-user", "owner"),
        *("--set-json", ",".join(f"{key}={json.dumps(value)}" for key, value in values.items())),
    )
    account = f"system:serviceaccount:{own}:mine-operator"
    for name in (own, other):
        cluster.run_kubectl("--as", account, "-n", name, "get", "inferencemodels,pods")
        cluster.run_kubectl("--as", account, "-n", name, "get", "secrets", BY_NAME)
    with pytest.raises(CommandError, match="Forbidden"):
        cluster.run_kubectl("--as", account, "get", "inferencemodels", "-A")
    with pytest.raises(CommandError, match="Forbidden"):
        cluster.run_kubectl("--as", account, "-n", release.namespace, "get", "inferencemodels")


def test_the_api_server_takes_every_sample(release: Release, repository: Path) -> None:
    for path in sorted((repository / "crds/examples").rglob("*.yaml")):
        applied = release.cluster.run_kubectl(
            *("-n", release.namespace, "apply", "--dry-run=server", "-f", str(path))
        )
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        assert len(applied.splitlines()) == len(documents)
