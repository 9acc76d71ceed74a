"""What plan() needs of the operator's configuration, frozen; knows no file."""

from dataclasses import dataclass
from typing import Any

from slipstream_api.config import OperatorConfig
from slipstream_operator.rotation import Pace


@dataclass(frozen=True, slots=True)
class Clients:
    """Gateways and operators of this namespace, and further NetworkPolicyPeers."""

    namespace: str
    peers: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Settings:
    engine_image: str
    engine_resources: dict[str, Any]
    pod_defaults: dict[str, Any]
    drain_acknowledge_s: int
    drain_timeout_s: int
    token_pace: Pace
    # Who may reach engines. None: no NetworkPolicy is made, and ours are taken away.
    clients: Clients | None


def from_config(config: OperatorConfig) -> Settings:
    return Settings(
        engine_image=config.engine_image,
        engine_resources=config.engine_resources,
        pod_defaults=config.pod_defaults,
        drain_acknowledge_s=config.drain_acknowledge_s,
        drain_timeout_s=config.drain_timeout_s,
        token_pace=Pace(config.token_rotate_after_s, config.token_settle_s),
        clients=Clients(config.operator_namespace, tuple(config.network_peers))
        if config.network_policies
        else None,
    )
