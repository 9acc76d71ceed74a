"""One builder per child object. Each returns the whole document that we want applied. Pure."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipstream_api import names
from slipstream_operator import documents
from slipstream_operator.documents import Document
from slipstream_operator.rotation import Keys
from slipstream_operator.settings import Clients
from slipstream_operator.template import Rendered, identity_labels

ANNOTATION_DRAINING_SINCE = f"{names.GROUP}/draining-since"
ANNOTATION_TOKEN_STEPPED_AT = f"{names.GROUP}/token-stepped-at"
MODEL_KIND = "InferenceModel"
# Kubernetes itself puts it on every namespace.
LABEL_NAMESPACE_NAME = "kubernetes.io/metadata.name"


def owner_reference(model: Mapping[str, Any], *, controller: bool = True) -> Document:
    """What lets the garbage collector remove a child, also while no operator runs."""
    reference: Document = {
        "apiVersion": names.API_VERSION,
        "kind": MODEL_KIND,
        "name": documents.name(model),
        "uid": documents.uid(model),
    }
    return {**reference, "controller": True} if controller else reference


def pod(model: Mapping[str, Any], rendered: Rendered, ordinal: int) -> Document:
    template = copy.deepcopy(rendered.pod_template)
    labels = {
        **(template["metadata"].get("labels") or {}),
        names.LABEL_TRACK: names.TRACK_STABLE,
        names.LABEL_ORDINAL: str(ordinal),
    }
    metadata = {
        **_metadata(model, names.pod_name(documents.name(model), rendered.revision, ordinal)),
        "labels": labels,
    }
    if template["metadata"].get("annotations"):
        metadata["annotations"] = template["metadata"]["annotations"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def config_map(model: Mapping[str, Any], rendered: Rendered) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _revision_metadata(model, rendered.revision),
        "immutable": True,
        "data": {"engine.json": rendered.engine_config},
    }


def controller_revision(
    model: Mapping[str, Any], rendered: Rendered, *, spec_hash: str, number: int
) -> Document:
    metadata = _revision_metadata(model, rendered.revision)
    metadata["labels"][names.LABEL_SPEC_HASH] = spec_hash
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata,
        "revision": number,
        "data": {
            "podTemplate": rendered.pod_template,
            "engineConfig": rendered.engine_config,
            "image": rendered.image,
            "source": rendered.source,
            "podDefaultsDigest": rendered.pod_defaults_digest,
        },
    }


def service(model: Mapping[str, Any], revision: str) -> Document:
    """Headless: gateways read its EndpointSlices, which hold ready Pods only.

    publishNotReadyAddresses stays unset: the API server does not keep a false.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _revision_metadata(model, revision),
        "spec": {
            "clusterIP": "None",
            "selector": {
                names.LABEL_MODEL: documents.name(model),
                names.LABEL_REVISION: revision,
            },
            "ports": [
                {
                    "name": names.ENGINE_PORT_NAME,
                    "port": names.ENGINE_PORT,
                    "targetPort": names.ENGINE_PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }


def route(
    model: Mapping[str, Any],
    *,
    client_names: Sequence[str],
    revision: str,
    draining_pods: Iterable[str],
    draining_since: str | None,
) -> Document:
    metadata = _metadata(model, documents.name(model))
    if draining_since is not None:
        metadata["annotations"] = {ANNOTATION_DRAINING_SINCE: draining_since}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ModelRoute",
        "metadata": metadata,
        "spec": {
            "model": documents.name(model),
            "names": list(client_names),
            "tracks": [
                {
                    "name": names.TRACK_STABLE,
                    "revision": revision,
                    "service": names.revision_name(documents.name(model), revision),
                    "port": names.ENGINE_PORT,
                    "weight": 10_000,
                    "drainingPods": sorted(draining_pods),
                }
            ],
        },
    }


def token_keys(secret: Mapping[str, Any]) -> Keys:
    data = {str(key): str(value) for key, value in (secret.get("data") or {}).items()}
    return Keys(data, documents.annotation(secret, ANNOTATION_TOKEN_STEPPED_AT))


def token_secret(
    namespace: str,
    owners: Sequence[Mapping[str, Any]],
    keys: Keys,
    *,
    observed: Mapping[str, Any] | None,
) -> Document:
    """The namespace's internal token; every model owns it, so it goes with the last one.

    It replaces exactly the version that was observed: keys from an old snapshot must not undo a
    step that another pass, another operator or a person took meanwhile.
    """
    ordered = sorted(owners, key=lambda m: (documents.name(m), documents.uid(m)))
    metadata: Document = {
        "name": names.TOKEN_SECRET,
        "namespace": namespace,
        "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
        "ownerReferences": [owner_reference(m, controller=False) for m in ordered],
    }
    if keys.stepped_at is not None:
        metadata["annotations"] = {ANNOTATION_TOKEN_STEPPED_AT: keys.stepped_at}
    for key in ("uid", "resourceVersion"):
        if observed is not None and key in observed["metadata"]:
            metadata[key] = observed["metadata"][key]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": metadata,
        "data": dict(keys.data),
    }


def network_policy(model: Mapping[str, Any], clients: Clients) -> Document:
    """Who may open connections to a model's engines: gateways and operators of ours, its own
    engines (the ranks of a gang), and the peers of the settings. The kubelet's probes come from
    the node, which no policy shuts out.

    Metrics have the port of everything else, so that a scraper must be one of the peers.
    """
    name = documents.name(model)
    engines = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_COMPONENT: "engine",
        names.LABEL_MODEL: name,
    }
    ours = {
        "namespaceSelector": {"matchLabels": {LABEL_NAMESPACE_NAME: clients.namespace}},
        "podSelector": {
            "matchLabels": {names.LABEL_PART_OF: names.PART_OF},
            "matchExpressions": [
                {
                    "key": names.LABEL_COMPONENT,
                    "operator": "In",
                    "values": ["gateway", "judge", "operator"],
                }
            ],
        },
    }
    port = {"port": names.ENGINE_PORT, "protocol": "TCP"}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(model, names.policy_name(name)),
        "spec": {
            "podSelector": {"matchLabels": engines},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [ours, *clients.peers], "ports": [port]},
                # Ranks talk on ports that they choose.
                {"from": [{"podSelector": {"matchLabels": engines}}]},
            ],
        },
    }


def _metadata(model: Mapping[str, Any], name: str) -> Document:
    return {
        "name": name,
        "namespace": documents.namespace(model),
        "labels": {
            names.LABEL_MANAGED_BY: names.MANAGED_BY,
            names.LABEL_MODEL: documents.name(model),
        },
        "ownerReferences": [owner_reference(model)],
    }


def _revision_metadata(model: Mapping[str, Any], revision: str) -> Document:
    name = documents.name(model)
    metadata = _metadata(model, names.revision_name(name, revision))
    metadata["labels"] = identity_labels(name, revision)
    return metadata
