"""Server-sent events: what goes over the wire, and how a stream that fails is seen to fail."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import web

from slipstream_engine.apierror import ApiError

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
# How long a client may take to read what was sent to it before a cut.
_FLUSH_S = 5.0
# How long a client may read nothing while more waits for it: it holds a place in the queue.
_STALL_S = 30.0
# How long a stream may be silent while its answer goes on: a long call is sent when all of it is
# there, and gateways and proxies give up on silence (nginx after 60 s).
_SILENCE_S = 10.0
# Half of what asyncio takes without being read before it makes a writer wait.
_NEVER_WAITS_BYTES = 32 * 1024


class EventStream:
    """The answer to one request. Nothing is sent before the first event: until then it may fail
    with a status. Nobody is waited for beyond `deadline_s` (of `time.monotonic`)."""

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self.response = web.StreamResponse(headers={**headers, **_HEADERS})
        self.deadline_s = math.inf
        self.is_open = False
        self._written_s = 0.0
        self._request = request

    async def send(self, documents: Sequence[bytes]) -> None:
        """One event each, in one write. Raises ConnectionError for a client that is not there or
        does not read."""
        if not self.is_open:
            self.is_open = True
            await self.response.prepare(self._request)
        await self._write(b"".join([b"data: %b\n\n" % one for one in documents]))

    async def stay_alive(self) -> None:
        """A comment, which clients pass over, where nothing was sent for a while."""
        if self.is_open and time.monotonic() - self._written_s > _SILENCE_S:
            await self._write(b": the answer goes on\n\n")

    async def end(self) -> None:
        await self._write(b"data: [DONE]\n\n")
        await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        self._written_s = time.monotonic()
        transport = self._request.transport
        if transport is None or (
            transport.get_write_buffer_size() == 0 and len(data) < _NEVER_WAITS_BYTES
        ):
            # All was read, as nearly always: no need for a timer of 4 µs.
            await self.response.write(data)
            return
        wait_s = max(_FLUSH_S, min(_STALL_S, self.deadline_s - self._written_s))
        try:
            async with asyncio.timeout(wait_s):
                await self.response.write(data)
        except TimeoutError as error:
            transport.abort()
            raise ConnectionResetError("the client does not read") from error

    async def fail(self, error: ApiError) -> None:
        """An error event and then the connection's end, without the end of the answer.

        A proxy would take a proper end for success.
        """
        transport = self._request.transport
        if transport is None:
            return
        try:
            await self.send([msgspec.json.encode(error.document())])
        except ConnectionError:
            return
        except BaseException:
            transport.abort()
            raise
        else:
            # What was written still goes out, if the client reads it.
            transport.close()
            asyncio.get_running_loop().call_later(_FLUSH_S, transport.abort)
