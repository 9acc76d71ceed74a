"""Whether each watch is alive: what we know was written must come back through it. Pure.

Silence proves nothing, an idle cluster sends no event for hours. What we know of: our own writes,
the operators' Lease (read directly every few seconds), and what a list of our own found new.
"""

from dataclasses import dataclass

from slipstream_operator import documents

# One watch: kind and namespace (None: all of them). It delivers versions in order.
Stream = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Late:
    """A watch that is behind, and for how long."""

    stream: Stream
    age_s: float

    def __str__(self) -> str:
        kind, namespace = self.stream
        where = f" in {namespace}" if namespace is not None else ""
        return f"watch of {kind}{where} is {self.age_s:.0f} s behind"


class Heartbeat:
    """`told`: a version read or written directly. `seen`: a version that a watch delivered."""

    def __init__(self) -> None:
        self._seen: dict[Stream, int] = {}
        # Per stream the oldest unseen version, which counts, and the newest, which clears.
        self._pending: dict[Stream, list[tuple[int, float]]] = {}

    def told(self, stream: Stream, version: str, now: float) -> None:
        number = documents.order(version)
        pending = self._pending.get(stream, [])
        if number > max(self._seen.get(stream, 0), *(n for n, _ in pending), 0):
            self._pending[stream] = [*pending[:1], (number, now)]

    def seen(self, stream: Stream, version: str) -> None:
        newest = max(self._seen.get(stream, 0), documents.order(version))
        self._seen[stream] = newest
        pending = self._pending.get(stream, [])
        self._pending[stream] = [entry for entry in pending if entry[0] > newest]

    def listed(self, stream: Stream, newest: str, at: str) -> None:
        """Everything there was at version `at`; the newest object had version `newest`.

        What was told between the two is gone again. A watch that began anew after that brings
        neither it nor its end.
        """
        gone = range(documents.order(newest) + 1, documents.order(at) + 1)
        pending = self._pending.get(stream, [])
        self._pending[stream] = [entry for entry in pending if entry[0] not in gone]

    def most_late(self, now: float) -> Late | None:
        """The watch that is behind longest; None when none is."""
        late = [Late(s, now - pending[0][1]) for s, pending in self._pending.items() if pending]
        return max(late, key=lambda entry: entry.age_s, default=None)
