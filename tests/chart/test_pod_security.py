"""Everything we ship fits Kubernetes' restricted level; host mounts come from values alone."""

import copy
from pathlib import Path
from typing import Any

import pytest

from slipstream_api.config import OperatorConfig
from slipstream_api.inferencemodel import InferenceModelSpec
from slipstream_operator import settings, template
from tests.chart import pod_security
from tests.chart.helm import Helm, select


def pod_specs(helm: Helm, *arguments: str) -> dict[str, dict[str, Any]]:
    deployments = select(helm.documents(*arguments), "Deployment")
    return {d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in deployments}


def engine_spec() -> dict[str, Any]:
    """An engine Pod as the operator renders it from the chart's defaults."""
    config = OperatorConfig(schema_version=1, engine_image="engine:1", operator_namespace="s")
    model = InferenceModelSpec.model_validate({"model": {"source": "pvc://weights/a"}})
    rendered = template.render("a", "m", model, settings.from_config(config))
    spec: dict[str, Any] = rendered.pod_template["spec"]
    return spec


@pytest.mark.parametrize("values", ["default", "namespaced", "everything"])
def test_our_pods_fit_the_restricted_level(helm: Helm, values_dir: Path, values: str) -> None:
    specs = pod_specs(helm, "-f", str(values_dir / f"{values}.yaml"))
    assert {name: pod_security.violations(spec) for name, spec in specs.items()} == {
        name: [] for name in specs
    }
    assert len(specs) == 2


def test_an_engine_pod_fits_the_restricted_level() -> None:
    assert pod_security.violations(engine_spec()) == []


def test_host_mounts_are_all_that_a_laptop_needs_beyond_it(helm: Helm, values_dir: Path) -> None:
    specs = pod_specs(helm, "-f", str(values_dir / "thin.yaml"))
    assert {name: pod_security.violations(spec) for name, spec in specs.items()} == {
        "slipstream-operator": ["volume venv: hostPath"],
        "slipstream-gateway": ["volume venv: hostPath"],
    }


def test_the_root_file_system_is_read_only_and_tmp_is_not(helm: Helm) -> None:
    for spec in [*pod_specs(helm).values(), engine_spec()]:
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        (tmp,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/tmp"]
        (volume,) = [v for v in spec["volumes"] if v["name"] == tmp]
        assert "emptyDir" in volume


@pytest.mark.parametrize(
    ("path", "value", "violation"),
    [
        ("hostNetwork", True, "hostNetwork"),
        ("hostPID", True, "hostPID"),
        ("hostIPC", True, "hostIPC"),
        ("volumes.0.hostPath", {"path": "/"}, "volume config: hostPath"),
        ("securityContext.runAsNonRoot", False, "operator: runAsNonRoot"),
        ("securityContext.runAsUser", 0, "operator: runAsUser"),
        ("securityContext.seccompProfile", None, "operator: seccompProfile"),
        ("securityContext.sysctls", [{"name": "a"}], "sysctls"),
        ("containers.0.securityContext.runAsUser", 0, "operator: runAsUser"),
        ("containers.0.securityContext.privileged", True, "operator: privileged"),
        (
            "containers.0.securityContext.capabilities.drop",
            [],
            "operator: capabilities are not dropped",
        ),
        (
            "containers.0.securityContext.capabilities.add",
            ["SYS_ADMIN"],
            "operator: capabilities are added",
        ),
        (
            "containers.0.securityContext.allowPrivilegeEscalation",
            None,
            "operator: allowPrivilegeEscalation",
        ),
        ("containers.0.securityContext.procMount", "Unmasked", "operator: procMount"),
        ("containers.0.ports.0.hostPort", 80, "operator: hostPort"),
    ],
)
@pytest.mark.slow
def test_the_check_sees_each_way_out(helm: Helm, path: str, value: Any, violation: str) -> None:
    spec = copy.deepcopy(pod_specs(helm)["slipstream-operator"])
    target: Any = spec
    *parents, last = path.split(".")
    for key in parents:
        target = target[int(key)] if key.isdigit() else target[key]
    target[last] = value
    assert pod_security.violations(spec) == [violation]
