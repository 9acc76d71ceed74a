"""One rank as an operating-system process: its start, its socket, its end. Knows no requests."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from slipstream_api.conditions import Reason
from slipstream_engine import messages
from slipstream_engine.messages import Failed, FromRank, Start, ToRank

MODULE = "slipstream_engine.rank"
# How long a process may take to end after its socket is closed.
_END_S = 5.0


class RankProcess:
    """Create it with `start`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, start: Start, module: str) -> "RankProcess":
        """Start `module` with one end of a socket and hand it its first message."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=environment(),
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        made = cls(process, reader, writer)
        made.send(start)
        return made

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToRank) -> None:
        self._writer.write(messages.encode(message))

    async def received(self) -> AsyncIterator[FromRank]:
        """Until the process closes its end, or sends what is no message: then it is ended."""
        try:
            while True:
                head = await self._reader.readexactly(messages.LENGTH.size)
                body = await self._reader.readexactly(messages.LENGTH.unpack(head)[0])
                yield messages.decode_from_rank(body)
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError):
            return
        except msgspec.MsgspecError as error:
            self.kill()
            yield Failed(Reason.CONTAINER_FAILED, f"no message of a rank: {error}")

    async def wait(self) -> Failed:
        """How it ended, in words; one that does not end by itself is killed."""
        try:
            code = await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
        return Failed(Reason.CONTAINER_FAILED, _describe(code))

    def close(self) -> None:
        """Ask it to end: it sees its socket close."""
        self._writer.close()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


def environment() -> dict[str, str]:
    """Threads of a matrix product wait for each other for some microseconds, then sleep.

    A step is a hundred short products. Two AVX-512 cores, SmolLM2-135M in 4 bits, a step of one
    token: 9.2 ms so, 16 ms when they sleep at once, 9.2 ms when they spin as long as libgomp's
    default, but 300 ms then when another process wants the cores too.
    """
    return {"GOMP_SPINCOUNT": "10000", **os.environ}


def _describe(code: int) -> str:
    if code < 0:
        return f"the rank process was ended by {signal.Signals(-code).name}"
    return f"the rank process ended with exit code {code}"
