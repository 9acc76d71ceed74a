"""Kubernetes' restricted Pod security level, as far as our Pods can break it. Pure.

Written from the Pod Security Standards; the API server's own judgement is asked in
test_server.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any

VOLUME_KINDS = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(spec: Mapping[str, Any]) -> list[str]:
    """What keeps a Pod spec out of a restricted namespace."""
    return [*_pod(spec), *(v for c in _containers(spec) for v in _container(c, spec))]


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("containers", "initContainers", "ephemeralContainers"):
        yield from spec.get(key) or []


def _pod(spec: Mapping[str, Any]) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield key
    for volume in spec.get("volumes") or []:
        for kind in set(volume) - {"name"} - VOLUME_KINDS:
            yield f"volume {volume['name']}: {kind}"
    context = spec.get("securityContext") or {}
    if context.get("sysctls"):
        yield "sysctls"


def _container(container: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    pod = spec.get("securityContext") or {}
    name = container["name"]

    def effective(key: str) -> Any:
        return own.get(key, pod.get(key))

    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []):
        yield f"{name}: capabilities are not dropped"
    if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities are added"
    if effective("runAsNonRoot") is not True:
        yield f"{name}: runAsNonRoot"
    if effective("runAsUser") == 0:
        yield f"{name}: runAsUser"
    if (effective("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield f"{name}: seccompProfile"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield f"{name}: hostPort"
    if (own.get("procMount") or "Default") != "Default":
        yield f"{name}: procMount"
