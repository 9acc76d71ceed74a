"""What the operator's control-plane tests share: processes, requests, waits, the audit log."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import KubeConfig

from slipstream_api import crds, names

T = TypeVar("T")
Document = dict[str, Any]

WAIT_S = 40.0
MODELS = f"/apis/{names.GROUP}/{names.VERSION}"
FAKE_NODE = "kwok.x-k8s.io/node"


def wait_for(question: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
    """Ask again until the answer is neither None nor False."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = question()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.1)


class Api:
    """Requests as the cluster's administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        config = KubeConfig.from_file(kubeconfig).get()
        if config is None:
            raise ValueError(f"{kubeconfig} names no cluster")
        self._http = client_adapter.Client(config, client_adapter.ConnectionParams())

    def close(self) -> None:
        self._http.close()

    def send(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json"
    ) -> httpx2.Response:
        content = None if body is None else json.dumps(body)
        return self._http.request(method, path, content=content, headers={"Content-Type": kind})

    def must(self, method: str, path: str, body: object = None, **options: str) -> Document:
        answer = self.send(method, path, body, **options)
        assert answer.is_success, answer.text
        return dict(answer.json())

    def get(self, path: str) -> Document | None:
        answer = self.send("GET", path)
        return dict(answer.json()) if answer.is_success else None

    def items(self, path: str) -> list[Document]:
        return list(self.must("GET", path)["items"])

    def merge(self, path: str, patch: Document) -> Document:
        return self.must("PATCH", path, patch, kind="application/merge-patch+json")

    def apply(self, path: str, document: Document) -> Document:
        return self.must(
            "PATCH",
            f"{path}?fieldManager=test&force=true",
            document,
            kind="application/apply-patch+yaml",
        )

    def model(self, namespace: str, name: str) -> Document | None:
        return self.get(f"{MODELS}/namespaces/{namespace}/inferencemodels/{name}")

    def pods(self, namespace: str) -> list[Document]:
        return self.items(f"/api/v1/namespaces/{namespace}/pods")

    def condition(self, namespace: str, name: str, type_: str) -> Document | None:
        """The condition, if it speaks of the newest generation."""
        model = self.model(namespace, name)
        if model is None:
            return None
        for condition in (model.get("status") or {}).get("conditions") or []:
            if condition["type"] == type_:
                current = condition["observedGeneration"] == model["metadata"]["generation"]
                return dict(condition) if current else None
        return None

    def wait_condition(
        self,
        namespace: str,
        name: str,
        type_: str,
        status: str,
        reason: str | None = None,
        *,
        timeout_s: float = WAIT_S,
    ) -> Document:
        def ask() -> Document | None:
            condition = self.condition(namespace, name, type_)
            if condition is None or condition["status"] != status:
                return None
            return condition if reason in (None, condition["reason"]) else None

        try:
            return wait_for(ask, f"{name}: {type_}={status} {reason or ''}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.model(namespace, name)}") from None


def prepare(api: Api) -> None:
    """CustomResourceDefinitions and one simulated node."""
    for kind in crds.KINDS:
        definition = crds.definition(kind)
        name = definition["metadata"]["name"]
        api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", definition)
    paths = [f"{MODELS}/{kind.plural}" for kind in crds.KINDS]
    wait_for(lambda: all(api.get(path) is not None for path in paths), "our kinds are served")
    node: Document = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "simulated", "labels": {"slipstream.dev/test": "simulated"}},
        "status": {
            key: {"cpu": "64", "memory": "256Gi", "pods": "250"}
            for key in ("capacity", "allocatable")
        },
    }
    node["metadata"]["annotations"] = {FAKE_NODE: "fake"}
    if api.get("/api/v1/nodes/simulated") is None:
        api.must("POST", "/api/v1/nodes", node)


@contextmanager
def prepared(kubeconfig: Path) -> Iterator[Api]:
    api = Api(kubeconfig)
    try:
        prepare(api)
        yield api
    finally:
        api.close()


class Link:
    """A TCP relay to the API server that can be cut: what an operator's network does to it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._is_cut = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Nothing gets through any more; open connections end."""
        self._is_cut.set()
        for end in list(self._open):
            self._end(end)

    def heal(self) -> None:
        self._is_cut.clear()

    def close(self) -> None:
        self.cut()
        self._end(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut.is_set():
                client.close()
                continue
            server = socket.create_connection(self._target)
            self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            self._end(end)

    def _end(self, end: socket.socket) -> None:
        self._open.discard(end)
        with suppress(OSError):  # the other direction may have been first
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def link(kubeconfig: Path, directory: Path) -> Iterator[tuple[Link, Path]]:
    """A cuttable way to the API server, and the kubeconfig that takes it."""
    text = kubeconfig.read_text(encoding="utf-8")
    config = KubeConfig.from_file(kubeconfig).get()
    if config is None:
        raise ValueError(f"{kubeconfig} names no cluster")
    server = urlsplit(config.cluster.server)
    relay = Link((str(server.hostname), int(server.port or 443)))
    copy = directory / "through-the-link.kubeconfig"
    copy.write_text(
        text.replace(config.cluster.server, f"https://127.0.0.1:{relay.port}"), encoding="utf-8"
    )
    try:
        yield relay, copy
    finally:
        relay.close()


def make_namespace(api: Api, name: str) -> str:
    if api.get(f"/api/v1/namespaces/{name}") is None:
        api.must(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        )
    return name


def model(name: str, **spec: Any) -> Document:
    source = spec.pop("source", "file:///models/tiny.gguf")
    aliases = spec.pop("aliases", [])
    return {
        "apiVersion": names.API_VERSION,
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {"model": {"source": source, "aliases": aliases}, **spec},
    }


def create_model(api: Api, namespace: str, document: Document) -> Document:
    return api.must("POST", f"{MODELS}/namespaces/{namespace}/inferencemodels", document)


def patch_model(api: Api, namespace: str, name: str, spec: Document) -> Document:
    path = f"{MODELS}/namespaces/{namespace}/inferencemodels/{name}"
    return api.merge(path, {"spec": spec})


def delete_model(api: Api, namespace: str, name: str) -> None:
    api.must("DELETE", f"{MODELS}/namespaces/{namespace}/inferencemodels/{name}")


def children(api: Api, namespace: str) -> list[str]:
    """Every object in a namespace that the operator made."""
    selector = f"?labelSelector={names.LABEL_MANAGED_BY}%3D{names.MANAGED_BY}"
    found: list[str] = []
    for path in (
        f"/api/v1/namespaces/{namespace}/pods",
        f"/api/v1/namespaces/{namespace}/configmaps",
        f"/api/v1/namespaces/{namespace}/services",
        f"/api/v1/namespaces/{namespace}/secrets",
        f"/apis/apps/v1/namespaces/{namespace}/controllerrevisions",
        f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
        f"{MODELS}/namespaces/{namespace}/modelroutes",
    ):
        plural = path.rpartition("/")[2]
        found += [f"{plural}/{i['metadata']['name']}" for i in api.items(path + selector)]
    return sorted(found)


@dataclass
class OperatorProcess:
    """`slipstream operator serve` as a child of the test."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    port: int

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"http://127.0.0.1:{self.port}{path}", timeout=5.0, trust_env=False)

    def metric(self, line: str) -> float:
        """The value of one series, written as it stands in the text format."""
        for row in self.get("/metrics").text.splitlines():
            if row.startswith(line + " "):
                return float(row.rpartition(" ")[2])
        raise AssertionError(f"no metric {line}")

    def is_leading(self) -> bool:
        try:
            return self.metric("slipstream_operator_leader") == 1.0
        except httpx2.HTTPError:
            return False

    def is_warm(self) -> bool:
        """Its caches are complete."""
        try:
            return self.get("/readyz").status_code == 200
        except httpx2.HTTPError:
            return False

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


def has_no_late_watch(process: OperatorProcess) -> bool:
    """What it wrote has come back through the watches; one that owes something gets ever later."""
    return process.metric("slipstream_operator_watch_age_seconds") < 2.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def operator(
    kubeconfig: Path,
    directory: Path,
    name: str,
    namespaces: list[str] | None,
    **settings: Any,
) -> Iterator[OperatorProcess]:
    """One operator process; its name is in its user agent, so the audit log tells who wrote."""
    port = free_port()
    config = {
        "schemaVersion": 1,
        "engineImage": "registry.invalid/engine:1",
        "operatorNamespace": "default",
        "leaseDurationS": 4,
        "metricsPort": port,
        "namespaces": namespaces,
        "drainAcknowledgeS": 1,
        "drainTimeoutS": 1,
        **settings,
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps(config))
    log = directory / f"{name}.log"
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": name}
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "slipstream_cli", "operator", "serve", "--config", str(path)],
            env=environment,
            stdout=sink,
            stderr=sink,
        )
    try:
        yield OperatorProcess(name, process, log, port)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(10)


def audit(log: Path, agent: str) -> list[Document]:
    """Accepted writes of one operator process, in the order in which the API server took them."""
    found: list[Document] = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the line that is being written
        if f"slipstream-operator/{agent}_" not in entry.get("userAgent", ""):
            continue
        if entry["verb"] not in ("create", "update", "patch", "delete"):
            continue
        if entry.get("responseStatus", {}).get("code", 500) < 400:
            found.append(entry)
    return sorted(found, key=lambda entry: str(entry["requestReceivedTimestamp"]))


def child_writes(log: Path, agent: str) -> list[Document]:
    """The same without the Lease itself."""
    return [e for e in audit(log, agent) if e["objectRef"]["resource"] != "leases"]
