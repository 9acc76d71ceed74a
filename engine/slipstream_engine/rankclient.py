"""The serving process's side of the ranks: starts them, asks the first, notices any death.

Knows requests and tokens; no text, no HTTP, no torch.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import msgspec

from slipstream_api.conditions import Reason
from slipstream_engine.batch import Failure, Load, Progress
from slipstream_engine.guides.spec import Vocabulary
from slipstream_engine.messages import (
    Abort,
    AbortSample,
    Failed,
    Forget,
    Loaded,
    Start,
    Step,
    Submit,
    Words,
)
from slipstream_engine.rankprocess import MODULE, RankProcess
from slipstream_engine.request import Request
from slipstream_engine.spec.speculation import Outcome

# Longer than any step takes: 512 tokens of a model of 7 billion weights are half a minute on a CPU.
_SILENT_S = 120.0
# How much later than those that miss it a rank may be seen to have died.
_CAUSE_S = 2.0
_NO_LOAD = Load(num_running=0, num_waiting=0, num_pages_used=0, num_pages_cached=0, num_pages=1)


class RankError(Exception):
    """A rank is gone; `failure` says why."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RequestError(Exception):
    """A request failed by a fault of its own; the rank goes on."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.cause = failure.cause


class Mailbox:
    """What has come for some requests and was not taken yet.

    `admitted_s`: when each of them left the queue, on the clock of `time.monotonic`. `outcomes`:
    of all drafts so far.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.request_ids = tuple(request.id for request in requests)
        self.admitted_s: dict[str, float] = {}
        self.outcomes: list[Outcome] = []
        self._arrived: list[tuple[float, Progress]] = []
        self._error: Exception | None = None
        self._event = asyncio.Event()

    async def take(self) -> list[tuple[float, Progress]]:
        """All that came since the last time, each with when it came; waits for the first.

        Raises RankError, RequestError, or what the answer was given up with, once all before it
        was taken.
        """
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._event.clear()
            await self._event.wait()
        arrived, self._arrived = self._arrived, []
        return arrived

    def put(self, now_s: float, progress: Progress) -> None:
        self._arrived.append((now_s, progress))
        self._event.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._event.set()


class _Open:
    """A request that is under way, and which of its samples have no end yet."""

    __slots__ = ("mailbox", "samples")

    def __init__(self, mailbox: Mailbox, num_samples: int) -> None:
        self.mailbox = mailbox
        self.samples = set(range(num_samples))


class RankClient:
    """All rank processes of one replica. Create it with `start`."""

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        meeting: ExitStack,
        silent_s: float,
    ) -> None:
        self._ranks = ranks
        self._silent_s = silent_s
        # Since when the ranks owe a step, as the answer to a command or to what is open.
        self._silent_since_s: float | None = None
        # Where several ranks found each other; closed with them.
        self._meeting = meeting
        # Told of every step, after its tokens were delivered.
        self.on_step: Callable[[Step], None] = lambda step: None
        self._open: dict[str, _Open] = {}
        self._failure: Failed | None = None
        self._refusal: Exception | None = None
        self.load = _NO_LOAD
        self._loaded: asyncio.Future[Loaded | Failed] = asyncio.get_running_loop().create_future()
        # The ranks in the order in which they showed that they end: the first is the cause.
        self._signs: list[int] = []
        # Done when the replica is gone, for whatever reason.
        self.ended = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls,
        config: str,
        num_ranks: int = 1,
        *,
        module: str = MODULE,
        silent_s: float = _SILENT_S,
    ) -> "RankClient":
        """Start the processes and hand them the configuration; they load the model meanwhile.

        Ranks that have work and say nothing for `silent_s` hang: that is the replica's end.
        """
        ranks: list[RankProcess] = []
        meeting, rendezvous = ExitStack(), ""
        try:
            if num_ranks > 1:
                # Ranks on one machine find each other by a file that the first of them makes.
                folder = tempfile.TemporaryDirectory(prefix="slipstream-ranks-")
                rendezvous = f"file://{meeting.enter_context(folder)}/store"
            for index in range(num_ranks):
                start = Start(config, index, rendezvous)
                ranks.append(await RankProcess.start(start, module))
        except BaseException:
            for rank in ranks:
                rank.kill()
            meeting.close()
            raise
        return cls(ranks, meeting, silent_s)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(rank.pid for rank in self._ranks)

    @property
    def is_alive(self) -> bool:
        return self._failure is None

    async def wait_loaded(self) -> Loaded | Failed:
        return await asyncio.shield(self._loaded)

    def tell(self, vocabulary: Vocabulary) -> None:
        """What the tokens are, before the first request that has a guide."""
        if self._failure is None:
            self._ranks[0].send(Words(vocabulary))

    @contextmanager
    def ask(self, requests: Sequence[Request]) -> Iterator[Mailbox]:
        """Submit requests; leaving aborts those without an end. Raises RankError."""
        if self._failure is not None:
            raise RankError(self._failure)
        if self._refusal is not None:
            raise self._refusal
        mailbox = Mailbox(requests)
        try:
            for request in requests:
                self._open[request.id] = _Open(mailbox, request.num_samples)
                self._send(Submit(request))
            yield mailbox
        finally:
            self._abort(mailbox)

    def end_sample(self, request_id: str, sample: int) -> None:
        """Its text is complete: no more of its tokens come."""
        asked = self._open.get(request_id)
        if asked is None or sample not in asked.samples:
            return
        if self._failure is None:
            self._send(AbortSample(request_id, sample))
        self._close_sample(asked, request_id, sample)

    def forget(self, root_key: bytes) -> None:
        """Drop what drafts have learnt from the answers of a tenant. Raises RankError."""
        if self._failure is not None:
            raise RankError(self._failure)
        self._send(Forget(root_key))

    def give_up(self, mailbox: Mailbox, error: Exception) -> None:
        """Abort what it waits for, at once; whoever takes from it gets the error."""
        self._abort(mailbox)
        mailbox.fail(error)

    def give_up_all(self, error: Exception) -> None:
        """The same for every answer under way and for every later one."""
        self._refusal = error
        for mailbox in {asked.mailbox for asked in self._open.values()}:
            self.give_up(mailbox, error)

    async def stop(self) -> None:
        """End the processes: at once while they load, after the current step later."""
        for rank in self._ranks:
            rank.close()
            if not self._loaded.done():
                rank.kill()
        await asyncio.gather(*(rank.wait() for rank in self._ranks))
        await self.ended

    def _abort(self, mailbox: Mailbox) -> None:
        for request_id in mailbox.request_ids:
            # Still there: some sample has no end yet.
            if self._open.pop(request_id, None) is not None and self._failure is None:
                self._send(Abort(request_id))

    def _send(self, command: Submit | Abort | AbortSample | Forget) -> None:
        """A living rank answers each with a step; so a rank that hangs is noticed also where
        whoever asked has given up."""
        if self._silent_since_s is None:
            self._silent_since_s = time.monotonic()
        self._ranks[0].send(command)

    async def _follow(self) -> Failed:
        listening = [
            asyncio.create_task(self._listen(index, rank)) for index, rank in enumerate(self._ranks)
        ]
        watching = asyncio.create_task(self._watch())
        await asyncio.wait([*listening, watching], return_when=asyncio.FIRST_COMPLETED)
        hangs = watching.done()
        watching.cancel()
        self._failure = watching.result() if hangs else await self._cause(listening)
        # None of them can go on without the others.
        for rank in self._ranks:
            if hangs:
                rank.kill()
            rank.close()
        for asked in self._open.values():
            asked.mailbox.fail(RankError(self._failure))
        if not self._loaded.done():
            self._loaded.set_result(self._failure)
        await asyncio.gather(*listening, *(rank.wait() for rank in self._ranks))
        self._meeting.close()
        return self._failure

    async def _cause(self, listening: "Sequence[asyncio.Task[Failed]]") -> Failed:
        """The words of the first that ends; of the next one where it only misses another."""
        first = await listening[self._signs[0]]
        ending = asyncio.as_completed(listening, timeout=_CAUSE_S)
        with suppress(TimeoutError):
            while first.is_consequence:
                found = await next(ending)
                if not found.is_consequence:
                    return found
        return first

    async def _watch(self) -> Failed:
        """Returns when ranks that were asked something have been silent for too long."""
        while True:
            await asyncio.sleep(self._silent_s / 10)
            if self._silent_since_s is None:
                continue
            silent_s = time.monotonic() - self._silent_since_s
            if silent_s > self._silent_s:
                words = f"no answer to a command and no end of a step for {silent_s:.0f} s"
                return Failed(Reason.CONTAINER_FAILED, words)

    async def _listen(self, index: int, rank: RankProcess) -> Failed:
        """Its last words, or how it ended."""
        last_words: Failed | None = None
        async for message in rank.received():
            match message:
                case Step():
                    self._deliver(message)
                case Loaded():
                    self.load = replace(_NO_LOAD, num_pages=message.num_pages)
                    self._loaded.set_result(message)
                case Failed():
                    last_words = message
                    break
        self._signs.append(index)
        failure = last_words or await rank.wait()
        if len(self._ranks) == 1:
            return failure
        return msgspec.structs.replace(failure, message=f"rank {index}: {failure.message}")

    def _deliver(self, step: Step) -> None:
        now_s = time.monotonic()
        self.load = step.load
        for request_id in step.admitted:
            if (asked := self._open.get(request_id)) is not None:
                asked.mailbox.admitted_s[request_id] = now_s - step.run_s
        for outcome in step.outcomes:
            if (asked := self._open.get(outcome.request_id)) is not None:
                asked.mailbox.outcomes.append(outcome)
        for progress in step.progress:
            asked = self._open.get(progress.request_id)
            # Gone: the client left, or the text ended, while the step ran.
            if asked is None or progress.sample not in asked.samples:
                continue
            asked.mailbox.put(now_s, progress)
            if progress.finish is not None:
                self._close_sample(asked, progress.request_id, progress.sample)
        for failure in step.failures:
            if (asked := self._open.get(failure.request_id)) is not None:
                self.give_up(asked.mailbox, RequestError(failure))
        self._silent_since_s = now_s if self._open else None
        self.on_step(step)

    def _close_sample(self, asked: _Open, request_id: str, sample: int) -> None:
        asked.samples.remove(sample)
        if not asked.samples:
            del self._open[request_id]
