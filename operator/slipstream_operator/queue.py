"""Keyed work with due times: one pass per key at a time, repetition with backoff. Pure core.

`Schedule` knows no clock (times are arguments); `WorkQueue` waits by the event loop's.
"""

import asyncio
import random
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

BASE_S = 0.2
CAP_S = 120.0


class Schedule(Generic[K]):
    """Which key is due when. A key that is being worked on is not handed out again before."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._busy: set[K] = set()
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, at: float) -> None:
        """Due at a time; an earlier time that is known already stays."""
        self._due[key] = min(at, self._due.get(key, at))

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
        self._busy.discard(key)
        self._failures.pop(key, None)
        if again_at is not None:
            self.add(key, again_at)

    def fail(self, key: K, now: float, rng: random.Random) -> float:
        """Due again after a wait that doubles with every failure in a row; returns the wait.

        A wake that came meanwhile does not shorten it: the failure may have caused the wake.
        """
        self._busy.discard(key)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # Half of it is chance, so that many keys do not return together.
        wait_s = min(CAP_S, BASE_S * 2.0 ** min(failures, 20)) * (0.5 + rng.random() / 2)
        self._due[key] = now + wait_s
        return wait_s

    def forget(self, key: K) -> None:
        """The object is gone: a new one of the same name starts afresh."""
        self._busy.discard(key)
        self._failures.pop(key, None)


class WorkQueue(Generic[K]):
    """`Schedule` for asyncio workers."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._schedule: Schedule[K] = Schedule()
        self._clock = clock
        self._rng = rng
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._schedule)

    def add(self, key: K, after_s: float = 0.0) -> None:
        self._schedule.add(key, self._clock() + after_s)
        self._changed.set()

    async def get(self) -> K:
        while True:
            key = self._schedule.take(self._clock())
            if key is not None:
                return key
            self._changed.clear()
            at = self._schedule.next_at()
            timeout = None if at is None else max(0.0, at - self._clock())
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                continue

    def finish(self, key: K, again_after_s: float | None) -> None:
        at = None if again_after_s is None else self._clock() + again_after_s
        self._schedule.finish(key, at)
        self._changed.set()

    def fail(self, key: K) -> float:
        wait_s = self._schedule.fail(key, self._clock(), self._rng)
        self._changed.set()
        return wait_s

    def forget(self, key: K) -> None:
        self._schedule.forget(key)
        self._changed.set()
