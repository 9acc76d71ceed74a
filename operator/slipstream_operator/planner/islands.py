"""Observed GPUs, grouped as PCIe groups them; knows no model.

A board is one kind of card on one kind of node: nodes whose free GPUs hang below roots of the same
sizes in the same NUMA nodes are one board, however many there are.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from slipstream_operator.planner.tiers import Tier


@dataclass(frozen=True, slots=True)
class Gpu:
    """`root` and `numa`: None where its driver publishes neither."""

    node: str
    name: str
    card: str
    root: str | None
    numa: int | None
    is_free: bool = True


@dataclass(frozen=True, slots=True, order=True)
class Island:
    """The free GPUs below one PCIe root. `numa` is -1 where it is not known."""

    numa: int
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Board:
    card: str
    islands: tuple[Island, ...]
    nodes: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        return sum(island.num_gpus for island in self.islands)

    @property
    def largest_island(self) -> int:
        return max(island.num_gpus for island in self.islands)

    @property
    def shape(self) -> str:
        """Sizes of the islands, sockets apart: `2+2 | 2+2`."""
        by_numa: dict[int, list[int]] = defaultdict(list)
        for island in self.islands:
            by_numa[island.numa].append(island.num_gpus)
        return " | ".join("+".join(str(n) for n in sizes) for _, sizes in sorted(by_numa.items()))

    def num_groups(self, tier: Tier, size: int) -> int:
        """Groups of so many GPUs, each within one place of the tier, without sharing any."""
        if tier is Tier.SameNode:
            return self.num_gpus // size
        if tier is Tier.SameRoot:
            return sum(island.num_gpus // size for island in self.islands)
        known: Counter[int] = Counter()
        groups = 0
        for island in self.islands:
            if island.numa < 0:
                groups += island.num_gpus // size
            else:
                known[island.numa] += island.num_gpus
        return groups + sum(num_gpus // size for num_gpus in known.values())

    def nearest(self, num_groups: int, size: int) -> Tier | None:
        """The nearest tier that has so many groups; None: the node has too few GPUs."""
        for tier in Tier:
            if self.num_groups(tier, size) >= num_groups:
                return tier
        return None

    def num_roots(self, tier: Tier, size: int) -> int:
        """How many roots a group of the tier spans at least, in its best place on this board."""
        if tier is Tier.SameRoot:
            return 1
        places: dict[int, list[int]] = defaultdict(list)
        for island in self.islands:
            places[island.numa if tier is Tier.SameNuma else 0].append(island.num_gpus)
        spans = []
        for sizes in places.values():
            left = size
            for used, num_gpus in enumerate(sorted(sizes, reverse=True), start=1):
                left -= num_gpus
                if left <= 0:
                    spans.append(used)
                    break
        return min(spans, default=1)


def boards(gpus: Iterable[Gpu]) -> tuple[Board, ...]:
    """Free GPUs only. A GPU whose root is not known is an island of its own."""
    found: dict[tuple[str, str], Counter[tuple[str, int]]] = defaultdict(Counter)
    for gpu in gpus:
        if not gpu.is_free:
            continue
        root = gpu.root if gpu.root is not None else f"unknown/{gpu.name}"
        numa = -1 if gpu.numa is None else gpu.numa
        found[gpu.card, gpu.node][root, numa] += 1
    nodes: dict[tuple[str, tuple[Island, ...]], list[str]] = defaultdict(list)
    for (card, node), roots in found.items():
        islands = tuple(sorted(Island(numa, count) for (_, numa), count in roots.items()))
        nodes[card, islands].append(node)
    return tuple(
        Board(card, islands, tuple(sorted(names)))
        for (card, islands), names in sorted(nodes.items())
    )
