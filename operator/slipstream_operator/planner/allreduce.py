"""How long an all-reduce among some GPUs takes: as measured, else from what PCIe allows.

Defaults: what AIConfigurator's tables have for two 8-GPU hosts, an RTX PRO 6000 one (PCIe 5) and
an L40S one (PCIe 4); other generations by their rate.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from slipstream_operator.planner.cards import Card
from slipstream_operator.planner.tiers import Tier

# Each of the 2 (n - 1) hops of a ring.
_HOP_S = 2.0e-6
# Through host memory each hop is a copy more.
_HOP_WITHOUT_PEERS = 3.0
# Bytes a second of the bus, by PCIe generation, for 16 lanes.
_BUS: dict[Tier, dict[int, float]] = {
    Tier.SameRoot: {3: 9e9, 4: 19e9, 5: 37e9},
    Tier.SameNuma: {3: 5e9, 4: 10e9, 5: 24e9},
    Tier.SameNode: {3: 2e9, 4: 4e9, 5: 20e9},
}
_BUS_WITHOUT_PEERS = {3: 2e9, 4: 2.5e9, 5: 5e9}
_NEWEST = 5


def seconds(card: Card, tier: Tier, ranks: int, num_bytes: float) -> float:
    """One all-reduce of so many bytes on each rank.

    GPUs that are near each other may also talk the way that was measured for ones further apart
    (through the host), so nearer is never slower. A way that nobody measured is no better than a
    nearer one that was measured.
    """
    if ranks == 1:
        return 0.0
    slowest, ways = 0.0, []
    for way in Tier:
        measured = _measured(card, way, ranks, num_bytes)
        slowest = max(slowest, measured or 0.0)
        derived = max(_derived(card, way, ranks, num_bytes), slowest)
        if way >= tier:
            ways.append(derived if measured is None else measured)
    return min(ways)


def transfer_s(card: Card, tier: Tier, num_bytes: float) -> float:
    """From one GPU to another: what a pipeline's stage hands to the next."""
    return min(_hop_s(card) + num_bytes / _bus(card, way) for way in Tier if way >= tier)


def _measured(card: Card, tier: Tier, ranks: int, num_bytes: float) -> float | None:
    for table in card.measured:
        if (table.tier, table.ranks) == (tier, ranks):
            return interpolate(table.points, num_bytes)
    return None


def _derived(card: Card, tier: Tier, ranks: int, num_bytes: float) -> float:
    hops = 2 * (ranks - 1)
    return hops * _hop_s(card) + hops / ranks * num_bytes / _bus(card, tier)


def _hop_s(card: Card) -> float:
    return _HOP_S * (_HOP_WITHOUT_PEERS if card.peer_to_peer is False else 1.0)


def _bus(card: Card, tier: Tier) -> float:
    rates = _BUS_WITHOUT_PEERS if card.peer_to_peer is False else _BUS[tier]
    generation = card.pcie_generation
    newer = 2.0 ** max(0, generation - _NEWEST)
    return rates[min(generation, _NEWEST)] * newer * card.pcie_lanes / 16


def interpolate(points: Sequence[tuple[int, float]], num_bytes: float) -> float:
    """Log-log between two points; below the first its time, above the last in proportion."""
    if num_bytes <= points[0][0]:
        return points[0][1]
    for (low, low_s), (high, high_s) in pairwise(points):
        if num_bytes <= high:
            share = math.log(num_bytes / low) / math.log(high / low)
            return low_s * math.pow(high_s / low_s, share)
    last, last_s = points[-1]
    return last_s * num_bytes / last
