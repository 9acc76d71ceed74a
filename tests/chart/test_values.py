"""The chart's values: a mistake is refused with its place, and the README tells every one."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.chart.helm import Helm, HelmError


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("replicaCount=2", "replicaCount"),
        ("operator.replicas=2", "replicas"),
        ("gateway.replicaCount=-1", "gateway/replicaCount"),
        ("gateway.replicaCount=two", "gateway/replicaCount"),
        ("operator.replicaCount=21", "operator/replicaCount"),
        ("image.pullPolicy=Sometimes", "image/pullPolicy"),
        ("image.digest=sha256:abc", "image/digest"),
        ("image.repository=a@sha256:abc", "image/repository"),
        ("image.registry=example.com/", "image/registry"),
        ("operator.image.tag=a/b", "operator/image/tag"),
        ("engine.image=two words", "engine/image"),
        ("engine.podDefaults.containers=1", "engine/podDefaults"),
        ("engine.podDefaults.metadata.labels.a=1", "engine/podDefaults/metadata/labels/a"),
        ("engine.drainTimeoutSeconds=0", "engine/drainTimeoutSeconds"),
        ("engine.resources.requests.memory=much", "engine/resources/requests/memory"),
        ("networkPolicy.enginePeers[0].namespace=monitoring", "networkPolicy/enginePeers/0"),
        ("networkPolicy.enginePeers={monitoring}", "networkPolicy/enginePeers/0"),
        ("internalToken.rotateAfterHours=-1", "internalToken/rotateAfterHours"),
        ("internalToken.settleSeconds=419", "internalToken/settleSeconds"),
        ("operator.command=slipstream", "operator/command"),
        ("operator.command={}", "operator/command"),
        ("gateway.extraEnv[0].value=x", "gateway/extraEnv/0"),
        ("gateway.extraVolumeMounts[0].name=x", "gateway/extraVolumeMounts/0"),
        ("gateway.service.type=ExternalName", "gateway/service/type"),
        ("gateway.service.port=65536", "gateway/service/port"),
        ("gateway.maxBodyBytes=1", "gateway/maxBodyBytes"),
        ("gateway.resources.requests.memory=much", "gateway/resources/requests/memory"),
        ("gateway.podDisruptionBudget.maxUnavailable=some", "podDisruptionBudget/maxUnavailable"),
        ("operator.leaseDurationSeconds=1", "operator/leaseDurationSeconds"),
        ("operator.resyncSeconds=1.5", "operator/resyncSeconds"),
        ("watchNamespaces={Team_A}", "watchNamespaces/0"),
        ("watchNamespaces={a,a}", "watchNamespaces"),
        ("rbac.namespaced=maybe", "rbac/namespaced"),
        ("crds.delete=true", "crds"),
        ("imagePullSecrets={pull}", "imagePullSecrets/0"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(helm: Helm, value: str, place: str) -> None:
    with pytest.raises(HelmError) as caught:
        helm.text("--set", value)
    assert place in str(caught.value).replace(".", "/")


def values_of(helm: Helm) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((helm.chart / "values.yaml").read_text())
    return document


def test_the_schema_knows_exactly_the_keys_that_have_defaults(helm: Helm) -> None:
    schema = json.loads((helm.chart / "values.schema.json").read_text())
    defaults = values_of(helm)

    # May be set, and have no default.
    optional = {
        "": {"global"},
        "operator.resources": {"claims"},
        "gateway.resources": {"claims"},
        "engine.resources": {"claims", "limits"},
    }

    def owned(value: Mapping[str, Any], node: Mapping[str, Any], path: str) -> Iterator[str]:
        if "$ref" in node:
            node = schema["definitions"][node["$ref"].rsplit("/", 1)[-1]]
        if node.get("additionalProperties") is not False:
            return  # Kubernetes' own shape, not ours
        if set(node["properties"]) - optional.get(path, set()) != set(value) and value:
            yield f"{path}: {set(node['properties']) ^ set(value)}"
        for key, child in value.items():
            if isinstance(child, Mapping):
                yield from owned(child, node["properties"][key], f"{path}.{key}".strip("."))

    assert list(owned(defaults, schema, "")) == []
    assert schema["additionalProperties"] is False


BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"


def table(text: str) -> str:
    """The README's table: each value with the comment above it (`# --` begins one)."""
    rows = ["| Value | Default | What it says |", "|---|---|---|"]
    defaults = yaml.safe_load(text)
    path: list[str] = []
    comment = ""
    depth = 99
    for line in text.splitlines():
        stripped = line.strip()
        indent = (len(line) - len(line.lstrip())) // 2
        if stripped.startswith("# -- "):
            comment = stripped.removeprefix("# -- ")
        elif stripped.startswith("#"):
            comment = f"{comment} {stripped.removeprefix('#').strip()}" if comment else ""
        elif stripped and indent <= depth and (match := re.match(r"([A-Za-z]+):", stripped)):
            depth = 99
            path = [*path[:indent], match[1]]
            value = defaults
            for key in path:
                value = value[key]
            if comment or not isinstance(value, dict):
                default = json.dumps(value, ensure_ascii=False)
                rows.append(f"| `{'.'.join(path)}` | `{default}` | {comment} |")
                depth = indent if isinstance(value, dict | list) else 99
            comment = ""
    return "\n".join(rows) + "\n"


def test_the_readme_tells_every_value(helm: Helm, request: pytest.FixtureRequest) -> None:
    readme = helm.chart / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    current = before + BEGIN + table((helm.chart / "values.yaml").read_text()) + END + after
    if request.config.getoption("--update-golden"):
        readme.write_text(current, encoding="utf-8")
        return
    assert text == current


def test_every_value_says_what_it_is_for(helm: Helm) -> None:
    rows = table((helm.chart / "values.yaml").read_text()).splitlines()[2:]
    assert [row for row in rows if row.endswith("|  |")] == []
    assert len(rows) > 60
