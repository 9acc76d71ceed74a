"""The work queue of asyncio workers: waits for what `schedule` says is due. Decides nothing."""

import asyncio
import random
from collections.abc import Callable
from typing import Generic

from slipstream_operator.schedule import K, Schedule


class WorkQueue(Generic[K]):
    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._schedule: Schedule[K] = Schedule()
        self._clock = clock
        self._rng = rng
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._schedule)

    def add(self, key: K, after_s: float = 0.0, *, is_own: bool = False) -> None:
        """`is_own`: the pass over this very key asks for another one (see `Schedule`)."""
        self._schedule.add(key, self._clock() + after_s, is_own=is_own)
        self._changed.set()

    async def get(self) -> K:
        while True:
            key = self._schedule.take(self._clock())
            if key is not None:
                return key
            self._changed.clear()
            at = self._schedule.next_at()
            wait_s = None if at is None else max(0.0, at - self._clock())
            try:
                # Not wait_for: up to Python 3.11 it waits in a task of its own, and kopf, when it
                # ends, cancels every task that is younger than itself.
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
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
