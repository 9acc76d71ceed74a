"""The client's connections to one server: opened when needed, greeted, kept while they are quiet.

Errors: codec.WireError ─ StatusError (the server answered with a status that is not OK)
"""

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence

from slipstream_kvstore import channel as channels
from slipstream_kvstore import codec
from slipstream_kvstore.channel import Channel
from slipstream_kvstore.codec import Header, Kind, Limits, Status, WireError


class StatusError(WireError):
    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


class Connection:
    """Let in by the server; one request after the other."""

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self.channel = channel
        self.limits = limits
        self._ids = itertools.count(1)

    async def begin(self, kind: Kind, count: int, body: bytes) -> Header:
        """Send a request, up to the first page. Raises OSError."""
        request = Header(kind, next(self._ids) % 2**32, count)
        await self.channel.send(codec.pack_header(request), body)
        return request

    async def reply(self, request: Header) -> None:
        """Read the reply's header. Raises OSError, WireError."""
        await _reply(self.channel, request)


class Pool:
    """Bounds nothing: how many connections there are at once is the caller's affair."""

    def __init__(self, host: str, port: int, tokens: Callable[[], Sequence[bytes]]) -> None:
        self._host = host
        self._port = port
        self._tokens = tokens
        self._quiet: list[Connection] = []
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One for the caller alone. Raises OSError, WireError; after any error it is closed."""
        connection = self._pick() or await self._open()
        try:
            yield connection
        except BaseException:
            connection.channel.close()
            raise
        if self._is_closed:
            connection.channel.close()
        else:
            self._quiet.append(connection)

    def close(self) -> None:
        """Those in use are closed when they come back."""
        self._is_closed = True
        for connection in self._quiet:
            connection.channel.close()
        self._quiet.clear()

    def _pick(self) -> Connection | None:
        """The one used last: the others are the first to grow idle and be closed by the server."""
        while self._quiet:
            connection = self._quiet.pop()
            if connection.channel.is_quiet():
                return connection
            connection.channel.close()
        return None

    async def _open(self) -> Connection:
        # The files of a rotated Secret arrive at different times on the two sides.
        for token in self._tokens():
            channel = await channels.connect(self._host, self._port)
            try:
                return Connection(channel, await _greet(channel, token))
            except StatusError as refusal:
                channel.close()
                if refusal.status is not Status.UNAUTHORIZED:
                    raise
            except BaseException:
                channel.close()
                raise
        raise StatusError(Status.UNAUTHORIZED)


async def _greet(channel: Channel, token: bytes) -> Limits:
    request = Header(Kind.HELLO, 0, len(token))
    await channel.send(codec.pack_header(request), token)
    await _reply(channel, request)
    return codec.parse_limits(await channel.receive(codec.HELLO_BYTES))


async def _reply(channel: Channel, request: Header) -> None:
    reply = codec.parse_header(await channel.receive(codec.HEADER_BYTES))
    if reply.status is not Status.OK:
        raise StatusError(reply.status)
    codec.check_reply(reply, request)
