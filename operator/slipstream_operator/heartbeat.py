"""Whether the watches are alive: what we know was written must come back through them. Pure.

An idle cluster sends nothing for minutes; the operators' Lease changes every few seconds.
"""


class Heartbeat:
    """`told`: a version read or written directly. `seen`: a version that a watch delivered."""

    def __init__(self) -> None:
        self._seen = 0
        self._pending: list[tuple[int, float]] = []

    def told(self, version: str, now: float) -> None:
        number = int(version) if version.isdecimal() else 0
        if number > self._seen:
            # The oldest unseen one counts, the newest one clears: two are enough.
            self._pending = [*self._pending[:1], (number, now)]

    def seen(self, version: str) -> None:
        number = int(version) if version.isdecimal() else 0
        self._seen = max(self._seen, number)
        self._pending = [entry for entry in self._pending if entry[0] > self._seen]

    def age_s(self, now: float) -> float:
        """How long the watch has been behind; 0 when it is not."""
        return now - self._pending[0][1] if self._pending else 0.0
