"""Which key is due when: one pass per key at a time, repetition with backoff. Pure.

Times are arguments, in seconds of any one clock; `queue` waits for them.
"""

import random
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

BASE_S = 0.2
CAP_S = 120.0


class Schedule(Generic[K]):
    """A key that is being worked on is not handed out again before it is done.

    A wake from outside counts whatever becomes of the pass under way: it may bring what the pass
    lacks. One that the pass caused itself counts only when the pass succeeds: after a failure it
    would take the place of the wait, again and again.
    """

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        # Due times that the key's own pass asked for while it ran.
        self._own: dict[K, float] = {}
        self._busy: set[K] = set()
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, at: float, *, is_own: bool = False) -> None:
        """Due at a time; an earlier time that is known already stays."""
        due = self._own if is_own and key in self._busy else self._due
        due[key] = min(at, due.get(key, at))

    def take(self, now: float) -> K | None:
        """The key that is due longest; it is busy until `finish` or `fail`."""
        ready = [(at, i, k) for i, (k, at) in enumerate(self._due.items()) if at <= now]
        idle = [entry for entry in ready if entry[2] not in self._busy]
        if not idle:
            return None
        key = min(idle, key=lambda entry: entry[:2])[2]
        del self._due[key]
        self._busy.add(key)
        return key

    def next_at(self) -> float | None:
        """When the next idle key becomes due."""
        return min((at for key, at in self._due.items() if key not in self._busy), default=None)

    def finish(self, key: K, again_at: float | None) -> None:
        own_at = self._own.pop(key, None)
        self._busy.discard(key)
        self._failures.pop(key, None)
        for at in (own_at, again_at):
            if at is not None:
                self.add(key, at)

    def fail(self, key: K, now: float, rng: random.Random) -> float:
        """Due again after a wait that doubles with every failure in a row; returns the wait."""
        self._own.pop(key, None)
        self._busy.discard(key)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # Half of it is chance, so that many keys do not return together.
        wait_s = min(CAP_S, BASE_S * 2.0 ** min(failures, 20)) * (0.5 + rng.random() / 2)
        self.add(key, now + wait_s)
        return wait_s

    def forget(self, key: K) -> None:
        """The object is gone: a new one of the same name starts afresh."""
        self._own.pop(key, None)
        self._busy.discard(key)
        self._failures.pop(key, None)
