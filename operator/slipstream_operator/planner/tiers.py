"""How near each other the GPUs of a group are, nearest first."""

from enum import IntEnum


class Tier(IntEnum):
    """Names as documents and claims spell them; a smaller one is nearer."""

    SameRoot = 0
    SameNuma = 1
    SameNode = 2

    @property
    def phrase(self) -> str:
        return {
            Tier.SameRoot: "one PCIe root",
            Tier.SameNuma: "one NUMA node",
            Tier.SameNode: "one node",
        }[self]
