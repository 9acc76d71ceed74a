"""Edits, crashes, bad input and deletion, on the real node."""

import time

import pytest

from slipstream_cli import install
from slipstream_cli.kubectl import Cluster
from tests.e2e.conftest import SETTLE_LIMIT_S, Models, chat, kill_container, wait

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_fifty_quick_edits_converge_to_the_last_one(models: Models) -> None:
    models.apply("restless", model__maxContext=512)
    models.wait_ready("restless")
    for i in range(50):
        models.kubectl(
            "patch",
            "inferencemodel",
            "restless",
            "--type=merge",
            "-p",
            f'{{"spec": {{"model": {{"maxContext": {600 + i}}}}}}}',
        )
    models.wait_ready("restless")
    wait(
        lambda: len(models.pods("restless")) == 1,
        "one Pod",
        SETTLE_LIMIT_S,
        lambda: str([p["metadata"]["name"] for p in models.pods("restless")]),
    )
    pod = models.pods("restless")[0]
    revision = models.get("restless")["status"]["resolved"]["revision"]
    assert pod["metadata"]["labels"]["slipstream.dev/revision"] == revision
    config = models.kubectl("get", "configmap", f"restless-{revision}", "-o", "yaml")
    assert '"maxContext":649' in config
    # What follows changes no hash: the same Pod, the same container, whatever else is edited.
    for i in range(10):
        alias = f'{{"spec": {{"model": {{"aliases": ["restless-{i}"]}}}}}}'
        models.kubectl("patch", "inferencemodel", "restless", "--type=merge", "-p", alias)
    models.wait_ready("restless")
    kept = models.pods("restless")
    assert [p["metadata"]["uid"] for p in kept] == [pod["metadata"]["uid"]]
    assert kept[0]["status"]["containerStatuses"][0]["restartCount"] == 0


def test_an_edit_that_changes_no_hash_restarts_nothing(models: Models, gateway_url: str) -> None:
    models.apply("calm")
    models.wait_ready("calm")
    before = [p["metadata"]["uid"] for p in models.pods("calm")]
    models.apply("calm", model__aliases=["calm-too"])
    models.wait_ready("calm")
    wait(
        lambda: chat(gateway_url, "calm-too", "hi", max_tokens=1).status_code == 200,
        "the new alias served",
        SETTLE_LIMIT_S,
    )
    pods = models.pods("calm")
    assert [p["metadata"]["uid"] for p in pods] == before
    assert pods[0]["status"]["containerStatuses"][0]["restartCount"] == 0


def test_an_operator_killed_in_the_middle_loses_nothing(models: Models, installed: Cluster) -> None:
    models.apply("survivor", scaling__replicas=0)
    operator_pods = installed.get(
        "-n", install.NAMESPACE, "pods", "-l", "app.kubernetes.io/component=operator"
    )
    assert operator_pods is not None
    models.kubectl("scale", "inferencemodel", "survivor", "--replicas=1")
    for pod in operator_pods["items"]:
        kill_container(installed, install.NAMESPACE, pod["metadata"]["name"])
    # Killed in the middle: what was asked for is not there yet, and nobody says that it is.
    assert not models.is_ready("survivor")
    models.apply("born-meanwhile", model__maxContext=512)
    models.wait_ready("survivor")
    models.wait_ready("born-meanwhile")
    assert len(models.pods("survivor")) == 1
    assert len(models.pods("born-meanwhile")) == 1


def test_a_deleted_model_leaves_nothing(models: Models) -> None:
    models.apply("brief")
    models.wait_ready("brief")
    models.kubectl("delete", "inferencemodel", "brief", "--timeout=60s", timeout_s=70)
    wait(
        lambda: leftovers(models) == [],
        "nothing left",
        SETTLE_LIMIT_S,
        lambda: str(leftovers(models)),
    )


def test_a_missing_model_file_says_so(models: Models) -> None:
    models.apply("lost", model__source="file:///models/smollm2/nowhere.gguf")
    message = models.wait_reason("lost", "ModelNotFound")
    assert "/models/smollm2/nowhere.gguf" in message


def test_an_image_that_cannot_be_pulled_says_so(models: Models) -> None:
    models.apply("unpulled", engine__image="registry.invalid/nobody/nothing:1")
    message = models.wait_reason("unpulled", "ImagePullFailed")
    assert "registry.invalid/nobody/nothing:1" in message


def test_a_crash_looping_engine_shows_the_containers_last_message(models: Models) -> None:
    container = {"name": "engine", "command": ["sh", "-c", "echo the disk is on fire; exit 3"]}
    models.apply("crasher", podTemplate={"spec": {"containers": [container]}})
    message = models.wait_reason("crasher", "CrashLoop")
    assert "the disk is on fire" in message


def test_a_pod_that_fits_no_node_says_what_the_scheduler_said(models: Models) -> None:
    resources = {"requests": {"memory": "900Ti"}, "limits": {"memory": "900Ti"}}
    container = {"name": "engine", "resources": resources}
    models.apply("giant", podTemplate={"spec": {"containers": [container]}})
    message = models.wait_reason("giant", "Unschedulable")
    assert "memory" in message.lower()


def test_a_bad_revision_leaves_the_old_one_serving(models: Models, gateway_url: str) -> None:
    models.apply("steady")
    models.wait_ready("steady")
    models.apply("steady", model__source="file:///models/smollm2/nowhere.gguf")
    models.wait_reason("steady", "ModelNotFound")
    for _ in range(5):
        assert chat(gateway_url, "steady", "hi", max_tokens=1).status_code == 200
        time.sleep(0.2)
    models.apply("steady")
    models.wait_ready("steady")
    # The refused revision's Pod may still be on its way out.
    wait(lambda: len(models.pods("steady")) == 1, "one Pod", SETTLE_LIMIT_S)


def leftovers(models: Models) -> list[str]:
    kinds = (
        "pods,configmaps,services,secrets,controllerrevisions,modelroutes,endpointslices,"
        "networkpolicies"
    )
    names = models.kubectl("get", kinds, "-o", "name").split()
    return [n for n in names if n != "configmap/kube-root-ca.crt"]
