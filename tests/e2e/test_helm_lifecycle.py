"""The chart's life on the real node: upgrades leave models alone, nothing hangs at the end.

These tests come before those that keep a connection to the gateway open: they replace it.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream_cli import install
from slipstream_cli.kubectl import Cluster, CommandError
from tests.e2e.conftest import SETTLE_LIMIT_S, Models, chat, wait

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MODELS_CRD = "inferencemodels.slipstream.dev"
NEVER = "registry.invalid/slipstream/engine:newer"


@pytest.fixture
def values(installed: Cluster, repository: Path, node_cluster: Path) -> Iterator[list[Path]]:
    """The values of the shared release, which is as before after the test."""
    _, files = install.target(node_cluster, repository)
    yield files
    install.install(installed, repository / "charts/slipstream", files)


def upgrade(cluster: Cluster, repository: Path, values: list[Path], *changes: str) -> None:
    cluster.run_helm(
        *("upgrade", install.RELEASE, str(repository / "charts/slipstream")),
        *(f"--namespace={install.NAMESPACE}", "--wait", f"--timeout={install.HELM_WAIT}"),
        *(f"--values={path}" for path in values),
        *(word for change in changes for word in ("--set", change)),
    )


def uids(models: Models, name: str) -> dict[str, tuple[str, int]]:
    """Each Pod with its uid and how often its engine was restarted."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            pod["status"]["containerStatuses"][0]["restartCount"],
        )
        for pod in models.pods(name)
    }


def answers(cluster: Cluster, model: str) -> bool:
    with cluster.forward(install.NAMESPACE, install.GATEWAY_TARGET, 80) as port:
        return chat(f"http://127.0.0.1:{port}", model, "hi", max_tokens=1).status_code == 200


def test_an_upgrade_leaves_running_models_alone(
    models: Models, installed: Cluster, repository: Path, values: list[Path]
) -> None:
    models.apply("calm")
    models.wait_ready("calm")
    before = uids(models, "calm")
    resolved = models.get("calm")["status"]["resolved"]

    upgrade(
        installed,
        repository,
        values,
        f"engine.image={NEVER}",
        "engine.podDefaults.metadata.labels.newer=yes-it-is",
        "operator.podAnnotations.upgraded=yes-it-is",
        "operator.replicaCount=1",
        "gateway.replicaCount=1",
        "gateway.retryAfterSeconds=9",
    )
    assert answers(installed, "calm")
    # A new model takes the new default, which shows that the operator knows it by now.
    models.apply("newcomer", model__maxContext=512)
    assert NEVER in models.wait_reason("newcomer", "ImagePullFailed")
    assert uids(models, "calm") == before
    assert models.get("calm")["status"]["resolved"] == resolved

    # A further replica is made as the first one was.
    models.kubectl("scale", "inferencemodel", "calm", "--replicas=2")
    wait(lambda: len(models.pods("calm")) == 2, "two Pods", SETTLE_LIMIT_S)
    models.wait_ready("calm")
    pods = models.pods("calm")
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {resolved["image"]}
    assert all("newer" not in pod["metadata"]["labels"] for pod in pods)
    assert before.items() <= uids(models, "calm").items()


def test_after_uninstall_engines_stay_and_namespaces_go(
    installed: Cluster, repository: Path, values: list[Path]
) -> None:
    namespace = f"e2e-{secrets.token_hex(3)}"
    installed.run_kubectl("create", "namespace", namespace)
    models = Models(installed, namespace, repository)
    models.apply("orphan")
    models.wait_ready("orphan")
    before = uids(models, "orphan")

    installed.run_helm(
        *("uninstall", install.RELEASE, f"--namespace={install.NAMESPACE}"),
        *("--wait", f"--timeout={install.HELM_WAIT}"),
    )
    wait(lambda: ours_running(installed) == [], "operator and gateway gone", SETTLE_LIMIT_S)
    assert installed.get("crd", MODELS_CRD) is not None
    assert models.get("orphan")["spec"]["scaling"]["replicas"] == 1
    assert uids(models, "orphan") == before

    # No operator runs any more: a finalizer of ours would keep these for ever.
    for name in (namespace, install.NAMESPACE):
        try:
            installed.run_kubectl("delete", "namespace", name, "--timeout=100s", timeout_s=110)
        except CommandError as error:
            left = installed.get("namespace", name)
            pytest.fail(f"{error}\n{(left or {}).get('status')}")
        assert installed.get("namespace", name) is None


def ours_running(cluster: Cluster) -> list[str]:
    found = cluster.get("-n", install.NAMESPACE, "pods")
    return [pod["metadata"]["name"] for pod in (found or {}).get("items", [])]
