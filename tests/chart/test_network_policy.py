"""Who reaches whom, as an enforcing network plugin would decide from labels alone."""

from collections.abc import Mapping
from typing import Any

import pytest

from slipstream_api import config, names
from slipstream_api.inferencemodel import InferenceModelSpec
from slipstream_operator import children, settings, template
from slipstream_operator.settings import Settings
from tests.chart.helm import NAMESPACE, RELEASE, Helm, one, select
from tests.chart.test_render import component_config, pod_template
from tests.operator import world

AGENTS = world.NAMESPACE
SCRAPER = {"app": "prometheus"}


def is_selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector, as far as our policies use them."""
    expressions = selector.get("matchExpressions", [])
    assert all(e["operator"] == "In" for e in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(e["key"]) in e["values"] for e in expressions
    )


def reaches(
    policy: Mapping[str, Any], labels: Mapping[str, str], namespace: str, port: int
) -> bool:
    """Whether a Pod with these labels may open a connection to what the policy is for."""
    own = policy["metadata"]["namespace"]

    def is_peer(peer: Mapping[str, Any]) -> bool:
        selector = peer.get("namespaceSelector")
        known = {"kubernetes.io/metadata.name": namespace}
        is_there = namespace == own if selector is None else is_selected(selector, known)
        return is_there and is_selected(peer.get("podSelector", {}), labels)

    return any(
        ("from" not in rule or any(map(is_peer, rule["from"])))
        and ("ports" not in rule or port in [p["port"] for p in rule["ports"]])
        for rule in policy["spec"]["ingress"]
    )


def operator_settings(helm: Helm, *arguments: str) -> Settings:
    text = component_config(helm, "operator", *arguments)
    return settings.from_config(config.parse(config.OperatorConfig, text, origin="chart"))


def engine_policy(helm: Helm, *arguments: str) -> dict[str, Any]:
    clients = operator_settings(helm, *arguments).clients
    assert clients is not None
    return children.network_policy(world.model(), clients)


def engine_labels(helm: Helm, model: str) -> dict[str, str]:
    spec = InferenceModelSpec.model_validate({"model": {"source": "file:///m.gguf"}})
    rendered = template.render(AGENTS, model, spec, operator_settings(helm))
    labels: dict[str, str] = rendered.pod_template["metadata"]["labels"]
    return labels


@pytest.mark.parametrize("release", [RELEASE, "another"])
@pytest.mark.parametrize("component", ["operator", "gateway"])
def test_the_charts_pods_reach_engines(helm: Helm, release: str, component: str) -> None:
    deployments = select(helm.documents(release=release), "Deployment")
    (labels,) = [
        d["spec"]["template"]["metadata"]["labels"]
        for d in deployments
        if d["metadata"]["labels"][names.LABEL_COMPONENT] == component
    ]
    policy = engine_policy(helm)
    assert reaches(policy, labels, NAMESPACE, names.ENGINE_PORT)
    assert not reaches(policy, labels, "elsewhere", names.ENGINE_PORT)
    assert not reaches(policy, labels, NAMESPACE, 22)


def test_engines_reach_those_of_their_own_model_only(helm: Helm) -> None:
    policy = engine_policy(helm)
    assert is_selected(policy["spec"]["podSelector"], engine_labels(helm, "coder"))
    assert not is_selected(policy["spec"]["podSelector"], engine_labels(helm, "rival"))
    # A gang's ranks choose their ports.
    assert reaches(policy, engine_labels(helm, "coder"), AGENTS, 41234)
    assert not reaches(policy, engine_labels(helm, "coder"), "elsewhere", names.ENGINE_PORT)
    assert not reaches(policy, engine_labels(helm, "rival"), AGENTS, names.ENGINE_PORT)


def test_a_scraper_reaches_engines_when_it_is_named(helm: Helm) -> None:
    peer = "networkPolicy.enginePeers[0]"
    named = (
        *("--set", f"{peer}.namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=metrics"),
        *("--set", f"{peer}.podSelector.matchLabels.app=prometheus"),
    )
    port = names.ENGINE_PORT
    assert not reaches(engine_policy(helm), SCRAPER, "metrics", port)
    assert reaches(engine_policy(helm, *named), SCRAPER, "metrics", port)
    assert not reaches(engine_policy(helm, *named), SCRAPER, AGENTS, port)


def test_everyone_reaches_gateway_and_operator_on_their_one_port(helm: Helm) -> None:
    documents = helm.documents()
    ports = {"gateway": names.GATEWAY_PORT, "operator": names.OPERATOR_METRICS_PORT}
    for component, port in ports.items():
        policy = one(documents, "NetworkPolicy", f"{RELEASE}-{component}")
        for other in ports:
            labels = pod_template(helm, other)["metadata"]["labels"]
            assert is_selected(policy["spec"]["podSelector"], labels) == (other == component)
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert reaches(policy, {"any": "pod"}, "anywhere", port)
        assert not reaches(policy, {"any": "pod"}, "anywhere", port + 1)


def test_policies_can_be_switched_off(helm: Helm) -> None:
    off = ("--set", "networkPolicy.enabled=false")
    assert select(helm.documents(*off), "NetworkPolicy") == []
    assert operator_settings(helm, *off).clients is None
