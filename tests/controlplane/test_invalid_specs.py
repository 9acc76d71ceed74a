"""Specs that make no sense: the API server refuses them, or Accepted=False names the field."""

from collections.abc import Iterator
from typing import Any

import pytest

from slipstream_api import crds, names
from slipstream_local.cluster import ControlPlane
from tests.controlplane import operator_kit as kit
from tests.controlplane.operator_kit import Api, OperatorProcess

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

NAMESPACE = "invalid-specs"
SOURCE = "file:///models/tiny.gguf"


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Iterator[Api]:
    with kit.prepared(control_plane.kubeconfig) as api:
        kit.make_namespace(api, NAMESPACE)
        yield api


@pytest.fixture(scope="module")
def operator(
    control_plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    directory = tmp_path_factory.mktemp("operator")
    with kit.operator(
        control_plane.kubeconfig, directory, "invalid", [NAMESPACE], leaseName="invalid"
    ) as process:
        yield process
        assert process.process.poll() is None, process.log.read_text()


def with_model(**fields: Any) -> dict[str, Any]:
    return {"model": {"source": SOURCE, **fields}}


REFUSED: dict[str, tuple[str, object, str]] = {
    # case: name, spec, what the message must name
    "negative replicas": ("x", {**with_model(), "scaling": {"replicas": -1}}, "replicas"),
    "too many replicas": ("x", {**with_model(), "scaling": {"replicas": 65}}, "replicas"),
    "replicas as text": ("x", {**with_model(), "scaling": {"replicas": "two"}}, "replicas"),
    "half a replica": ("x", {**with_model(), "scaling": {"replicas": 1.5}}, "replicas"),
    "unknown mode": ("x", {**with_model(), "scaling": {"mode": "Sometimes"}}, "mode"),
    "unknown scheme": ("x", with_model(source="ftp://host/model.gguf"), "source"),
    "no scheme": ("x", with_model(source="/models/tiny.gguf"), "source"),
    "empty source": ("x", with_model(source=""), "source"),
    "relative file": ("x", with_model(source="file://tiny.gguf"), "source"),
    "claim without a path": ("x", with_model(source="pvc://claim"), "source"),
    "source that climbs": ("x", with_model(source="file:///models/../etc/passwd"), "source"),
    "source with a space": ("x", with_model(source="file:///my models/a.gguf"), "source"),
    "oversize source": ("x", with_model(source="file:///" + "a" * 2000), "source"),
    "source as a number": ("x", with_model(source=7), "source"),
    "no source": ("x", {"model": {}}, "source"),
    "no model": ("x", {}, "model"),
    "empty alias": ("x", with_model(aliases=[""]), "aliases"),
    "alias with a space": ("x", with_model(aliases=["my model"]), "aliases"),
    "oversize alias": ("x", with_model(aliases=["a" * 129]), "aliases"),
    "too many aliases": ("x", with_model(aliases=[f"a{i}" for i in range(17)]), "aliases"),
    "the same alias twice": ("x", with_model(aliases=["a", "a"]), "aliases"),
    "alias equal to the name": ("x", with_model(aliases=["x"]), "aliases"),
    "tiny context": ("x", with_model(maxContext=1), "maxContext"),
    "unknown format of tool calls": ("x", with_model(toolCallFormat="yaml"), "toolCallFormat"),
    "unknown format of thinking": ("x", with_model(reasoningFormat="aloud"), "reasoningFormat"),
    "a field of a later version": ("x", {**with_model(), "speculator": {}}, "speculator"),
    "empty revision": ("x", with_model(revision=""), "revision"),
    "unknown runtime": ("x", {**with_model(), "engine": {"runtime": "magic"}}, "runtime"),
    "empty image": ("x", {**with_model(), "engine": {"image": ""}}, "image"),
    "template as a list": ("x", {**with_model(), "podTemplate": []}, "podTemplate"),
    "unknown field": ("x", {**with_model(), "modle": {}}, "modle"),
    "unknown field below": ("x", with_model(sauce="x"), "sauce"),
    "name too long": ("x" * 50, with_model(), "metadata.name"),
    "name with a dot": ("a.b", with_model(), "metadata.name"),
    "name that starts with a digit": ("1b", with_model(), "metadata.name"),
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.replace(" ", "-"))
def test_the_api_server_refuses(api: Api, case: str) -> None:
    name, spec, words = REFUSED[case]
    document = {
        "apiVersion": names.API_VERSION,
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": spec,
    }
    path = f"{kit.MODELS}/namespaces/{NAMESPACE}/inferencemodels?fieldValidation=Strict"
    answer = api.send("POST", path, document)
    assert answer.status_code in (400, 422), answer.text
    assert words in answer.json()["message"]


TEMPLATES: dict[str, tuple[dict[str, Any], str]] = {
    "containers-as-an-object": (
        {"spec": {"containers": {"name": "engine"}}},
        "spec.podTemplate.spec.containers",
    ),
    "container-without-a-name": (
        {"spec": {"containers": [{"image": "x"}]}},
        "spec.podTemplate.spec.containers[0].name",
    ),
    "unknown-part": ({"status": {}}, "spec.podTemplate.status"),
    "annotation-as-a-number": (
        {"metadata": {"annotations": {"a": 1}}},
        "spec.podTemplate.metadata.annotations.a",
    ),
    "a-pod-that-ends": (
        {"spec": {"restartPolicy": "Never"}},
        "spec.podTemplate.spec.restartPolicy",
    ),
    "unknown-pod-field": ({"spec": {"noSuchField": 1}}, "noSuchField"),
    "wrong-type": ({"spec": {"terminationGracePeriodSeconds": "soon"}}, "terminationGracePeriod"),
    "negative-deadline": ({"spec": {"activeDeadlineSeconds": -1}}, "spec.activeDeadlineSeconds"),
    "forbidden-priority": ({"spec": {"priority": 7}}, "priority"),
    "no-quantity": (
        {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"memory": "lots"}}}]}},
        "quantities must match",
    ),
    "bad-label": ({"metadata": {"labels": {"a b": "c"}}}, "metadata.labels"),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_a_pod_template_that_cannot_work_is_not_accepted(
    api: Api, operator: OperatorProcess, case: str
) -> None:
    template, words = TEMPLATES[case]
    kit.create_model(api, NAMESPACE, kit.model(case, podTemplate=template))
    condition = api.wait_condition(NAMESPACE, case, "Accepted", "False", "InvalidPodTemplate")
    assert words in condition["message"]
    api.wait_condition(NAMESPACE, case, "Ready", "False")


def test_the_younger_claimant_of_an_alias_is_told_and_keeps_its_other_names(
    api: Api, operator: OperatorProcess
) -> None:
    kit.create_model(api, NAMESPACE, kit.model("older", aliases=["shared"]))
    api.wait_condition(NAMESPACE, "older", "Ready", "True")
    kit.create_model(api, NAMESPACE, kit.model("younger", aliases=["own", "shared"]))
    condition = api.wait_condition(NAMESPACE, "younger", "Accepted", "False", "NameTaken")
    assert "spec.model.aliases[1]" in condition["message"]
    assert f"{NAMESPACE}/older" in condition["message"]
    path = f"{kit.MODELS}/namespaces/{NAMESPACE}/modelroutes/younger"
    route = kit.wait_for(lambda: api.get(path), "a route")
    assert route["spec"]["names"] == [f"{NAMESPACE}/younger", "younger", "own"]
    kit.delete_model(api, NAMESPACE, "older")
    api.wait_condition(NAMESPACE, "younger", "Accepted", "True")
    kit.wait_for(
        lambda: "shared" in api.must("GET", path)["spec"]["names"], "the name that became free"
    )


def test_a_spec_that_an_older_definition_let_through_keeps_what_runs(
    api: Api, operator: OperatorProcess
) -> None:
    kit.create_model(api, NAMESPACE, kit.model("survivor"))
    api.wait_condition(NAMESPACE, "survivor", "Ready", "True")
    before = [p["metadata"]["uid"] for p in api.pods(NAMESPACE) if "survivor" in str(p)]
    kind = next(k for k in crds.KINDS if k.kind == "InferenceModel")
    strict = crds.definition(kind)
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{strict['metadata']['name']}"
    loose = crds.definition(kind)
    schema = loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema.pop("x-kubernetes-validations", None)
    del schema["properties"]["spec"]["properties"]["model"]["properties"]["source"]["pattern"]
    api.apply(path, loose)
    try:
        patch = {"model": {"source": "ftp://elsewhere"}}

        def let_through() -> bool:
            target = f"{kit.MODELS}/namespaces/{NAMESPACE}/inferencemodels/survivor"
            body = {"spec": patch}
            return api.send("PATCH", target, body, kind="application/merge-patch+json").is_success

        kit.wait_for(let_through, "the loose definition")
        condition = api.wait_condition(NAMESPACE, "survivor", "Accepted", "False", "InvalidSpec")
        assert condition["message"].startswith("spec.model.source:")
        after = [p["metadata"]["uid"] for p in api.pods(NAMESPACE) if "survivor" in str(p)]
        assert after == before
        kit.patch_model(api, NAMESPACE, "survivor", with_model())
        api.wait_condition(NAMESPACE, "survivor", "Ready", "True")
    finally:
        api.apply(path, strict)
