"""The one mounted JSON file of each component: read once, versioned, unknown keys refused."""

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from slipstream_api import names
from slipstream_api.schema import ConfigModel
from slipstream_api.speculator import SpeculatorSpec

# How a model writes calls of tools, and its thinking. `auto`: by its chat template.
ToolCallFormat = Literal[
    "auto",
    "none",
    "hermes",
    "qwen3_coder",
    "glm45",
    "kimi_k2",
    "minimax_m2",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
]
ReasoningFormat = Literal["auto", "none", "think"]


class ConfigError(Exception):
    """A configuration that cannot be used: `field` is its path in the document."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message = message
        self.field = field


class OperatorConfig(ConfigModel):
    """`/etc/slipstream/operator.json`."""

    schema_version: Literal[1]
    engine_image: str = Field(min_length=1, description="Used where a model names none.")
    pod_defaults: dict[str, Any] = Field(
        default_factory=dict, description="Merged into every engine Pod before its podTemplate."
    )
    # Without a request a Pod is the first to be evicted. How much an engine needs depends on its
    # model, which the model's podTemplate says; this keeps two small ones on a laptop.
    engine_resources: dict[str, Any] = Field(
        default_factory=lambda: {"requests": {"cpu": "100m", "memory": "512Mi"}},
        description="Resources of an engine's container, below pod_defaults and podTemplate.",
    )
    # None: the whole cluster. A list: namespaced mode.
    namespaces: list[str] | None = None
    operator_namespace: str = Field(min_length=1)
    lease_name: str = "slipstream-operator"
    lease_duration_s: int = Field(default=15, ge=3, le=300)
    metrics_port: int = Field(default=names.OPERATOR_METRICS_PORT, ge=1, le=65535)
    resync_s: int = Field(default=300, ge=5)
    # How long a scale-down waits for gateways to take a draining Pod out of their tables.
    drain_acknowledge_s: int = Field(default=10, ge=0, le=600)
    # terminationGracePeriodSeconds of engine Pods: how long streams may take to finish.
    drain_timeout_s: int = Field(default=60, ge=1, le=3600)
    # Age at which a namespace's internal token is exchanged; None: never.
    token_rotate_after_s: int | None = Field(default=30 * 24 * 3600, ge=1)
    # From a change of the Secret until every engine and gateway surely knows it. Kubelets look at
    # mounted Secrets every minute or so and may believe a cached one for up to five (the `ttl`
    # annotation of nodes in large clusters); gateways see it in a watch, and use it at once.
    token_settle_s: int = Field(default=600, ge=1)
    # NetworkPolicies for engines: only gateways, operators and these further peers reach them.
    network_policies: bool = True
    network_peers: list[dict[str, Any]] = Field(
        default_factory=list, description="NetworkPolicyPeer objects, for example of Prometheus."
    )


class GatewayConfig(ConfigModel):
    """`/etc/slipstream/gateway.json`."""

    schema_version: Literal[1]
    namespaces: list[str] | None = None
    port: int = Field(default=names.GATEWAY_PORT, ge=0, le=65535)
    lease_duration_s: int = Field(default=20, ge=3, le=300)
    retry_after_s: int = Field(default=5, ge=1, le=600)
    connect_timeout_s: int = Field(default=5, ge=1, le=60)
    # Longest silence between two chunks of an engine's answer.
    read_timeout_s: int = Field(default=300, ge=1, le=3600)
    drain_timeout_s: int = Field(default=60, ge=0, le=3600)
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    # Finished requests kept for `/internal/v1/observations`.
    observations: int = Field(default=4096, ge=1, le=1_000_000)


class EngineModelConfig(ConfigModel):
    """Which checkpoint, and who it is."""

    name: str = Field(min_length=1)
    namespace: str = Field(min_length=1)
    path: str = Field(min_length=1, description="A .gguf file or a folder with safetensors.")
    max_context: int | None = Field(default=None, ge=128)
    digest: str | None = Field(
        default=None, description="Of the checkpoint where it is known; None: the engine finds out."
    )
    tool_call_format: ToolCallFormat = "auto"
    reasoning_format: ReasoningFormat = "auto"


class EngineServerConfig(ConfigModel):
    host: str = "0.0.0.0"  # noqa: S104  (a Pod's address is known to nobody beforehand)
    port: int = Field(default=names.ENGINE_PORT, ge=0, le=65535)
    drain_timeout_s: int = Field(default=60, ge=0, le=3600)
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    token_dir: str | None = Field(
        default=names.TOKEN_DIR, description="Folder with names.TOKEN_KEYS; None: no token."
    )


class EngineLimits(ConfigModel):
    max_running_sequences: int = Field(default=16, ge=1, le=4096)
    max_waiting_requests: int = Field(default=256, ge=1, le=65536)
    max_batch_tokens: int = Field(default=512, ge=1, le=1_048_576)
    # From a request's arrival to the end of its answer: where it names none, and at most.
    default_deadline_ms: int = Field(default=3_600_000, ge=1)
    max_deadline_ms: int = Field(default=3_600_000, ge=1)


class EnginePages(ConfigModel):
    page_tokens: int = Field(default=16, ge=1, le=1024)
    # Bytes of all KV pages together. None: enough for max_running_sequences of 2048 tokens, or
    # one whole context where that is more.
    kv_bytes: int | None = Field(default=None, ge=1)
    # False: a prompt is computed anew even where its beginning was computed before.
    prefix_cache: bool = True


class EngineParallel(ConfigModel):
    """How one replica is split: `tensor` ranks share each layer, `pipeline` stages the layers."""

    tensor: int = Field(default=1, ge=1, le=64)
    pipeline: int = Field(default=1, ge=1, le=64)

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline


class EngineKernels(ConfigModel):
    """A bundle of kernels: a folder and the digest of what it must hold."""

    path: str = Field(min_length=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class EngineTracing(ConfigModel):
    """OpenTelemetry spans of requests; they hold counts and settings, never text."""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern="^https?://",
        description="Whole address of a collector's traces over HTTP; None: no traces.",
    )


class EngineConfig(ConfigModel):
    """`/etc/slipstream/engine.json`: what the operator writes and an engine reads."""

    schema_version: Literal[1]
    revision: str = Field(min_length=1)
    model: EngineModelConfig
    server: EngineServerConfig = Field(default_factory=EngineServerConfig)
    limits: EngineLimits = Field(default_factory=EngineLimits)
    pages: EnginePages = Field(default_factory=EnginePages)
    parallel: EngineParallel = Field(default_factory=EngineParallel)
    # None: the reference operations.
    kernels: EngineKernels | None = None
    tracing: EngineTracing = Field(default_factory=EngineTracing)
    speculator: SpeculatorSpec = Field(default_factory=SpeculatorSpec)
    dtype: Literal["float32", "bfloat16"] = "float32"
    # checkpoint: 4- and 8-bit matrices stay as they are stored, and with them keys and values are
    # kept in bfloat16. none: everything in `dtype`.
    quantization: Literal["checkpoint", "none"] = "checkpoint"
    # Threads of one matrix product. None: the CPUs that this process may use.
    threads: int | None = Field(default=None, ge=1, le=1024)


Config = TypeVar("Config", bound=ConfigModel)


def load(model: type[Config], path: Path) -> Config:
    """Read and validate one component's file.

    Raises ConfigError with the path of the first bad field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", "") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error.reason} at {error.start}", "") from error
    return parse(model, text, origin=str(path))


def parse(model: type[Config], text: str, *, origin: str) -> Config:
    """Validate one component's document. Raises ConfigError."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{first['msg']} (in {origin})", field) from error


def dump(config: ConfigModel) -> str:
    """Canonical bytes: sorted keys, so that equal configurations have equal hashes."""
    document = config.model_dump(mode="json", by_alias=True)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
