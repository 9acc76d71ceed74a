"""A GPU class in SI units, with the defaults for what nobody measured.

Defaults: fitted to AIConfigurator 0.12 on two cards and rounded down; see the README of operator/.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slipstream_api import quantities
from slipstream_api.gpuclass import Efficiency, Gflops, GPUClassSpec
from slipstream_api.modelfacts import WeightFormat
from slipstream_operator.planner.tiers import Tier

NumberType = Literal["bf16", "fp16", "fp8", "fp4"]
NUMBER_TYPES: tuple[NumberType, ...] = ("bf16", "fp16", "fp8", "fp4")

_WEIGHT_READ = 0.80
_KV_READ = 0.65
_LAYER_OVERHEAD_S = 30e-6
# fp4 is a guess: no card's was fitted.
_COMPUTE: Mapping[NumberType, float] = {"bf16": 0.60, "fp16": 0.60, "fp8": 0.45, "fp4": 0.35}


@dataclass(frozen=True, slots=True)
class Points:
    """One measured all-reduce: (bytes, seconds), by bytes."""

    tier: Tier
    ranks: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Card:
    """Bandwidths in bytes a second, times in seconds, shares of one."""

    name: str
    memory_bytes: int
    memory_bandwidth: float
    flops: Mapping[NumberType, float]
    weight_read: Mapping[NumberType, float]
    compute: Mapping[NumberType, float]
    kv_read: float
    layer_overhead_s: float
    pcie_generation: int
    pcie_lanes: int
    peer_to_peer: bool | None  # None: nobody knows
    price_per_hour_usd: float | None
    measured: tuple[Points, ...]

    def number_type(self, stored: WeightFormat) -> NumberType:
        """What matrix products over such weights are computed in."""
        base: NumberType = "bf16" if "bf16" in self.flops else "fp16"
        wanted: NumberType = {"fp8": "fp8", "nvfp4": "fp4"}.get(stored, base)  # type: ignore[assignment]
        return wanted if wanted in self.flops else base


def of(name: str, spec: GPUClassSpec) -> Card:
    """The card that a class's document describes."""
    efficiencies = spec.efficiencies
    kv_read = efficiencies.kv_read_basis_points
    overhead = efficiencies.layer_overhead_nanoseconds
    price = spec.price_per_hour_micro_usd
    known = {"Available": True, "Unavailable": False, "Unknown": None}
    return Card(
        name=name,
        memory_bytes=quantities.parse(spec.memory),
        memory_bandwidth=spec.memory_bandwidth_megabytes_per_second * 1e6,
        flops={kind: value * 1e9 for kind, value in _given(spec.compute_gflops).items()},
        weight_read=_shares(efficiencies.weight_read_basis_points, _WEIGHT_READ),
        compute=_shares(efficiencies.compute_basis_points, _COMPUTE),
        kv_read=_KV_READ if kv_read is None else kv_read / 10_000,
        layer_overhead_s=_LAYER_OVERHEAD_S if overhead is None else overhead / 1e9,
        pcie_generation=spec.pcie.generation,
        pcie_lanes=spec.pcie.lanes,
        peer_to_peer=known[spec.peer_to_peer],
        price_per_hour_usd=None if price is None else price / 1e6,
        measured=tuple(
            Points(
                Tier[table.tier],
                table.ranks,
                tuple(sorted((point.bytes, point.nanoseconds / 1e9) for point in table.points)),
            )
            for table in spec.all_reduce
        ),
    )


def _given(figures: Gflops | Efficiency) -> dict[NumberType, int]:
    values = {kind: getattr(figures, kind) for kind in NUMBER_TYPES}
    return {kind: value for kind, value in values.items() if value is not None}


def _shares(
    given: Efficiency, default: float | Mapping[NumberType, float]
) -> Mapping[NumberType, float]:
    measured = {kind: points / 10_000 for kind, points in _given(given).items()}
    return {
        kind: measured.get(kind, default if isinstance(default, float) else default[kind])
        for kind in NUMBER_TYPES
    }
