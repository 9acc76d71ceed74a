"""A namespace on a real API server with what a gateway watches there, and questions about it."""

import base64
import socket
from dataclasses import dataclass
from typing import Any

from slipstream_api import names
from tests.controlplane.operator_kit import MODELS, Api


def machine_address() -> str:
    """An address of this machine that an EndpointSlice may hold: loopback is refused there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; asks the routing table
        address: str = probe.getsockname()[0]
        return address


@dataclass
class Place:
    """One test's namespace, and what stands in it."""

    api: Api
    namespace: str

    def path(self, *parts: str) -> str:
        return "/".join((f"/api/v1/namespaces/{self.namespace}", *parts))

    @property
    def routes(self) -> str:
        return f"{MODELS}/namespaces/{self.namespace}/modelroutes"

    def lease(self, name: str) -> dict[str, Any] | None:
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"
        return self.api.get(f"{leases}/{name}")

    def put_route(self, weights: dict[str, int], draining: tuple[str, ...] = ()) -> int:
        """The generation that the route has now."""
        spec = {
            "model": "coder",
            "names": ["coder", "fast", f"{self.namespace}/coder"],
            "tracks": [
                {
                    "name": track,
                    "revision": f"r-{track}",
                    "service": f"coder-{track}",
                    "port": 8000,
                    "weight": weight,
                    "drainingPods": list(draining),
                }
                for track, weight in weights.items()
            ],
        }
        document = {
            "apiVersion": names.API_VERSION,
            "kind": "ModelRoute",
            "metadata": {"name": "coder"},
            "spec": spec,
        }
        applied = self.api.apply(f"{self.routes}/coder", document)
        generation: int = applied["metadata"]["generation"]
        return generation

    def put_slice(self, track: str, engines: dict[str, int]) -> None:
        """One slice for each, since each engine here has its own port."""
        for pod, port in engines.items():
            name = f"coder-{track}-{pod}"
            path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices/{name}"
            labels = {
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                "kubernetes.io/service-name": f"coder-{track}",
            }
            endpoint = {
                "addresses": [machine_address()],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": self.namespace},
            }
            document = {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": name, "labels": labels},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
                "endpoints": [endpoint],
            }
            self.api.apply(path, document)

    def put_token(self, **keys: str) -> None:
        """The Secret as it is from now on; keys as in `names.TOKEN_KEYS`."""
        document = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": names.TOKEN_SECRET},
            "data": {k: base64.b64encode(v.encode()).decode() for k, v in keys.items()},
        }
        self.api.apply(self.path("secrets", names.TOKEN_SECRET), document)

    def take_out(self, gateway: str) -> dict[str, int]:
        """Do to a gateway's entry what the operator does when it takes the gateway for dead; the
        entries that were there then."""
        manager = names.gateway_field_manager(self.namespace, gateway)
        document = {
            "apiVersion": names.API_VERSION,
            "kind": "ModelRoute",
            "metadata": {"name": "coder"},
            "status": {"gateways": []},
        }
        path = f"{self.routes}/coder/status?fieldManager={manager}&force=true"
        kind = "application/apply-patch+yaml"
        return _entries(self.api.must("PATCH", path, document, kind=kind))

    def acknowledged(self) -> dict[str, int]:
        return _entries(self.api.get(f"{self.routes}/coder") or {})


def _entries(route: dict[str, Any]) -> dict[str, int]:
    entries = (route.get("status") or {}).get("gateways") or []
    return {entry["name"]: entry["observedGeneration"] for entry in entries}
