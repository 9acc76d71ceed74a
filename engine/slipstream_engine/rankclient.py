"""The serving process's side of the rank: starts it, asks it, notices its death.

Knows requests and tokens; no text, no HTTP, no torch.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from slipstream_api.conditions import Reason
from slipstream_engine import messages
from slipstream_engine.messages import Abort, Failed, Loaded, Start, Step, Submit, ToRank
from slipstream_engine.request import Request
from slipstream_engine.scheduler import Load, Progress

_STOP_S = 5.0


class RankError(Exception):
    """The rank is gone; `failure` says why."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RankClient:
    """One rank process. Create it with `start`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._answers: dict[str, asyncio.Queue[Progress | RankError]] = {}
        self._failure: Failed | None = None
        self.load = Load(num_running=0, num_waiting=0, num_pages_used=0, num_pages=1)
        self._loaded: asyncio.Future[Loaded | Failed] = asyncio.get_running_loop().create_future()
        # Done when the process is gone, for whatever reason.
        self.ended = asyncio.create_task(self._follow())

    @classmethod
    async def start(cls, config: str) -> "RankClient":
        """Start the process and hand it the configuration; it loads the model meanwhile."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "slipstream_engine.rank",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=_environment(),
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        client = cls(process, reader, writer)
        client._send(Start(config))
        return client

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._failure is None

    async def wait_loaded(self) -> Loaded | Failed:
        return await asyncio.shield(self._loaded)

    @asynccontextmanager
    async def generate(self, request: Request) -> AsyncIterator[AsyncIterator[Progress]]:
        """Tokens as they come; leaving early aborts the request. The iterator raises RankError."""
        if self._failure is not None:
            raise RankError(self._failure)
        queue: asyncio.Queue[Progress | RankError] = asyncio.Queue()
        self._answers[request.id] = queue
        try:
            self._send(Submit(request))
            yield self._follow_answer(queue)
        finally:
            # Still there: the answer has no end yet.
            if self._answers.pop(request.id, None) is not None and self._failure is None:
                self._send(Abort(request.id))

    async def stop(self) -> None:
        """End the process: at once while it loads, after its current step later."""
        self._writer.close()
        if not self._loaded.done():
            self._process.kill()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self.ended

    async def _follow_answer(
        self, queue: "asyncio.Queue[Progress | RankError]"
    ) -> AsyncIterator[Progress]:
        while True:
            item = await queue.get()
            if isinstance(item, RankError):
                raise item
            yield item
            if item.finish is not None:
                return

    async def _follow(self) -> Failed:
        last_words: Failed | None = None
        try:
            while True:
                head = await self._reader.readexactly(messages.LENGTH.size)
                body = await self._reader.readexactly(messages.LENGTH.unpack(head)[0])
                match messages.decode_from_rank(body):
                    case Failed() as last_words:
                        break
                    case Loaded() as loaded:
                        self._loaded.set_result(loaded)
                    case Step() as step:
                        self._deliver(step)
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError):
            pass
        self._failure = last_words or Failed(
            Reason.CONTAINER_FAILED, _describe(await self._process.wait())
        )
        for queue in self._answers.values():
            queue.put_nowait(RankError(self._failure))
        if not self._loaded.done():
            self._loaded.set_result(self._failure)
        return self._failure

    def _deliver(self, step: Step) -> None:
        self.load = step.load
        for progress in step.progress:
            # Gone: the client left while the step ran.
            queue = self._answers.get(progress.request_id)
            if queue is not None:
                queue.put_nowait(progress)
                if progress.finish is not None:
                    del self._answers[progress.request_id]

    def _send(self, message: ToRank) -> None:
        self._writer.write(messages.encode_to_rank(message))


def _environment() -> dict[str, str]:
    """Threads of a matrix product sleep while they wait for each other instead of spinning.

    Two busy x86 cores: half the processor time a token (66 ms instead of 128), the same delay.
    """
    return {"OMP_WAIT_POLICY": "passive", **os.environ}


def _describe(code: int) -> str:
    if code < 0:
        return f"the rank process was ended by {signal.Signals(-code).name}"
    return f"the rank process ended with exit code {code}"
