"""ModelRoute: how the operator tells every gateway where a model's requests go.

The operator alone writes the spec; each gateway writes its own entry of the status, and the
operator takes out what dead gateways left there.
"""

from typing import Annotated

from pydantic import Field

from slipstream_api.schema import KubeModel


class Track(KubeModel):
    """One revision that takes a share of the sessions."""

    name: str = Field(min_length=1, max_length=63, description="stable, canary or baseline.")
    revision: str = Field(min_length=1, max_length=63)
    service: str = Field(
        min_length=1, max_length=63, description="Headless Service of this revision's Pods."
    )
    port: int = Field(ge=1, le=65535)
    weight: int = Field(ge=0, le=10_000, description="Basis points; the tracks' sum is 10000.")
    draining_pods: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default_factory=list,
        max_length=256,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Pods that must get no new request although they are ready.",
    )


class ModelRouteSpec(KubeModel):
    model: str = Field(min_length=1, max_length=63, description="The InferenceModel's name.")
    names: list[Annotated[str, Field(min_length=1, max_length=317)]] = Field(
        max_length=18,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Every name that clients may send; contested short names only at their owner.",
    )
    tracks: list[Track] = Field(
        max_length=3,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )


class GatewayAcknowledgement(KubeModel):
    """What one gateway has taken over."""

    name: str = Field(min_length=1, max_length=253, description="The gateway's Pod and its Lease.")
    namespace: str = Field(min_length=1, max_length=63)
    observed_generation: int = Field(ge=0)


class ModelRouteStatus(KubeModel):
    gateways: list[GatewayAcknowledgement] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            # Gateways of two installations may be called alike.
            "x-kubernetes-list-map-keys": ["namespace", "name"],
        },
    )
