"""GPUClass: one kind of card: which devices it means, what they can do, what they cost.

The planner predicts from these figures and from nothing else. Whatever was measured on a host beats
what a data sheet says: the all-reduce tables and the efficiencies are there to be overwritten.
"""

from typing import Annotated, Literal

from pydantic import Field

from slipstream_api.schema import KubeModel

# A whole number of bytes; a prefix of 1024 (Ki … Ti) or 1000 (k … T).
QUANTITY_PATTERN = r"^[1-9][0-9]{0,17}([KMGT]i|[kMGT])?$"

Tier = Literal["SameRoot", "SameNuma", "SameNode"]
PeerToPeer = Literal["Available", "Unavailable", "Unknown"]
BasisPoints = Annotated[int, Field(ge=1, le=10_000)]


class CelSelector(KubeModel):
    expression: str = Field(
        min_length=1,
        max_length=10_240,
        description="As in a DeviceClass: true for the devices that are meant.",
    )


class DeviceSelector(KubeModel):
    cel: CelSelector


class Gflops(KubeModel):
    """Dense, with accumulation in float32. Unset: the card cannot compute in this type."""

    bf16: int | None = Field(default=None, ge=1)
    fp16: int | None = Field(default=None, ge=1)
    fp8: int | None = Field(default=None, ge=1)
    fp4: int | None = Field(default=None, ge=1)


class Efficiency(KubeModel):
    """Basis points of the data sheet's figure, by the type that is computed in."""

    bf16: BasisPoints | None = None
    fp16: BasisPoints | None = None
    fp8: BasisPoints | None = None
    fp4: BasisPoints | None = None


class Efficiencies(KubeModel):
    """What of the data sheet arrives. Unset: the planner's defaults for cards nobody measured."""

    weight_read_basis_points: Efficiency = Field(
        default_factory=Efficiency, description="Of the memory bandwidth, while reading weights."
    )
    compute_basis_points: Efficiency = Field(
        default_factory=Efficiency, description="Of computeGflops, in large matrix products."
    )
    kv_read_basis_points: BasisPoints | None = Field(
        default=None, description="Of the memory bandwidth, while reading keys and values."
    )
    layer_overhead_nanoseconds: int | None = Field(
        default=None, ge=0, description="What a layer takes beside reading, computing and talking."
    )


class Pcie(KubeModel):
    generation: int = Field(ge=3, le=7)
    lanes: Literal[4, 8, 16] = 16


class AllReducePoint(KubeModel):
    bytes: int = Field(ge=1, le=17_179_869_184)
    nanoseconds: int = Field(ge=1)


class AllReduceTable(KubeModel):
    """Times of one all-reduce, measured within a graph of kernels."""

    tier: Tier = Field(description="The nearest place that held all of the GPUs.")
    ranks: int = Field(ge=2, le=64)
    points: list[AllReducePoint] = Field(
        min_length=1,
        max_length=32,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["bytes"],
        },
    )


class GPUClassSpec(KubeModel):
    device_class_name: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="The DeviceClass that claims name.",
    )
    selectors: list[DeviceSelector] = Field(
        min_length=1,
        max_length=32,
        description="A device is of this class when all of them are true of it.",
    )
    memory: str = Field(
        max_length=24, pattern=QUANTITY_PATTERN, description="Of one GPU: 97887Mi or 24G."
    )
    memory_bandwidth_megabytes_per_second: int = Field(
        ge=1, description="Of one GPU, in millions of bytes."
    )
    compute_gflops: Gflops
    pcie: Pcie
    peer_to_peer: PeerToPeer = Field(
        default="Unknown",
        description="Whether two of these GPUs can write to each other over PCIe. Unknown counts as"
        " Available until it was measured, and plans say so.",
    )
    price_per_hour_micro_usd: int | None = Field(
        default=None, ge=0, description="Of one GPU, in millionths of a US dollar."
    )
    all_reduce: list[AllReduceTable] = Field(
        default_factory=list,
        max_length=24,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["tier", "ranks"],
        },
        description="Measured times. Where none stands here, they are derived from PCIe.",
    )
    efficiencies: Efficiencies = Field(default_factory=Efficiencies)
