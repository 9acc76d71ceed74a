"""Server-sent events: what goes over the wire, and how a stream that fails is seen to fail."""

import asyncio
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


class EventStream:
    """The answer to one request. Nothing is sent before the first event: until then it may fail
    with a status."""

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self.response = web.StreamResponse(headers={**headers, **_HEADERS})
        self._request = request
        self.is_open = False

    async def send(self, documents: Sequence[bytes]) -> None:
        """One event each, in one write."""
        if not self.is_open:
            self.is_open = True
            await self.response.prepare(self._request)
        await self.response.write(b"".join([b"data: %b\n\n" % one for one in documents]))

    async def end(self) -> None:
        await self.response.write(b"data: [DONE]\n\n")
        await self.response.write_eof()

    async def fail(self, error: ApiError) -> None:
        """An error event and then the connection's end, without the end of the answer.

        A proxy would take a proper end for success.
        """
        transport = self._request.transport
        if transport is None:
            return
        # Only a client that does not read makes this wait.
        asyncio.get_running_loop().call_later(_FLUSH_S, transport.abort)
        try:
            async with asyncio.timeout(_FLUSH_S):
                await self.send([msgspec.json.encode(error.document())])
        except (TimeoutError, ConnectionError):
            return
        finally:
            # After what was written.
            transport.close()
