"""What plan() needs of the operator's configuration, frozen; knows no file."""

from dataclasses import dataclass
from typing import Any

from slipstream_api.config import OperatorConfig


@dataclass(frozen=True, slots=True)
class Settings:
    engine_image: str
    pod_defaults: dict[str, Any]
    drain_acknowledge_s: int
    drain_timeout_s: int


def from_config(config: OperatorConfig) -> Settings:
    return Settings(
        engine_image=config.engine_image,
        pod_defaults=config.pod_defaults,
        drain_acknowledge_s=config.drain_acknowledge_s,
        drain_timeout_s=config.drain_timeout_s,
    )
