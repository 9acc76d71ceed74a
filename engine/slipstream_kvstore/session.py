"""One client's connection: HELLO, then requests. Every wait has a deadline, every size a limit.

One request at a time, one page at a time of a request: a connection holds one page's memory at
most, however large its request and however slow its peer.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from slipstream_kvstore import codec
from slipstream_kvstore.channel import Channel, ClosedError
from slipstream_kvstore.codec import (
    Found,
    FoundHead,
    Header,
    Kind,
    Limits,
    PageHead,
    Status,
    Stored,
    VersionError,
    WireError,
)
from slipstream_kvstore.metrics import Ended, Metrics
from slipstream_kvstore.store import Page, Store

log = logging.getLogger("slipstream.cache")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """`io_s`: for one page, or one message without its pages. `idle_s`: between two requests."""

    hello_s: float
    io_s: float
    idle_s: float


@dataclass(slots=True)
class InFlight:
    """Bytes of pages on their way, of all connections together."""

    max_bytes: int
    used_bytes: int = field(default=0, init=False)

    @contextlib.contextmanager
    def hold(self, num_bytes: int) -> Iterator[bool]:
        """False: there is no room, and none was taken."""
        if self.used_bytes + num_bytes > self.max_bytes:
            yield False
            return
        self.used_bytes += num_bytes
        try:
            yield True
        finally:
            self.used_bytes -= num_bytes


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections share."""

    store: Store
    limits: Limits
    timeouts: Timeouts
    in_flight: InFlight
    accepts: Callable[[bytes], bool]
    metrics: Metrics


class RefusedError(Exception):
    """The peer does not get in, or not further; it is told a status and the connection ends."""

    def __init__(self, status: Status, reason: Ended, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason


class Session:
    """`is_idle`: between two requests, where a cut costs the client a new connection only."""

    def __init__(self, service: Service, channel: Channel) -> None:
        self._channel = channel
        self._limits = service.limits
        self._timeouts = service.timeouts
        self._service = service
        self._store = service.store
        self._metrics = service.metrics
        self._is_ending = False
        self.is_idle = False

    def end_after_this_request(self) -> None:
        self._is_ending = True

    async def serve(self) -> None:
        """Until the client closes. Raises RefusedError, TimeoutError, OSError."""
        try:
            async with asyncio.timeout(self._timeouts.hello_s):
                if not await self._greet():
                    return
            while not self._is_ending:
                header = await self._next_request()
                if header is None:
                    return
                await self._answer(header)
        except VersionError as error:
            raise RefusedError(Status.UNSUPPORTED_VERSION, Ended.VERSION, str(error)) from error
        except WireError as error:
            raise RefusedError(Status.INVALID, Ended.PROTOCOL, str(error)) from error

    async def tell(self, status: Status) -> None:
        """Why the connection ends, if the peer listens. Raises TimeoutError, OSError."""
        async with asyncio.timeout(self._timeouts.hello_s):
            await self._channel.send(codec.pack_header(Header(Kind.HELLO, 0, 0, status)))

    async def _greet(self) -> bool:
        """False: the peer closed without a word, as a probe of the port does."""
        header = await self._header()
        if header is None:
            return False
        if header.kind is not Kind.HELLO:
            raise WireError(f"{header.kind.name} before HELLO")
        token = await self._channel.receive(codec.request_bytes(header, self._limits))
        if not self._service.accepts(token):
            raise RefusedError(Status.UNAUTHORIZED, Ended.TOKEN, "not a valid token")
        await self._channel.send(codec.pack_header(header), codec.pack_limits(self._limits))
        return True

    async def _next_request(self) -> Header | None:
        """None: the client closed or has been silent for too long."""
        self.is_idle = True
        try:
            async with asyncio.timeout(self._timeouts.idle_s):
                header = await self._header()
        except TimeoutError:
            self._metrics.ended[Ended.IDLE].inc()
            return None
        finally:
            self.is_idle = False
        if header is not None and header.kind is Kind.HELLO:
            raise WireError("a second HELLO")
        return header

    async def _header(self) -> Header | None:
        """None: the peer closed instead of sending one."""
        try:
            data = await self._channel.receive(codec.HEADER_BYTES)
        except ClosedError as closed:
            if closed.num_received:
                raise
            return None
        return codec.parse_header(data)

    async def _answer(self, header: Header) -> None:
        num_bytes = codec.request_bytes(header, self._limits)
        async with self._deadline():
            head = await self._channel.receive(num_bytes)
        if header.kind is Kind.SET:
            await self._set(header, tenant=head)
        elif header.kind is Kind.GET:
            await self._get(header, codec.parse_keys(head))
        else:
            await self._exists(header, codec.parse_keys(head))

    async def _exists(self, header: Header, keys: list[bytes]) -> None:
        are_there = [self._store.find(key) is not None for key in keys]
        self._store.touch(keys)
        for is_there in are_there:
            self._metrics.exists[is_there].inc()
        async with self._deadline():
            await self._channel.send(codec.pack_header(header), codec.pack_bits(are_there))

    async def _get(self, header: Header, keys: list[bytes]) -> None:
        # Before the first page is sent, so that the rest is still there when its turn comes.
        self._store.touch(keys)
        # Misses gather here and leave with the next page: a packet each would cost more.
        waiting = bytearray(codec.pack_header(header))
        for key in keys:
            page = self._store.find(key)
            if page is None:
                waiting += codec.pack_found_head(FoundHead(Found.MISS))
                self._metrics.found[Found.MISS].inc()
                continue
            num_bytes = len(page.body)
            with self._service.in_flight.hold(num_bytes) as is_allowed:
                if not is_allowed:
                    waiting += codec.pack_found_head(FoundHead(Found.BUSY))
                    self._metrics.found[Found.BUSY].inc()
                    continue
                waiting += codec.pack_found_head(FoundHead(Found.HIT, num_bytes, page.checksum))
                async with self._deadline():
                    await self._channel.send(bytes(waiting), memoryview(page.body))
            waiting.clear()
            self._metrics.found[Found.HIT].inc()
            self._metrics.sent_bytes.inc(num_bytes)
        async with self._deadline():
            await self._channel.send(bytes(waiting))

    async def _set(self, header: Header, tenant: bytes) -> None:
        results: list[Stored] = []
        keys: list[bytes] = []
        for _ in range(header.count):
            async with self._deadline():
                head = codec.parse_page_head(
                    await self._channel.receive(codec.PAGE_HEAD_BYTES), self._limits
                )
                result = await self._take(head, tenant)
            self._metrics.stored[result].inc()
            results.append(result)
            keys.append(head.key)
        self._store.touch(keys)
        async with self._deadline():
            await self._channel.send(codec.pack_header(header), codec.pack_stored(results))

    async def _take(self, head: PageHead, tenant: bytes) -> Stored:
        """One page from the connection into the store, or past it."""
        if not self._store.admits(head.length):
            await self._channel.discard(head.length)
            return Stored.TOO_LARGE
        with self._service.in_flight.hold(head.length) as is_allowed:
            if not is_allowed:
                await self._channel.discard(head.length)
                return Stored.BUSY
            body = bytearray(head.length)
            await self._channel.receive_into(memoryview(body))
            if codec.checksum(head.key, body) != head.checksum:
                return Stored.CORRUPT
            evicted = self._store.put(head.key, Page(body, head.checksum, tenant))
        self._metrics.received_bytes.inc(head.length)
        self._metrics.evicted_by_capacity.inc(evicted.by_capacity)
        self._metrics.evicted_by_quota.inc(evicted.by_quota)
        return Stored.STORED

    @contextlib.asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        """For one page or message. Raises TimeoutError."""
        # What is there already is read without a wait: one busy client must not be the only one.
        await asyncio.sleep(0)
        async with asyncio.timeout(self._timeouts.io_s):
            yield
