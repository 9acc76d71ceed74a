"""What works on the real node: simulated GPUs, restricted pods, services, logs, forwarding."""

import json
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream_local import build, kubectl, topology, values
from slipstream_local.images import THIN_IMAGE

pytestmark = pytest.mark.cluster

LIMIT = "--timeout=60s"
PRINT_GPUS = (
    "import json, os; "
    "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('SLIPSTREAM_GPU_')}))"
)


class Node:
    """kubectl in one namespace of the local cluster."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        program = build.path_of("kube")
        return kubectl.must(
            program, self.kubeconfig, [f"--namespace={self.namespace}", *arguments], stdin
        )

    def create(self, *objects: dict[str, Any]) -> None:
        self.kubectl("create", "-f", "-", stdin=kubectl.list_of(objects))

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "-o", "json", *arguments))
        return found

    def wait_running(self, pod: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", LIMIT)


@pytest.fixture
def node(local_node: Path) -> Iterator[Node]:
    namespace = f"node-{secrets.token_hex(3)}"
    made = Node(local_node, namespace)
    made.kubectl("create", "namespace", namespace)
    yield made
    made.kubectl("delete", "pods", "--all", "--grace-period=1", LIMIT)
    made.kubectl("delete", "namespace", namespace, "--wait=false")


def pod(name: str, script: str, template: str | None = None) -> dict[str, Any]:
    """A pod as restricted as ours are, running Python from this machine's own files."""
    defaults = values.values({})["engine"]["podDefaults"]["spec"]
    (container,) = defaults["containers"]
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container = {
        **container,
        "image": THIN_IMAGE,
        "command": [container["command"][0], "-c", script],
        "securityContext": security,
    }
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": defaults["volumes"],
        "containers": [container],
        "nodeSelector": {"kubernetes.io/hostname": "node1"},
    }
    if template is not None:
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
        container["resources"] = {"claims": [{"name": "gpus"}]}
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim_template(name: str, num_gpus: int) -> dict[str, Any]:
    entry = {"deviceClassName": topology.DEVICE_CLASS, "count": num_gpus}
    tiers = [{"name": "same-root", **entry}, {"name": "same-node", **entry}]
    constraint = {"requests": ["gpus/same-root"], "matchAttribute": topology.PCIE_ROOT}
    devices = {
        "requests": [{"name": "gpus", "firstAvailable": tiers}],
        "constraints": [constraint],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def allocated(node: Node, name: str) -> tuple[set[str], set[str]]:
    """(tiers, devices) of the pod's claim."""
    statuses = node.get("pod", name)["status"]["resourceClaimStatuses"]
    claim = node.get("resourceclaim", statuses[0]["resourceClaimName"])
    results = claim["status"]["allocation"]["devices"]["results"]
    return {r["request"] for r in results}, {r["device"] for r in results}


def test_a_pod_with_a_claim_sees_its_gpus_in_its_environment(node: Node) -> None:
    script = f"{PRINT_GPUS}; import time; time.sleep(600)"
    names = ("first", "second")
    node.create(claim_template("pair", 2), *(pod(name, script, "pair") for name in names))
    seen: set[str] = set()
    for name in names:
        node.wait_running(name)
        tiers, devices = allocated(node, name)
        assert tiers == {"gpus/same-root"}
        python = node.get("pod", name)["spec"]["containers"][0]["command"][0]
        for text in (
            node.kubectl("logs", name),
            node.kubectl("exec", name, "--", python, "-c", PRINT_GPUS),
        ):
            variables = json.loads(text)
            assert set(variables.values()) == devices
            assert set(variables) == {
                f"SLIPSTREAM_GPU_{device.removeprefix('gpu-')}" for device in devices
            }
        seen |= devices
    assert len(seen) == 4, "two pods share a GPU"


def test_a_waiting_pod_starts_when_gpus_become_free(node: Node) -> None:
    script = "import time; time.sleep(600)"
    node.create(
        claim_template("six", 6),
        claim_template("four", 4),
        pod("holder", script, "six"),
    )
    node.wait_running("holder")
    node.create(pod("waiting", script, "four"))
    unschedulable = "--for=jsonpath={.status.conditions[0].reason}=Unschedulable"
    node.kubectl("wait", unschedulable, "pod/waiting", LIMIT)
    node.kubectl("delete", "pod", "holder", LIMIT)
    node.wait_running("waiting")
    assert allocated(node, "waiting")[0] == {"gpus/same-node"}


SERVE = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(os.getuid()).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(body)))
        self.end_headers(); self.wfile.write(body)
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer(('', 8000), Handler).serve_forever()
"""
ASK = """
import ssl, time, urllib.request
account = '/var/run/secrets/kubernetes.io/serviceaccount/'
def fetch(url, **options):
    for attempt in range(40):
        try:
            return urllib.request.urlopen(url, timeout=3, **options).read().decode()
        except OSError:
            time.sleep(0.25)
    return 'no answer'
print(fetch('http://web/'))
token = {'Authorization': 'Bearer ' + open(account + 'token').read()}
api = urllib.request.Request('https://kubernetes.default.svc/version', headers=token)
trust = ssl.create_default_context(cafile=account + 'ca.crt')
print('v1' if '"major": "1"' in fetch(api, context=trust) else 'no api')
"""


def service() -> dict[str, Any]:
    spec = {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8000}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}


def test_services_names_and_the_api_answer_from_inside_an_unprivileged_pod(node: Node) -> None:
    server = pod("server", SERVE)
    server["spec"]["containers"][0]["readinessProbe"] = {
        "httpGet": {"path": "/", "port": 8000},
        "periodSeconds": 1,
    }
    asker = pod("asker", ASK)
    asker["spec"]["restartPolicy"] = "Never"
    node.create(server, service())
    node.wait_running("server")
    node.create(asker)
    node.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/asker", LIMIT)
    assert node.kubectl("logs", "asker").split() == ["65532", "v1"]
    assert forwarded(node, "svc/web", 80) == "65532"


def forwarded(node: Node, target: str, port: int) -> str:
    """The answer through `kubectl port-forward`."""
    argv = [str(build.path_of("kube")), "kubectl", f"--kubeconfig={node.kubeconfig}"]
    argv += [f"--namespace={node.namespace}", "port-forward", target, f":{port}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # Forwarding from 127.0.0.1:NNNNN -> 8000
            local_port = int(line.split(" -> ")[0].rpartition(":")[2])
            deadline = time.monotonic() + 20
            while True:
                try:
                    url = f"http://127.0.0.1:{local_port}/"
                    with urllib.request.urlopen(url, timeout=5) as answer:
                        return str(answer.read().decode())
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
        finally:
            process.terminate()
            process.communicate(timeout=10)


def test_every_write_is_in_the_audit_log_with_its_user(node: Node) -> None:
    """Who wrote what and when can be told afterwards."""
    node.kubectl("create", "configmap", "written")
    log = node.kubeconfig.parent / "logs" / "audit.jsonl"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        events = [json.loads(line) for line in log.read_text().splitlines()]
        ours = [e for e in events if (e.get("objectRef") or {}).get("namespace") == node.namespace]
        writes = [e for e in ours if e["verb"] == "create" and e["objectRef"].get("name")]
        if any(e["objectRef"]["name"] == "written" for e in writes):
            break
        time.sleep(0.2)
    (event,) = [e for e in writes if e["objectRef"]["name"] == "written"]
    assert event["user"]["username"] == "kubernetes-admin"
    assert event["stageTimestamp"]
