"""One Slipstream, installed by its chart, for all end-to-end tests; each test its own namespace."""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import yaml

from slipstream_cli import install
from slipstream_cli.kubectl import Cluster

T = TypeVar("T")

# A model of 135 million parameters on a shared machine: loading is what takes the time.
READY_LIMIT_S = 150.0
SETTLE_LIMIT_S = 60.0


@pytest.fixture(scope="session")
def installed(repository: Path, node_cluster: Path) -> Cluster:
    """The cluster with the chart installed; where it was made by us, its values mount our code."""
    cluster, values = install.target(node_cluster, repository)
    install.install(cluster, repository / "charts/slipstream", values)
    return cluster


@pytest.fixture(scope="session")
def gateway_url(installed: Cluster) -> Iterator[str]:
    with installed.forward(install.NAMESPACE, install.GATEWAY_TARGET, 80) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def namespace(installed: Cluster) -> Iterator[str]:
    """A namespace that goes with the test, and must go within a deadline."""
    name = f"e2e-{secrets.token_hex(3)}"
    installed.run_kubectl("create", "namespace", name)
    yield name
    installed.run_kubectl("delete", "namespace", name, "--timeout=120s", timeout_s=130)


@pytest.fixture
def models(installed: Cluster, namespace: str, repository: Path) -> "Models":
    return Models(installed, namespace, repository)


class Models:
    """What a platform engineer does with models, in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, repository: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        text = (repository / "crds/examples/smollm2.yaml").read_text(encoding="utf-8")
        self.sample: dict[str, Any] = yaml.safe_load(text)

    def kubectl(self, *arguments: str, document: str | None = None, timeout_s: float = 60) -> str:
        return self.cluster.run_kubectl(
            "-n", self.namespace, *arguments, document=document, timeout_s=timeout_s
        )

    def apply(self, name: str, **changes: Any) -> None:
        """Apply the sample under a name. Changes are dotted with `__`: model__maxContext=512."""
        spec = yaml.safe_load(yaml.safe_dump(self.sample["spec"]))
        spec["model"]["aliases"] = []
        for path, value in changes.items():
            *parents, last = path.split("__")
            target = spec
            for parent in parents:
                target = target.setdefault(parent, {})
            target[last] = value
        document = {**self.sample, "metadata": {"name": name}, "spec": spec}
        self.kubectl("apply", "-f", "-", document=yaml.safe_dump(document))

    def get(self, name: str) -> dict[str, Any]:
        found = self.cluster.get("-n", self.namespace, "inferencemodel", name)
        assert found is not None, f"inferencemodel {name} is gone"
        return found

    def condition(self, name: str, type_: str) -> dict[str, Any]:
        """One condition; an empty one while the operator has not written any."""
        conditions = self.get(name).get("status", {}).get("conditions", [])
        found = [c for c in conditions if c["type"] == type_]
        return found[0] if found else {"status": "", "reason": "", "message": ""}

    def pods(self, name: str) -> list[dict[str, Any]]:
        found = self.cluster.get("-n", self.namespace, "pods", "-l", f"slipstream.dev/model={name}")
        items: list[dict[str, Any]] = (found or {}).get("items", [])
        return items

    def is_ready(self, name: str) -> bool:
        model = self.get(name)
        ready = self.condition(name, "Ready")
        current: bool = ready.get("observedGeneration") == model["metadata"]["generation"]
        return current and str(ready["status"]) == "True"

    def wait_ready(self, name: str, limit_s: float = READY_LIMIT_S) -> None:
        wait(
            lambda: self.is_ready(name),
            f"{name} Ready",
            limit_s,
            lambda: str(self.get(name).get("status")),
        )

    def wait_reason(self, name: str, reason: str, limit_s: float = SETTLE_LIMIT_S) -> str:
        """Wait until Ready=False for this reason; its message."""
        wait(
            lambda: self.condition(name, "Ready")["reason"] == reason,
            f"{name} says {reason}",
            limit_s,
            lambda: str(self.condition(name, "Ready")),
        )
        ready = self.condition(name, "Ready")
        assert ready["status"] == "False"
        message: str = ready["message"]
        return message


def wait(
    is_true: Callable[[], bool], what: str, limit_s: float, describe: Callable[[], str] = str
) -> None:
    """Poll until true; past the limit fail with what is there instead."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            pytest.fail(f"not after {limit_s:.0f} s: {what}. Now: {describe()}")
        time.sleep(0.3)


def kill_container(cluster: Cluster, namespace: str, pod: str) -> None:
    """kill -9 the main process of a Pod: by pid where the node is this machine, else by force."""
    document = cluster.get("-n", namespace, "pod", pod)
    assert document is not None, f"pod {pod} is gone"
    statuses = document["status"]["containerStatuses"]
    containers = [s["containerID"].rpartition("/")[2] for s in statuses]
    groups: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            groups[int(entry.name)] = (entry / "cgroup").read_text()
    inside = {pid for pid, group in groups.items() if any(c in group for c in containers)}
    for pid in inside:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if parent not in inside:
            os.kill(pid, signal.SIGKILL)
            return
    cluster.run_kubectl("-n", namespace, "delete", "pod", pod, "--grace-period=0", "--force")


def chat(url: str, model: str, text: str, **options: Any) -> httpx.Response:
    """One chat completion, not streamed."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
        **options,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
