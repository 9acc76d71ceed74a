"""The Pod template of one engine revision and the engine's configuration: rendered once.

Pure: spec and settings in, documents out. Knows no replica, no track, no cluster.
"""

from dataclasses import dataclass

from slipstream_api import names
from slipstream_api.config import (
    EngineConfig,
    EngineModelConfig,
    EngineServerConfig,
    dump,
)
from slipstream_api.inferencemodel import InferenceModelSpec
from slipstream_operator import documents
from slipstream_operator.documents import Document
from slipstream_operator.merge import MergeError, merge
from slipstream_operator.settings import Settings

ANNOTATION_SOURCE = f"{names.GROUP}/source"

_CONFIG_VOLUME = "slipstream-config"
_TOKEN_VOLUME = "slipstream-token"  # noqa: S105  (a volume name)
_TMP_VOLUME = "slipstream-tmp"
_MODEL_VOLUME = "slipstream-model"

# A distroless image's `nonroot`.
_USER_ID = 65532
# Ten minutes to load a checkpoint before the kubelet restarts the engine.
_STARTUP_PERIOD_S = 2
_STARTUP_FAILURES = 300


@dataclass(frozen=True, slots=True)
class Rendered:
    """One revision, complete: enough to rebuild its Pods without the spec."""

    revision: str
    pod_template: Document
    engine_config: str
    image: str
    source: str
    pod_defaults_digest: str


@dataclass(frozen=True, slots=True)
class _Weights:
    path: str
    claim: str | None


def render(namespace: str, model: str, spec: InferenceModelSpec, settings: Settings) -> Rendered:
    """The revision that a spec comes to today. Raises MergeError with a path in the spec."""
    blank_config = _engine_config(namespace, model, spec, settings, revision="-")
    blank_template = _pod_template(model, spec, settings, revision="")
    revision = documents.digest(documents.canonical(blank_template), blank_config)
    revision = revision[: names.REVISION_LEN]
    return Rendered(
        revision=revision,
        pod_template=_pod_template(model, spec, settings, revision=revision),
        engine_config=_engine_config(namespace, model, spec, settings, revision=revision),
        image=_image(spec, settings),
        source=_source(spec),
        pod_defaults_digest=documents.digest(
            documents.canonical(settings.pod_defaults),
            documents.canonical(settings.engine_resources),
        ),
    )


def _image(spec: InferenceModelSpec, settings: Settings) -> str:
    return spec.engine.image or settings.engine_image


def _source(spec: InferenceModelSpec) -> str:
    revision = spec.model.revision
    return f"{spec.model.source}@{revision}" if revision else spec.model.source


def _weights(source: str) -> _Weights:
    scheme, _, rest = source.partition("://")
    if scheme == "file":
        return _Weights(path=rest, claim=None)
    claim, _, path = rest.partition("/")
    return _Weights(path=f"{names.MODELS_DIR}/{claim}/{path}", claim=claim)


def _engine_config(
    namespace: str, model: str, spec: InferenceModelSpec, settings: Settings, *, revision: str
) -> str:
    return dump(
        EngineConfig(
            schema_version=1,
            revision=revision,
            model=EngineModelConfig(
                name=model,
                namespace=namespace,
                path=_weights(spec.model.source).path,
                max_context=spec.model.max_context,
                tool_call_format=spec.model.tool_call_format,
                reasoning_format=spec.model.reasoning_format,
            ),
            server=EngineServerConfig(drain_timeout_s=settings.drain_timeout_s),
        )
    )


def identity_labels(model: str, revision: str) -> dict[str, str]:
    """The labels that Services select by; no podTemplate may change them."""
    return {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_COMPONENT: "engine",
        names.LABEL_MODEL: model,
        names.LABEL_REVISION: revision,
    }


def _pod_template(
    model: str, spec: InferenceModelSpec, settings: Settings, *, revision: str
) -> Document:
    template: Document = {
        "metadata": {
            "labels": {names.LABEL_NAME: "slipstream-engine"},
            "annotations": {ANNOTATION_SOURCE: _source(spec)},
        },
        "spec": _pod_spec(model, spec, settings, revision=revision),
    }
    template = merge(template, settings.pod_defaults)
    try:
        template = merge(template, spec.pod_template)
        _check(template)
    except MergeError as error:
        raise MergeError(error.message, f"spec.podTemplate.{error.field}") from error
    labels = template["metadata"].get("labels") or {}
    template["metadata"]["labels"] = {**labels, **identity_labels(model, revision)}
    return template


def _check(template: Document) -> None:
    """What later code and the Pod's identity rest on; the rest is the API server's to judge."""
    for key in template:
        if key not in ("metadata", "spec"):
            raise MergeError("unknown field: only metadata and spec", key)
    for key in ("metadata", "spec"):
        if not isinstance(template.get(key), dict):
            raise MergeError("must be an object", key)
    for key in template["metadata"]:
        if key not in ("labels", "annotations"):
            raise MergeError("unknown field: only labels and annotations", f"metadata.{key}")
    for key in ("labels", "annotations"):
        for label, value in (template["metadata"].get(key) or {}).items():
            if not isinstance(value, str):
                raise MergeError("must be a string", f"metadata.{key}.{label}")
    containers = template["spec"].get("containers") or []
    if not any(c.get("name") == names.ENGINE_CONTAINER for c in containers):
        raise MergeError(f"the container {names.ENGINE_CONTAINER} must stay", "spec.containers")
    if template["spec"].get("restartPolicy") != "Always":
        raise MergeError("must be Always: a dead engine is restarted", "spec.restartPolicy")


def _pod_spec(
    model: str, spec: InferenceModelSpec, settings: Settings, *, revision: str
) -> Document:
    weights = _weights(spec.model.source)
    volumes: list[Document] = [
        {
            "name": _CONFIG_VOLUME,
            "configMap": {"name": names.revision_name(model, revision)},
        },
        {"name": _TOKEN_VOLUME, "secret": {"secretName": names.TOKEN_SECRET}},
        {"name": _TMP_VOLUME, "emptyDir": {}},
    ]
    mounts: list[Document] = [
        {"name": _CONFIG_VOLUME, "mountPath": names.CONFIG_DIR, "readOnly": True},
        {"name": _TOKEN_VOLUME, "mountPath": names.TOKEN_DIR, "readOnly": True},
        {"name": _TMP_VOLUME, "mountPath": "/tmp"},  # noqa: S108  (the only writable folder)
    ]
    if weights.claim is not None:
        claim = {"claimName": weights.claim, "readOnly": True}
        volumes.append({"name": _MODEL_VOLUME, "persistentVolumeClaim": claim})
        path = f"{names.MODELS_DIR}/{weights.claim}"
        mounts.append({"name": _MODEL_VOLUME, "mountPath": path, "readOnly": True})
    return {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": settings.drain_timeout_s + 10,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The first process of a namespace of its own ignores SIGTERM until it handles it: an engine
        # that is stopped while it starts would hold its devices for the whole grace period.
        "shareProcessNamespace": True,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "fsGroup": _USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_engine(_image(spec, settings), settings.engine_resources, mounts)],
        "volumes": volumes,
    }


def _engine(image: str, resources: Document, mounts: list[Document]) -> Document:
    return {
        "name": names.ENGINE_CONTAINER,
        "image": image,
        "args": ["engine", "serve", "--config", f"{names.CONFIG_DIR}/engine.json"],
        "ports": [
            {"name": names.ENGINE_PORT_NAME, "containerPort": names.ENGINE_PORT, "protocol": "TCP"}
        ],
        "resources": resources,
        "startupProbe": _probe("/health", _STARTUP_PERIOD_S, _STARTUP_FAILURES),
        "livenessProbe": _probe("/health", 10, 3),
        "readinessProbe": _probe("/ready", 2, 2),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _probe(path: str, period_s: int, failures: int) -> Document:
    return {
        "httpGet": {"path": path, "port": names.ENGINE_PORT_NAME},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
