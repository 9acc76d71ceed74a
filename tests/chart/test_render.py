"""What the chart renders: golden files, configuration that its readers accept, next steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream_api import config, crds, names
from tests.chart.helm import NAMESPACE, RELEASE, Helm, HelmError, one, select

VALUES = ("default", "namespaced", "thin", "everything")


@pytest.mark.parametrize("name", VALUES)
def test_lint_finds_nothing(helm: Helm, values_dir: Path, name: str) -> None:
    report = helm.lint("-f", str(values_dir / f"{name}.yaml"))
    assert "1 chart(s) linted, 0 chart(s) failed" in report
    assert "[WARNING]" not in report


@pytest.mark.parametrize("name", VALUES)
def test_rendered_chart_equals_its_golden_file(
    helm: Helm, values_dir: Path, golden: Callable[[Path, str], None], name: str
) -> None:
    # The definitions are generated and compared with their source below.
    text = helm.text("-f", str(values_dir / f"{name}.yaml"), "--set", "crds.install=false")
    golden(Path(__file__).parent / f"golden/{name}.yaml", text)


@pytest.mark.parametrize("keep", [True, False])
def test_definitions_are_the_generated_ones(helm: Helm, keep: bool) -> None:
    rendered = select(
        helm.documents("--set", f"crds.keep={str(keep).lower()}"), "CustomResourceDefinition"
    )
    expected = {d["metadata"]["name"]: d for d in map(yaml.safe_load, crds.generate().values())}
    assert len(rendered) == len(expected)
    for document in rendered:
        annotations = document["metadata"].pop("annotations") or {}
        assert annotations == ({"helm.sh/resource-policy": "keep"} if keep else {})
        assert document == expected[document["metadata"]["name"]]


def test_definitions_can_be_left_to_the_administrator(helm: Helm) -> None:
    documents = helm.documents("--set", "crds.install=false")
    assert select(documents, "CustomResourceDefinition") == []


def test_rendered_text_holds_no_template_of_its_own(helm: Helm) -> None:
    assert "{{" not in helm.text()


def component_config(helm: Helm, component: str, *arguments: str) -> str:
    config_map = one(helm.documents(*arguments), "ConfigMap", f"{RELEASE}-{component}")
    text: str = config_map["data"][f"{component}.json"]
    return text


def test_the_operator_accepts_its_configuration_and_reads_every_value(helm: Helm) -> None:
    text = component_config(
        helm,
        "operator",
        *("--set", "engine.image=mirror/engine:7", "--set", "engine.drainTimeoutSeconds=90"),
        *("--set", "engine.podDefaults.metadata.labels.team=a"),
        *("--set", "operator.leaseDurationSeconds=30", "--set", "operator.resyncSeconds=600"),
        *("--set", "operator.drainAcknowledgeSeconds=20"),
        *("--set", "engine.resources.requests.cpu=2,engine.resources.limits.memory=8Gi"),
        *("--set", "internalToken.rotateAfterHours=24,internalToken.settleSeconds=900"),
        *("--set", "networkPolicy.enabled=false"),
        *("--set", "networkPolicy.enginePeers[0].podSelector.matchLabels.app=prometheus"),
    )
    assert config.parse(config.OperatorConfig, text, origin="chart") == config.OperatorConfig(
        schema_version=1,
        engine_image="mirror/engine:7",
        engine_resources={
            "requests": {"cpu": 2, "memory": "512Mi"},
            "limits": {"memory": "8Gi"},
        },
        pod_defaults={"metadata": {"labels": {"team": "a"}}},
        namespaces=None,
        operator_namespace=NAMESPACE,
        lease_name="slipstream-operator",
        lease_duration_s=30,
        resync_s=600,
        drain_acknowledge_s=20,
        drain_timeout_s=90,
        token_rotate_after_s=24 * 3600,
        token_settle_s=900,
        network_policies=False,
        network_peers=[{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
    )


def test_a_rotation_after_zero_hours_is_none(helm: Helm) -> None:
    text = component_config(helm, "operator", "--set", "internalToken.rotateAfterHours=0")
    parsed = config.parse(config.OperatorConfig, text, origin="chart")
    assert parsed.token_rotate_after_s is None


def test_the_gateway_accepts_its_configuration_and_reads_every_value(helm: Helm) -> None:
    wanted = {
        "leaseDurationSeconds": 30,
        "retryAfterSeconds": 6,
        "connectTimeoutSeconds": 7,
        "readTimeoutSeconds": 400,
        "drainTimeoutSeconds": 80,
        "maxBodyBytes": 123456789,
        "observations": 100,
    }
    text = component_config(helm, "gateway", "--set-json", f"gateway={json.dumps(wanted)}")
    assert config.parse(config.GatewayConfig, text, origin="chart") == config.GatewayConfig(
        schema_version=1,
        namespaces=None,
        lease_duration_s=30,
        retry_after_s=6,
        connect_timeout_s=7,
        read_timeout_s=400,
        drain_timeout_s=80,
        max_body_bytes=123456789,
        observations=100,
    )


@pytest.mark.parametrize(
    ("component", "model"),
    [("operator", config.OperatorConfig), ("gateway", config.GatewayConfig)],
)
def test_the_charts_defaults_are_the_programs_defaults(
    helm: Helm, component: str, model: type[config.OperatorConfig | config.GatewayConfig]
) -> None:
    document = json.loads(component_config(helm, component))
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key in document and not field.is_required():
            default = field.get_default(call_default_factory=True)
            assert document[key] == default, key


@pytest.mark.parametrize("component", ["operator", "gateway"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(("rbac.namespaced=true",), [NAMESPACE], id="its own namespace"),
        pytest.param(
            ("rbac.namespaced=true", "watchNamespaces={b,a}"), ["a", "b"], id="those that are named"
        ),
        pytest.param((), None, id="all"),
    ],
)
def test_namespaces_to_watch_reach_both_components(
    helm: Helm, component: str, arguments: tuple[str, ...], expected: list[str] | None
) -> None:
    options = [option for argument in arguments for option in ("--set", argument)]
    document = json.loads(component_config(helm, component, *options))
    assert document.get("namespaces") == expected


def test_named_namespaces_without_namespaced_rights_are_refused(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"watchNamespaces needs rbac\.namespaced=true"):
        helm.text("--set", "watchNamespaces={a}")


@pytest.mark.parametrize(
    ("component", "arguments", "expected"),
    [
        ("operator", "", "slipstream-operator:0.1.0"),
        ("gateway", "image.registry=r.example/t", "r.example/t/slipstream-gateway:0.1.0"),
        ("gateway", "image.repository=one,image.tag=v2", "one:v2"),
        (
            "gateway",
            f"image.repository=one,image.digest=sha256:{'a' * 64}",
            f"one@sha256:{'a' * 64}",
        ),
        ("operator", "image.repository=one,operator.image.tag=v3", "one:v3"),
        (
            "operator",
            f"image.repository=one,image.digest=sha256:{'a' * 64},operator.image.repository=own",
            "own:0.1.0",
        ),
        ("operator", "image.registry=r.example,operator.image.repository=own", "own:0.1.0"),
    ],
)
def test_image_names(helm: Helm, component: str, arguments: str, expected: str) -> None:
    documents = helm.documents("--set", arguments)
    pod = one(documents, "Deployment", f"{RELEASE}-{component}")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == expected


def pod_template(helm: Helm, component: str, *arguments: str) -> dict[str, Any]:
    deployment = one(helm.documents(*arguments), "Deployment", f"{RELEASE}-{component}")
    template: dict[str, Any] = deployment["spec"]["template"]
    return template


def test_a_changed_configuration_restarts_its_reader_and_nobody_else(helm: Helm) -> None:
    change = ("--set", "engine.image=another:1")
    assert pod_template(helm, "operator") != pod_template(helm, "operator", *change)
    assert pod_template(helm, "gateway") == pod_template(helm, "gateway", *change)


def test_a_gateway_gets_time_to_finish_its_streams(helm: Helm) -> None:
    template = pod_template(helm, "gateway", "--set", "gateway.drainTimeoutSeconds=300")
    assert template["spec"]["terminationGracePeriodSeconds"] == 315


def test_ports_are_those_of_the_contract(helm: Helm) -> None:
    ports = {
        component: pod_template(helm, component)["spec"]["containers"][0]["ports"][0]
        for component in ("operator", "gateway")
    }
    assert ports["operator"]["containerPort"] == names.OPERATOR_METRICS_PORT
    assert ports["gateway"]["containerPort"] == names.GATEWAY_PORT


@pytest.mark.parametrize("release", ["slipstream", "a", "x" * 53])
def test_selectors_match_the_pods_they_are_for(helm: Helm, release: str) -> None:
    documents = helm.documents(release=release)
    templates = {
        d["metadata"]["labels"]["app.kubernetes.io/component"]: d["spec"]["template"]["metadata"]
        for d in select(documents, "Deployment")
    }
    selectors = [
        (d, d["spec"]["selector"].get("matchLabels", d["spec"]["selector"]))
        for kind in ("Deployment", "PodDisruptionBudget", "Service")
        for d in select(documents, kind)
    ]
    assert len(selectors) == 5
    for document, selector in selectors:
        component = document["metadata"]["labels"]["app.kubernetes.io/component"]
        for name, template in templates.items():
            matches = selector.items() <= template["labels"].items()
            assert matches == (name == component), document["metadata"]["name"]


def test_long_release_names_make_legal_object_names(helm: Helm) -> None:
    for document in helm.documents(release="x" * 53):
        assert len(document["metadata"]["name"]) <= 63


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (),
            "kubectl create namespace agents\n     kubectl apply -n agents -f crds/examples/",
        ),
        ((), "kubectl get configmap slipstream-operator -n slipstream-system -o jsonpath="),
        ((), "port-forward -n slipstream-system service/slipstream-gateway 8080:80"),
        ((), "It looks at every namespace."),
        (("rbac.namespaced=true", "watchNamespaces={b,a}"), "It looks at a, b only."),
        (("rbac.namespaced=true", "watchNamespaces={b,a}"), "are):\n\n     kubectl apply -n a -f"),
        (
            ("rbac.namespaced=true", "watchNamespaces={slipstream-system,team}"),
            "kubectl apply -n team -f",
        ),
        (("rbac.namespaced=true",), "\n\n     kubectl apply -n slipstream-system -f"),
    ],
)
def test_notes_name_the_next_command(
    helm: Helm, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    options = [option for argument in arguments for option in ("--set", argument)]
    assert expected in helm.notes(tmp_path, *options)
