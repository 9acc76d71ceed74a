"""Which kinds must be listed before work may begin. Pure; lists nothing itself.

A list that was begun before this process led may lack the predecessor's last writes, so what is
marked while a list is under way stays marked.
"""

from collections.abc import Iterable

from slipstream_operator.kinds import Kind


class Listing:
    """`is_complete`: every kind was listed once. `is_current`: nothing waits to be listed."""

    def __init__(self, everything: Iterable[Kind]) -> None:
        self._everything = frozenset(everything)
        self._stale = set(self._everything)
        self.is_complete = False

    @property
    def is_current(self) -> bool:
        return not self._stale

    def mark(self, kind: Kind) -> None:
        """This kind's watch began anew: deletions may have been missed."""
        self._stale.add(kind)

    def mark_all(self) -> None:
        self._stale |= self._everything

    def take(self) -> frozenset[Kind]:
        """What to list now; until the first list is complete, everything."""
        taken = frozenset(self._stale) if self.is_complete else self._everything
        self._stale -= taken
        return taken

    def succeeded(self) -> None:
        """All that was taken is listed."""
        self.is_complete = True

    def failed(self, taken: frozenset[Kind]) -> None:
        self._stale |= taken
