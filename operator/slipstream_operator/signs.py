"""When gateways last gave a sign of life, as one process saw it: no two clocks are compared.

Knows names and generations, no document. Times are arguments: seconds of any one clock that only
goes forward.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Name = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class _Entry:
    """What an entry in a route's status says, and since when it waits for a sign of its gateway."""

    generation: int
    since: float


class Signs:
    """A Lease that changes is a sign; so is an entry that is new or says something new."""

    def __init__(self) -> None:
        self._renewed_at: dict[Name, float] = {}
        self._entries: dict[Name, dict[Name, _Entry]] = {}  # by route, then by gateway

    def lease_changed(self, gateway: Name, now: float) -> None:
        self._renewed_at[gateway] = now

    def lease_gone(self, gateway: Name, now: float) -> None:
        """From here on its entries wait, however old they are."""
        self._renewed_at.pop(gateway, None)
        for entries in self._entries.values():
            if gateway in entries:
                entries[gateway] = _Entry(entries[gateway].generation, now)

    def route_says(self, route: Name, generations: Mapping[Name, int], now: float) -> None:
        """The entries of a route as they are now: the generation that each gateway has in use."""
        before = self._entries.get(route, {})
        self._entries[route] = {
            gateway: known
            if (known := before.get(gateway)) is not None and known.generation == generation
            else _Entry(generation, now)
            for gateway, generation in generations.items()
        }

    def route_gone(self, route: Name) -> None:
        self._entries.pop(route, None)

    def lease_silent_s(self, gateway: Name, now: float) -> float:
        """How long its Lease has not changed. Raises KeyError for a Lease that is not there."""
        return now - self._renewed_at[gateway]

    def entries_silent_s(self, route: Name, now: float) -> dict[Name, float]:
        """For each entry of a route, how long nothing was seen of its gateway."""
        return {
            gateway: now - max(entry.since, self._renewed_at.get(gateway, entry.since))
            for gateway, entry in self._entries.get(route, {}).items()
        }
