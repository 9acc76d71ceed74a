"""The engine's side of the cache: whatever goes wrong is a miss, within the time the caller gave.

A call gives one answer for each key and raises for nothing that the network or the server can do,
only for arguments that make no sense. While the breaker is open it returns at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from slipstream_kvstore import breaker as breakers
from slipstream_kvstore import codec
from slipstream_kvstore.breaker import Breaker, Policy
from slipstream_kvstore.codec import Found, Kind, PageHead, Status, Stored, WireError
from slipstream_kvstore.keys import KEY_BYTES, TENANT_BYTES
from slipstream_kvstore.pool import Connection, Pool, StatusError


class Failure(Enum):
    """Why a call gave less than the server may have had."""

    TIMEOUT = auto()
    # Refused, reset, cut, or no such host.
    CONNECTION = auto()
    # What came is not the protocol, or another version of it.
    PROTOCOL = auto()
    UNAUTHORIZED = auto()
    # All connections were in use for as long as the caller would wait: says nothing of the server.
    POOL = auto()
    # The breaker was open: nothing was asked.
    OPEN = auto()


@dataclass(slots=True)
class Counts:
    """Since the client was made. Pages, unless the name says otherwise."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    # By the server (full, too large, damaged on the way) or for being larger than it takes.
    not_stored: int = 0
    # There, but the server had no room to send it.
    busy: int = 0
    # The bytes had another checksum than the writer's.
    corrupt: int = 0
    # Not as long as the caller's page: a key from another layout.
    mismatched: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    # Calls.
    failures: dict[Failure, int] = field(default_factory=lambda: dict.fromkeys(Failure, 0))


class Client:
    """Of one event loop. `max_connections` bounds the calls that are under way at once."""

    def __init__(
        self,
        host: str,
        port: int,
        tokens: Callable[[], Sequence[bytes]],
        *,
        max_connections: int = 4,
        policy: Policy | None = None,
    ) -> None:
        """`tokens`: what may open the server now, the best one first (`credentials.Tokens`)."""
        self._pool = Pool(host, port, tokens)
        self._slots = asyncio.Semaphore(max_connections)
        self._policy = policy or Policy()
        self._breaker = Breaker()
        self.counts = Counts()

    @property
    def is_open(self) -> bool:
        """Whether the breaker keeps calls away from the server."""
        return not self._breaker.is_closed

    def close(self) -> None:
        self._pool.close()

    async def exists(self, keys: Sequence[bytes], *, timeout_s: float) -> list[bool]:
        """Which pages are there; asking counts as a use of them."""
        _check_keys(keys)
        found = [False] * len(keys)

        async def exchange(connection: Connection) -> None:
            for chunk in _chunks(range(len(keys)), connection):
                body = codec.pack_keys([keys[i] for i in chunk])
                await connection.reply(await connection.begin(Kind.EXISTS, len(chunk), body))
                bits = codec.parse_bits(await connection.channel.receive(len(chunk)))
                for index, is_there in zip(chunk, bits, strict=True):
                    found[index] = is_there

        await self._attempt(exchange, len(keys), timeout_s)
        return found

    async def get(
        self, keys: Sequence[bytes], pages: Sequence[memoryview], *, timeout_s: float
    ) -> list[bool]:
        """Fill each page whose answer is True; one whose answer is False holds anything.

        Pages come one by one: a call that fails half-way has the answers up to there. Nothing is
        written to a page after this returned. Every key is asked for, also behind a miss.
        """
        _check_keys(keys)
        targets = _flat(keys, pages)
        got = [False] * len(keys)

        async def exchange(connection: Connection) -> None:
            for chunk in _chunks(range(len(keys)), connection):
                body = codec.pack_keys([keys[i] for i in chunk])
                await connection.reply(await connection.begin(Kind.GET, len(chunk), body))
                for index in chunk:
                    got[index] = await self._receive(connection, keys[index], targets[index])

        await self._attempt(exchange, len(keys), timeout_s)
        return got

    async def set(
        self,
        tenant: bytes,
        keys: Sequence[bytes],
        pages: Sequence[memoryview],
        *,
        timeout_s: float,
    ) -> list[bool]:
        """Which pages the server can give from now on. `tenant`: `keys.tenant_id`.

        They go in order and must not change before this returned. A page of which nothing is known
        counts as not stored; it may be.
        """
        _check_keys(keys)
        if len(tenant) != TENANT_BYTES:
            raise ValueError(f"a tenant of {len(tenant)} bytes")
        sources = _flat(keys, pages)
        stored = [False] * len(keys)

        async def exchange(connection: Connection) -> None:
            most = connection.limits.max_page_bytes
            fitting = [i for i, source in enumerate(sources) if len(source) <= most]
            self.counts.not_stored += len(sources) - len(fitting)
            for chunk in _chunks(fitting, connection):
                request = await connection.begin(Kind.SET, len(chunk), tenant)
                for index in chunk:
                    await self._send(connection, keys[index], sources[index])
                await connection.reply(request)
                results = codec.parse_stored(await connection.channel.receive(len(chunk)))
                for index, result in zip(chunk, results, strict=True):
                    stored[index] = result is Stored.STORED
                self.counts.stored += results.count(Stored.STORED)
                self.counts.not_stored += len(results) - results.count(Stored.STORED)

        await self._attempt(exchange, len(keys), timeout_s)
        return stored

    async def _receive(self, connection: Connection, key: bytes, target: memoryview) -> bool:
        channel = connection.channel
        data = await channel.receive(codec.FOUND_HEAD_BYTES)
        head = codec.parse_found_head(data, connection.limits)
        if head.state is Found.MISS:
            self.counts.misses += 1
            return False
        if head.state is Found.BUSY:
            self.counts.busy += 1
            return False
        if head.length != len(target):
            await channel.discard(head.length)
            self.counts.mismatched += 1
            return False
        await channel.receive_into(target)
        self.counts.received_bytes += head.length
        if codec.checksum(key, target) != head.checksum:
            self.counts.corrupt += 1
            return False
        self.counts.hits += 1
        return True

    async def _send(self, connection: Connection, key: bytes, source: memoryview) -> None:
        head = PageHead(key, len(source), codec.checksum(key, source))
        await connection.channel.send(codec.pack_page_head(head), source)
        self.counts.sent_bytes += len(source)

    async def _attempt(
        self, exchange: Callable[[Connection], Awaitable[None]], num_keys: int, timeout_s: float
    ) -> None:
        """Let `exchange` do what it can in the time there is."""
        if not num_keys:
            return
        loop = asyncio.get_running_loop()
        self._breaker, permit = breakers.admit(self._breaker, loop.time())
        if permit is None:
            self.counts.failures[Failure.OPEN] += 1
            return
        has_slot = False
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                has_slot = True
                async with self._pool.connection() as connection:
                    await exchange(connection)
        except (OSError, WireError) as error:
            failure = _failure(error) if has_slot else Failure.POOL
            self.counts.failures[failure] += 1
            if has_slot:
                self._breaker = breakers.failed(self._breaker, permit, self._policy, loop.time())
            else:
                self._breaker = breakers.abandoned(self._breaker, permit)
        except BaseException:
            self._breaker = breakers.abandoned(self._breaker, permit)
            raise
        else:
            self._breaker = breakers.succeeded(self._breaker, permit)


def _failure(error: Exception) -> Failure:
    if isinstance(error, TimeoutError):
        return Failure.TIMEOUT
    if isinstance(error, OSError):
        return Failure.CONNECTION
    if isinstance(error, StatusError) and error.status is Status.UNAUTHORIZED:
        return Failure.UNAUTHORIZED
    return Failure.PROTOCOL


def _chunks(indices: Sequence[int], connection: Connection) -> Iterator[Sequence[int]]:
    """As many at a time as the server takes."""
    size = connection.limits.max_keys
    return (indices[at : at + size] for at in range(0, len(indices), size))


def _check_keys(keys: Sequence[bytes]) -> None:
    if any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"a page's key has {KEY_BYTES} bytes")


def _flat(keys: Sequence[bytes], pages: Sequence[memoryview]) -> list[memoryview]:
    """Raises ValueError, and TypeError for a page that is not contiguous."""
    if len(keys) != len(pages) or not all(page.nbytes for page in pages):
        raise ValueError(f"{len(keys)} keys and {len(pages)} pages, none of them empty")
    return [page.cast("B") for page in pages]
