"""The chart's life on a real API server: upgraded, uninstalled, installed anew."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream_cli.kubectl import Cluster
from tests.chart.helm import Helm
from tests.chart.server import Release, apply, deployments, installed, model, wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]


@pytest.fixture
def release(cluster: Cluster, helm: Helm) -> Iterator[Release]:
    with installed(cluster, helm.chart) as found:
        yield found


def test_an_upgrade_brings_new_definitions_and_keeps_the_models(
    release: Release, tmp_path: Path
) -> None:
    apply(release, model("kept"))
    newer = tmp_path / "newer"
    shutil.copytree(release.chart, newer)
    definition = newer / "templates/crds/inferencemodels.yaml"
    text = definition.read_text(encoding="utf-8")
    assert "\n    - im\n" in text
    definition.write_text(text.replace("\n    - im\n", "\n    - im\n    - imod\n"))
    release.upgrade(chart=newer)
    found = release.cluster.get("crd", "inferencemodels.slipstream.dev")
    assert found is not None
    assert found["spec"]["names"]["shortNames"] == ["im", "imod"]
    assert release.cluster.get("-n", release.namespace, "inferencemodel", "kept") is not None


def test_an_upgrade_restarts_only_whom_it_concerns(release: Release) -> None:
    before = deployments(release)
    release.upgrade("--set", "gateway.retryAfterSeconds=9", "--set", "operator.replicaCount=3")
    after = deployments(release)
    templates = {name: d["spec"]["template"] for name, d in before.items()}
    changed = {name for name, d in after.items() if d["spec"]["template"] != templates[name]}
    assert changed == {"slipstream-gateway"}
    assert after["slipstream-operator"]["spec"]["replicas"] == 3


def test_uninstalling_keeps_models_and_a_new_installation_takes_them_over(
    release: Release,
) -> None:
    apply(release, model("kept"))
    release.helm("uninstall", "slipstream")
    assert release.cluster.get("-n", release.namespace, "inferencemodel", "kept") is not None
    left = release.cluster.run_kubectl(
        *("-n", release.namespace, "get", "deployments,roles,rolebindings,services", "-o", "name")
    )
    assert left == ""
    assert release.cluster.get("clusterrole", "slipstream-operator") is None
    release.upgrade()
    assert release.cluster.get("-n", release.namespace, "inferencemodel", "kept") is not None


def test_an_uninstalled_namespace_can_be_deleted(release: Release) -> None:
    apply(release, model("left"))
    release.helm("uninstall", "slipstream")
    release.cluster.run_kubectl(
        "delete", "namespace", release.namespace, "--timeout=60s", timeout_s=70
    )
    assert release.cluster.get("namespace", release.namespace) is None


def test_without_keep_nothing_is_left(release: Release) -> None:
    apply(release, model("gone"))
    release.upgrade("--set", "crds.keep=false")
    release.helm("uninstall", "slipstream")
    wait_until(
        lambda: release.cluster.get("crd", "inferencemodels.slipstream.dev") is None,
        "the definitions are gone",
    )
