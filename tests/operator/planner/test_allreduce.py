"""Times of an all-reduce: measured ones, and what PCIe allows where nobody measured."""

import dataclasses

import pytest

from slipstream_operator.planner import allreduce
from slipstream_operator.planner.tiers import Tier
from tests.operator.planner import support

MIB = 1 << 20


def test_between_measured_sizes_times_are_straight_on_logarithmic_paper() -> None:
    points = ((1000, 1e-5), (100_000, 1e-3))
    assert allreduce.interpolate(points, 10) == 1e-5
    assert allreduce.interpolate(points, 10_000) == pytest.approx(1e-4)
    assert allreduce.interpolate(points, 1_000_000) == pytest.approx(1e-2)


def test_one_rank_talks_to_nobody() -> None:
    assert allreduce.seconds(support.card("l40s"), Tier.SameNode, 1, MIB) == 0


@pytest.mark.parametrize(
    ("card", "tier", "ranks", "num_bytes", "microseconds"),
    [
        # Hops alone: 2 us for each of 2 (n - 1).
        ("a40", Tier.SameRoot, 4, 1, 12),
        ("a40", Tier.SameRoot, 2, 19 * 10**6, 4 + 1000),
        ("a40", Tier.SameNuma, 2, 19 * 10**6, 4 + 1900),
        ("h100-pcie", Tier.SameRoot, 2, 37 * 10**6, 4 + 1000),
        # Without peers: three copies a hop, one slow bus for all tiers.
        ("rtx-4090", Tier.SameRoot, 2, 25 * 10**5, 12 + 1000),
        ("rtx-4090", Tier.SameNode, 2, 25 * 10**5, 12 + 1000),
        ("t4", Tier.SameRoot, 2, 9 * 10**6, 4 + 1000),
    ],
)
def test_defaults_by_generation_and_tier(
    card: str, tier: Tier, ranks: int, num_bytes: int, microseconds: float
) -> None:
    found = allreduce.seconds(support.card(card), tier, ranks, num_bytes)
    assert found * 1e6 == pytest.approx(microseconds, rel=0.001)


def test_half_the_lanes_are_half_the_bus() -> None:
    whole = support.card("a40")
    half = dataclasses.replace(whole, pcie_lanes=8)
    hops = allreduce.seconds(whole, Tier.SameRoot, 2, 0)
    one = allreduce.seconds(whole, Tier.SameRoot, 2, MIB) - hops
    other = allreduce.seconds(half, Tier.SameRoot, 2, MIB) - hops
    assert other == pytest.approx(2 * one)


def test_what_was_measured_counts_on_its_tier_and_bounds_those_further_away() -> None:
    pro = support.card("rtx-pro-6000")
    measured = allreduce.seconds(pro, Tier.SameNuma, 4, 4 * MIB)
    assert measured == pytest.approx(246.9e-6)
    # Four below one root were not measured: what PCIe allows there, but no worse than further away.
    assert allreduce.seconds(pro, Tier.SameRoot, 4, 4 * MIB) < measured
    # Nor four of two sockets: never better than the nearer ones.
    assert allreduce.seconds(pro, Tier.SameNode, 4, 8192) >= 13.7e-6
