"""One builder per child object. Each returns the whole document that we want applied. Pure."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipstream_api import names
from slipstream_operator import documents
from slipstream_operator.documents import Document
from slipstream_operator.template import Rendered, identity_labels

ANNOTATION_DRAINING_SINCE = f"{names.GROUP}/draining-since"
MODEL_KIND = "InferenceModel"


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


def token_secret(
    namespace: str, owners: Sequence[Mapping[str, Any]], data: Mapping[str, str]
) -> Document:
    """The namespace's internal token; every model owns it, so it goes with the last one."""
    ordered = sorted(owners, key=lambda m: (documents.name(m), documents.uid(m)))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": names.TOKEN_SECRET,
            "namespace": namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
            "ownerReferences": [owner_reference(m, controller=False) for m in ordered],
        },
        "data": dict(data),
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
