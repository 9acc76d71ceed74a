"""InferenceModel: which weights, how to run them, how many replicas. The user's only document.

A field enters here together with its behaviour. Validation that a single field can state stands
in its type; rules over several fields are CEL in `crds.py`, so that the API server refuses them.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from slipstream_api import names
from slipstream_api.conditions import Condition
from slipstream_api.config import ReasoningFormat, ToolCallFormat
from slipstream_api.schema import KubeModel

SOURCE_PATTERN = r"^(file:///[^\s]+|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[^\s]+)$"
# A client may send what a model hub would call it: letters, digits and -_./: between them.
ALIAS_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.:/]*[A-Za-z0-9])?$"

Alias = Annotated[str, Field(min_length=1, max_length=128, pattern=ALIAS_PATTERN)]


class ModelSource(KubeModel):
    """Which weights, and under which names clients may ask for them."""

    source: str = Field(
        min_length=8,
        max_length=1024,
        pattern=SOURCE_PATTERN,
        description="file:///path in the engine's container, or pvc://claim/path. A GGUF file or"
        " a Hugging Face folder with safetensors.",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="A name for this version of the weights. Changing it makes a new revision even"
        " when the source stays the same.",
    )
    aliases: list[Alias] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Further model names that clients may send. Changing them restarts nothing.",
    )
    max_context: int | None = Field(
        default=None,
        ge=128,
        le=10_485_760,
        description="Prompt plus output, in tokens. Unset: what the checkpoint says.",
    )
    tool_call_format: ToolCallFormat = Field(
        default="auto",
        description="How the model writes calls of tools. auto: by its chat template; none: tools"
        " are refused.",
    )
    reasoning_format: ReasoningFormat = Field(
        default="auto",
        description="How the model marks its thinking. auto: by its chat template; none: it is"
        " content.",
    )


class EngineSpec(KubeModel):
    """What runs the model."""

    runtime: Literal["slipstream"] = "slipstream"
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Unset: the chart's engine image, recorded when this spec was first resolved.",
    )


class Scaling(KubeModel):
    """How many replicas."""

    mode: Literal["Fixed"] = "Fixed"
    replicas: int = Field(
        default=1,
        ge=0,
        le=names.MAX_REPLICAS,
        description="The scale subresource: `kubectl scale inferencemodel NAME --replicas=N`.",
    )


class InferenceModelSpec(KubeModel):
    model: ModelSource
    engine: EngineSpec = Field(default_factory=EngineSpec)
    scaling: Scaling = Field(default_factory=Scaling)
    pod_template: dict[str, Any] = Field(
        default_factory=dict,
        description="Merged last into the engine Pod: {metadata: {labels, annotations}, spec: …}."
        " Lists of named things (containers, volumes, env) merge by name.",
    )


class Resolved(KubeModel):
    """What the spec came to mean; kept so that an operator upgrade changes no running model."""

    spec_hash: str
    revision: str
    image: str
    source: str = Field(description="source@revision, or the source alone.")
    pod_defaults_digest: str = Field(description="sha256 of the chart's pod defaults then used.")


class InferenceModelStatus(KubeModel):
    observed_generation: int | None = Field(default=None, ge=0)
    replicas: int = Field(default=0, ge=0)
    ready_replicas: int = Field(default=0, ge=0)
    updated_replicas: int = Field(default=0, ge=0)
    selector: str | None = None
    resolved: Resolved | None = None
    conditions: list[Condition] = Field(
        default_factory=list,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )
