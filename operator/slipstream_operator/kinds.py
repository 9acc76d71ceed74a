"""The kinds that the operator watches and writes, with their addresses. Knows no cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream_api import names

OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind; the selectors limit what the API server sends us of it."""

    group: str
    version: str
    kind: str
    plural: str
    labels: str | None = OURS
    fields: str | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """The address of a collection or of one object."""
        parts = ["apis", self.group] if self.group else ["api"]
        parts.append(self.version)
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        return "/" + "/".join(parts)


MODEL = Kind(names.GROUP, names.VERSION, "InferenceModel", "inferencemodels", None)
ROUTE = Kind(names.GROUP, names.VERSION, "ModelRoute", "modelroutes")
POD = Kind("", "v1", "Pod", "pods")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SERVICE = Kind("", "v1", "Service", "services")
# By name, so that the right to read this one Secret is enough.
SECRET = Kind("", "v1", "Secret", "secrets", fields=f"metadata.name={names.TOKEN_SECRET}")
REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions")
POLICY = Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
EVENT = Kind("events.k8s.io", "v1", "Event", "events", None)

WATCHED = (MODEL, ROUTE, POD, CONFIG_MAP, SERVICE, SECRET, REVISION, POLICY, LEASE)
_BY_NAME = {kind.kind: kind for kind in (*WATCHED, EVENT)}


def of(document: Mapping[str, Any]) -> Kind:
    return by_name(str(document["kind"]))


def by_name(kind: str) -> Kind:
    return _BY_NAME[kind]
