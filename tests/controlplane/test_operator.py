"""The operator against a real API server, scheduler and garbage collector, on a simulated node."""

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream_api import names
from slipstream_local.cluster import ControlPlane
from tests.controlplane import operator_kit as kit
from tests.controlplane.operator_kit import Api, OperatorProcess

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

SHARED = "operator-shared"
# The garbage collector learns of new kinds every thirty seconds.
COLLECTED_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    with kit.prepared(control_plane.kubeconfig) as api:
        yield api


@pytest.fixture(scope="module")
def operator(
    control_plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    kit.make_namespace(api, SHARED)
    directory = tmp_path_factory.mktemp("operator")
    with kit.operator(
        control_plane.kubeconfig, directory, "shared", [SHARED], leaseName="shared"
    ) as process:
        yield process


def pods_of(api: Api, model: str, namespace: str = SHARED) -> dict[str, str]:
    """Name -> uid of a model's Pods that stay."""
    return {
        p["metadata"]["name"]: p["metadata"]["uid"]
        for p in api.pods(namespace)
        if p["metadata"]["labels"].get(names.LABEL_MODEL) == model
        and "deletionTimestamp" not in p["metadata"]
    }


def route_of(api: Api, model: str, namespace: str = SHARED) -> dict[str, Any]:
    route = api.get(f"{kit.MODELS}/namespaces/{namespace}/modelroutes/{model}")
    assert route is not None
    return route


def settled(operator: OperatorProcess, log: Path) -> int:
    """The number of writes once two looks a second apart see the same."""

    def quiet() -> int | None:
        before = len(kit.child_writes(log, operator.name))
        time.sleep(1)
        return before if len(kit.child_writes(log, operator.name)) == before else None

    return kit.wait_for(quiet, "an operator that has nothing to write")


def test_a_model_becomes_ready_and_then_costs_no_write(
    api: Api, operator: OperatorProcess, control_plane: ControlPlane
) -> None:
    kit.create_model(api, SHARED, kit.model("first", aliases=["one"], scaling={"replicas": 2}))
    condition = api.wait_condition(SHARED, "first", "Ready", "True", "AllReplicasReady")
    assert condition["message"] == "2 of 2 replicas ready"
    model = api.model(SHARED, "first")
    assert model is not None
    revision = model["status"]["resolved"]["revision"]
    assert sorted(pods_of(api, "first")) == [f"first-{revision}-0", f"first-{revision}-1"]
    policies = f"/apis/networking.k8s.io/v1/namespaces/{SHARED}/networkpolicies"
    policy = api.must("GET", f"{policies}/{names.policy_name('first')}")
    assert policy["spec"]["podSelector"]["matchLabels"][names.LABEL_MODEL] == "first"
    spec = route_of(api, "first")["spec"]
    assert spec["names"] == [f"{SHARED}/first", "first", "one"]
    assert [t["revision"] for t in spec["tracks"]] == [revision]
    before = settled(operator, control_plane.audit_log)
    time.sleep(3)
    assert len(kit.child_writes(control_plane.audit_log, operator.name)) == before
    assert operator.get("/readyz").status_code == 200
    assert operator.get("/healthz").status_code == 200
    assert operator.metric('slipstream_operator_models{ready="True"}') >= 1
    assert kit.has_no_late_watch(operator)


def test_events_tell_the_story(api: Api, operator: OperatorProcess) -> None:
    kit.create_model(api, SHARED, kit.model("told"))
    api.wait_condition(SHARED, "told", "Ready", "True")
    path = f"/apis/events.k8s.io/v1/namespaces/{SHARED}/events"

    def told() -> bool:
        events = [e for e in api.items(path) if e["regarding"]["name"] == "told"]
        return any(e["reason"] == "AllReplicasReady" for e in events)

    kit.wait_for(told, "an event that says the model is ready")


def test_fifty_quick_edits_end_with_the_last_one(api: Api, operator: OperatorProcess) -> None:
    kit.create_model(api, SHARED, kit.model("edited", scaling={"replicas": 2}))
    api.wait_condition(SHARED, "edited", "Ready", "True")
    for number in range(50):
        source = f"file:///models/version-{number}.gguf"
        kit.patch_model(api, SHARED, "edited", {"model": {"source": source}})
    api.wait_condition(SHARED, "edited", "Ready", "True", "AllReplicasReady")
    model = api.model(SHARED, "edited")
    assert model is not None
    resolved = model["status"]["resolved"]
    assert resolved["source"] == "file:///models/version-49.gguf"
    revision = resolved["revision"]
    wanted = {f"edited-{revision}-0", f"edited-{revision}-1"}
    kit.wait_for(lambda: set(pods_of(api, "edited")) == wanted, "only the last revision's Pods")
    kinds = ("configmaps/", "services/")

    def others() -> bool:
        found = [c for c in kit.children(api, SHARED) if c.startswith(kinds) and "/edited-" in c]
        return all(c.endswith(f"edited-{revision}") for c in found) and len(found) == 2

    kit.wait_for(others, "no ConfigMap and Service of an old revision")
    path = f"/apis/apps/v1/namespaces/{SHARED}/controllerrevisions"
    selector = f"?labelSelector={names.LABEL_MODEL}%3Dedited"
    assert len(api.items(path + selector)) <= 4


def test_what_changes_no_pod_restarts_no_pod(api: Api, operator: OperatorProcess) -> None:
    kit.create_model(api, SHARED, kit.model("steady"))
    api.wait_condition(SHARED, "steady", "Ready", "True")
    before = pods_of(api, "steady")
    for number in range(10):
        kit.patch_model(api, SHARED, "steady", {"model": {"aliases": [f"steady-{number}"]}})
    api.wait_condition(SHARED, "steady", "Ready", "True")
    kit.wait_for(
        lambda: route_of(api, "steady")["spec"]["names"][2:] == ["steady-9"], "the last alias"
    )
    assert pods_of(api, "steady") == before


def test_scaling_through_the_subresource_keeps_the_first_replica(
    api: Api, operator: OperatorProcess
) -> None:
    kit.create_model(api, SHARED, kit.model("scaled"))
    api.wait_condition(SHARED, "scaled", "Ready", "True")
    first = pods_of(api, "scaled")
    path = f"{kit.MODELS}/namespaces/{SHARED}/inferencemodels/scaled/scale"
    api.merge(path, {"spec": {"replicas": 3}})
    kit.wait_for(lambda: len(pods_of(api, "scaled")) == 3, "three replicas")
    api.wait_condition(SHARED, "scaled", "Ready", "True")
    api.merge(path, {"spec": {"replicas": 1}})
    kit.wait_for(lambda: pods_of(api, "scaled") == first, "the first replica alone")
    api.merge(path, {"spec": {"replicas": 0}})
    api.wait_condition(SHARED, "scaled", "Ready", "False", "ScaledToZero")
    kit.wait_for(lambda: not pods_of(api, "scaled"), "no replica")
    kit.wait_for(
        lambda: api.must("GET", path)["status"]["replicas"] == 0, "a scale that tells of none"
    )


@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a_lost_pod_is_replaced(api: Api, operator: OperatorProcess, how: str) -> None:
    name = f"lost-{how}"
    kit.create_model(api, SHARED, kit.model(name))
    api.wait_condition(SHARED, name, "Ready", "True")
    ((pod, uid),) = pods_of(api, name).items()
    path = f"/api/v1/namespaces/{SHARED}/pods/{pod}"
    if how == "deleted":
        api.must("DELETE", path + "?gracePeriodSeconds=0")
    else:
        status = {"phase": "Failed", "reason": "Evicted", "conditions": []}
        api.merge(path + "/status", {"status": status})
    kit.wait_for(lambda: set(pods_of(api, name).values()) - {uid} or None, "another Pod")
    api.wait_condition(SHARED, name, "Ready", "True")
    assert uid not in pods_of(api, name).values()


def test_a_crashing_engine_says_why_and_recovers(api: Api, operator: OperatorProcess) -> None:
    kit.create_model(api, SHARED, kit.model("crashing"))
    api.wait_condition(SHARED, "crashing", "Ready", "True")
    ((pod, _),) = pods_of(api, "crashing").items()
    path = f"/api/v1/namespaces/{SHARED}/pods/{pod}/status"
    message = {"reason": "ModelNotFound", "message": "no file /models/tiny.gguf", "field": ""}
    now = "2026-11-01T12:00:00Z"
    container = {
        "name": names.ENGINE_CONTAINER,
        "image": "registry.invalid/engine:1",
        "imageID": "",
        "ready": False,
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {
            "terminated": {"exitCode": 1, "reason": "Error", "message": json.dumps(message)}
        },
    }
    down = {"type": "Ready", "status": "False", "lastTransitionTime": now}
    api.merge(path, {"status": {"conditions": [down], "containerStatuses": [container]}})
    condition = api.wait_condition(SHARED, "crashing", "Ready", "False", "ModelNotFound")
    assert "no file /models/tiny.gguf" in condition["message"]
    api.wait_condition(SHARED, "crashing", "Degraded", "True", "ModelNotFound")
    container |= {"ready": True, "state": {"running": {"startedAt": now}}}
    up = {**down, "status": "True"}
    api.merge(path, {"status": {"conditions": [up], "containerStatuses": [container]}})
    api.wait_condition(SHARED, "crashing", "Ready", "True")
    api.wait_condition(SHARED, "crashing", "Degraded", "False")


@pytest.mark.parametrize(
    ("name", "spec", "reason", "words"),
    [
        (
            "nowhere",
            {"podTemplate": {"spec": {"nodeSelector": {"no-such": "node"}}}},
            "Unschedulable",
            "node",
        ),
        ("claimless", {"source": "pvc://absent/model.gguf"}, "ClaimNotFound", "absent"),
    ],
)
def test_a_pod_that_cannot_be_placed_says_why(
    api: Api, operator: OperatorProcess, name: str, spec: dict[str, Any], reason: str, words: str
) -> None:
    kit.create_model(api, SHARED, kit.model(name, **spec))
    condition = api.wait_condition(SHARED, name, "Ready", "False", reason)
    assert words in condition["message"]


def test_a_broken_new_revision_leaves_the_old_one_serving(
    api: Api, operator: OperatorProcess
) -> None:
    kit.create_model(api, SHARED, kit.model("guarded"))
    api.wait_condition(SHARED, "guarded", "Ready", "True")
    before = pods_of(api, "guarded")
    old = route_of(api, "guarded")["spec"]["tracks"][0]["revision"]
    template = {"spec": {"nodeSelector": {"no-such": "node"}}}
    kit.patch_model(api, SHARED, "guarded", {"podTemplate": template})
    condition = api.wait_condition(SHARED, "guarded", "Ready", "False", "Unschedulable")
    assert f"revision {old} still serves with 1 ready" in condition["message"]
    api.wait_condition(SHARED, "guarded", "Progressing", "True", "Replacing")
    assert before.items() <= pods_of(api, "guarded").items()
    assert route_of(api, "guarded")["spec"]["tracks"][0]["revision"] == old
    # Back to what it was: the old revision is found again and its Pod was never restarted.
    kit.patch_model(api, SHARED, "guarded", {"podTemplate": {"spec": None}})
    api.wait_condition(SHARED, "guarded", "Ready", "True")
    kit.wait_for(lambda: pods_of(api, "guarded") == before, "the Pod from before, alone")


def test_a_refused_pod_is_told_with_its_field_and_retried_slowly(
    api: Api, operator: OperatorProcess
) -> None:
    template = {"spec": {"containers": [{"name": "engine", "image": ""}]}}
    kit.create_model(api, SHARED, kit.model("refused", podTemplate=template))
    condition = api.wait_condition(SHARED, "refused", "Accepted", "False", "InvalidPodTemplate")
    assert "spec.containers[0].image" in condition["message"]
    refused = operator.metric('slipstream_operator_writes_total{kind="Pod",verb="apply"}')
    time.sleep(3)
    again = operator.metric('slipstream_operator_writes_total{kind="Pod",verb="apply"}')
    assert again - refused <= 6
    kit.patch_model(api, SHARED, "refused", {"podTemplate": {"spec": None}})
    api.wait_condition(SHARED, "refused", "Accepted", "True")
    api.wait_condition(SHARED, "refused", "Ready", "True")


def test_the_token_stays_and_goes_with_the_last_model(
    control_plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    namespace = kit.make_namespace(api, "operator-tokens")
    path = f"/api/v1/namespaces/{namespace}/secrets/{names.TOKEN_SECRET}"
    with kit.operator(
        control_plane.kubeconfig, tmp_path, "tokens", [namespace], leaseName="tokens"
    ):
        kit.create_model(api, namespace, kit.model("left"))
        api.wait_condition(namespace, "left", "Ready", "True")
        before = api.must("GET", path)
        kit.create_model(api, namespace, kit.model("right"))
        api.wait_condition(namespace, "right", "Ready", "True")
        owners = kit.wait_for(
            lambda: len(api.must("GET", path)["metadata"]["ownerReferences"]) == 2, "two owners"
        )
        assert owners
        assert api.must("GET", path)["data"] == before["data"]
        assert sorted(before["data"]) == ["current"]
        kit.delete_model(api, namespace, "left")
        kit.wait_for(
            lambda: not any("left" in child for child in kit.children(api, namespace)),
            "nothing left of the first model",
            COLLECTED_WITHIN_S,
        )
        assert api.must("GET", path)["data"] == before["data"]
        kit.delete_model(api, namespace, "right")
        kit.wait_for(
            lambda: not kit.children(api, namespace), "an empty namespace", COLLECTED_WITHIN_S
        )


def test_the_token_is_exchanged_while_two_models_come_and_an_operator_dies(
    control_plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    """Every version that the API server had: neighbours know each other's sending key."""
    namespace = kit.make_namespace(api, "operator-rotation")
    path = f"/api/v1/namespaces/{namespace}/secrets/{names.TOKEN_SECRET}"
    seen: list[dict[str, str]] = []

    def has_rotated(times: int) -> bool:
        secret = api.get(path)
        if secret is not None and secret["data"] not in seen[-1:]:
            seen.append(secret["data"])
        return len({data["current"] for data in seen}) > times

    pace = {"tokenRotateAfterS": 2, "tokenSettleS": 2, "leaseName": "rotation"}
    kubeconfig = control_plane.kubeconfig
    with kit.operator(kubeconfig, tmp_path, "rotating", [namespace], **pace) as first:
        kit.create_model(api, namespace, kit.model("left"))
        kit.wait_for(lambda: has_rotated(1), "a new sending key")
        kit.create_model(api, namespace, kit.model("right"))
        first.kill()
    with kit.operator(kubeconfig, tmp_path, "rotating-on", [namespace], **pace) as second:
        kit.wait_for(lambda: has_rotated(3), "two more")
        owners = api.must("GET", path)["metadata"]["ownerReferences"]
        assert {owner["name"] for owner in owners} == {"left", "right"}
        assert second.metric('slipstream_operator_reconcile_errors_total{cause="bug"}') == 0
    for before, after in itertools.pairwise(seen):
        assert before["current"] in after.values()
        assert after["current"] in before.values()
        assert len(after) <= 2


def test_a_killed_operator_loses_nothing_and_a_new_default_restarts_nobody(
    control_plane: ControlPlane, api: Api, tmp_path: Path
) -> None:
    namespace = kit.make_namespace(api, "operator-killed")
    kit.create_model(api, namespace, kit.model("stays", scaling={"replicas": 2}))
    kit.create_model(api, namespace, kit.model("goes"))
    kubeconfig = control_plane.kubeconfig
    with kit.operator(kubeconfig, tmp_path, "before", [namespace], leaseName="killed") as first:
        api.wait_condition(namespace, "stays", "Ready", "True")
        api.wait_condition(namespace, "goes", "Ready", "True")
        # In the middle of a replacement.
        kit.patch_model(api, namespace, "stays", {"model": {"source": "file:///models/new.gguf"}})
        time.sleep(0.3)
        first.kill()
    kit.delete_model(api, namespace, "goes")
    kit.wait_for(
        lambda: not any("goes" in child for child in kit.children(api, namespace)),
        "nothing of the deleted model although no operator runs",
        COLLECTED_WITHIN_S,
    )
    with kit.operator(kubeconfig, tmp_path, "after", [namespace], leaseName="killed") as second:
        api.wait_condition(namespace, "stays", "Ready", "True", "AllReplicasReady")
        kit.wait_for(lambda: len(pods_of(api, "stays", namespace)) == 2, "two Pods")
        before = pods_of(api, "stays", namespace)
        kit.wait_for(second.is_leading, "leadership")
        assert second.stop() == 0
    with kit.operator(
        kubeconfig,
        tmp_path,
        "upgraded",
        [namespace],
        leaseName="killed",
        engineImage="registry.invalid/engine:2",
        podDefaults={"spec": {"tolerations": [{"operator": "Exists"}]}},
    ) as third:
        kit.wait_for(third.is_leading, "leadership")
        kit.patch_model(api, namespace, "stays", {"model": {"aliases": ["touched"]}})
        api.wait_condition(namespace, "stays", "Ready", "True")
        settled(third, control_plane.audit_log)
        assert pods_of(api, "stays", namespace) == before


def test_an_api_server_that_was_away_is_found_again(
    control_plane: ControlPlane, api: Api, operator: OperatorProcess
) -> None:
    kit.create_model(api, SHARED, kit.model("patient"))
    api.wait_condition(SHARED, "patient", "Ready", "True")
    before = pods_of(api, "patient")
    control_plane.restart("kube-apiserver")
    kit.patch_model(api, SHARED, "patient", {"scaling": {"replicas": 2}})
    kit.wait_for(lambda: len(pods_of(api, "patient")) == 2, "the second Pod")
    assert before.items() <= pods_of(api, "patient").items()

    def is_ready() -> bool:
        # The node was away too, so its Pods were declared not ready; no kubelet declares them
        # ready again here.
        for name in pods_of(api, "patient"):
            path = f"/api/v1/namespaces/{SHARED}/pods/{name}/status"
            up = {"type": "Ready", "status": "True"}
            patch = {"status": {"conditions": [up]}}
            api.must("PATCH", path, patch, kind="application/strategic-merge-patch+json")
        condition = api.condition(SHARED, "patient", "Ready")
        return condition is not None and condition["status"] == "True"

    kit.wait_for(is_ready, "an operator that sees what happens after the restart")
    assert operator.process.poll() is None
    assert operator.get("/healthz").status_code == 200


def test_an_unusable_configuration_ends_with_its_field(tmp_path: Path) -> None:
    with kit.operator(tmp_path / "kubeconfig", tmp_path, "bad", None, leaseDurationS=0) as process:
        assert process.process.wait(20) == 1
        assert "leaseDurationS" in process.log.read_text()
