"""Plays sessions against an endpoint in a closed or an open loop, within limits.

Knows no HTTP: it calls a sender, and keeps the records that come back.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from slipstream_bench.client import Reply, clock_s
from slipstream_bench.record import Failure, FailureKind, Record
from slipstream_bench.session import Message, Session, Sessions, grow
from slipstream_bench.shapes import Limits

# An endpoint that refuses at once must not be asked thousands of times a second.
_PAUSE_AFTER_FAILURE_S = 0.1


class Send(Protocol):
    async def __call__(
        self, session: Session, messages: Sequence[Message], intended_s: float, turn: int
    ) -> Reply: ...


class Run:
    """One run, played once. `records` is filled as requests end, so an interrupted run has some.

    `stopped`: why it ended before its limits, if it did. `abandoned_turns`: turns that were never
    asked because an earlier one of their session failed.
    """

    def __init__(
        self, send: Send, sessions: Sessions, limits: Limits, seen: Callable[[Record], None]
    ) -> None:
        self.records: list[Record] = []
        self.abandoned_turns = 0
        self.stopped: str | None = None
        self._send = send
        self._sessions = sessions
        self._limits = limits
        self._seen = seen
        self._num_started = 0
        self._failures_in_row = 0
        self._begun_s = self._end_s = 0.0

    async def closed(self, concurrency: int) -> None:
        """`concurrency` clients, each with one session at a time."""
        self._begin()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, self._limits.requests)):
                group.create_task(self._work())

    async def open(self, arrivals_s: Iterator[float], max_in_flight: int) -> None:
        """A session at each arrival. One that finds no place waits, and its delay is measured;
        one that has none by the end of the run is a failure of the kind `unsent`."""
        self._begin()
        places = asyncio.Semaphore(max_in_flight)
        async with asyncio.TaskGroup() as group:
            for offset_s in arrivals_s:
                intended_s = self._begun_s + offset_s
                if intended_s >= self._end_s:
                    break
                await asyncio.sleep(max(0.0, intended_s - clock_s()))
                if not self._take(intended_s):
                    break
                if await self._has_place(places):
                    group.create_task(self._visit(places, intended_s))
                else:
                    self._note(_unsent(intended_s))

    def _begin(self) -> None:
        duration_s = self._limits.duration_s
        self._begun_s = clock_s()
        self._end_s = math.inf if duration_s is None else self._begun_s + duration_s

    async def _work(self) -> None:
        while self._take(clock_s()):
            if not await self._play(next(self._sessions), clock_s()):
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    async def _visit(self, places: asyncio.Semaphore, intended_s: float) -> None:
        try:
            await self._play(next(self._sessions), intended_s)
        finally:
            places.release()

    async def _has_place(self, places: asyncio.Semaphore) -> bool:
        if clock_s() >= self._end_s:
            return False
        if math.isinf(self._end_s):
            return await places.acquire()
        try:
            async with asyncio.timeout_at(self._end_s):
                return await places.acquire()
        except TimeoutError:
            return False

    async def _play(self, session: Session, intended_s: float) -> bool:
        """Every turn of a session, its first one taken already; whether none failed.

        A later turn should be sent when the tool is done: `think_s` after the answer before.
        """
        messages: tuple[Message, ...] = session.opening
        for turn in range(session.num_requests):
            if turn > 0:
                await asyncio.sleep(max(0.0, intended_s - clock_s()))
                if not self._take(clock_s()):
                    return True
            reply = await self._send(session, messages, intended_s, turn)
            self._note(reply.record)
            if not reply.record.is_success:
                self.abandoned_turns += session.num_requests - turn - 1
                return False
            if turn < len(session.results):
                text, calls = reply.answer.text(), reply.answer.tool_calls()
                messages = grow(messages, text, calls, session.results[turn])
                intended_s = reply.record.ended_s + session.think_s
        return True

    def _take(self, at_s: float) -> bool:
        """Whether one more request may start, which is then counted."""
        is_over = self._num_started >= self._limits.requests or at_s >= self._end_s
        if is_over or self.stopped is not None:
            return False
        self._num_started += 1
        return True

    def _note(self, record: Record) -> None:
        self.records.append(record)
        if record.failure is None:
            self._failures_in_row = 0
        elif record.was_sent:
            self._failures_in_row += 1
            if self._failures_in_row >= self._limits.failures_in_row:
                last = f"{record.failure.label}: {record.failure.message}"
                self.stopped = f"{self._failures_in_row} requests in a row failed; the last: {last}"
        self._seen(record)


def _unsent(intended_s: float) -> Record:
    now_s = clock_s()
    failure = Failure(FailureKind.UNSENT, "no place in flight was free before the run ended")
    return Record(turn=0, intended_s=intended_s, started_s=now_s, ended_s=now_s, failure=failure)
