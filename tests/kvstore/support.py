"""A cache in this process with short deadlines, its clients, and peers that misbehave: all over
real sockets."""

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from slipstream_kvstore import codec, keys
from slipstream_kvstore.breaker import Policy
from slipstream_kvstore.channel import Channel
from slipstream_kvstore.client import Client
from slipstream_kvstore.codec import Header, Kind, Limits, PageHead
from slipstream_kvstore.metrics import Metrics
from slipstream_kvstore.server import Server
from slipstream_kvstore.session import InFlight, Service, Timeouts
from slipstream_kvstore.store import Store

TOKEN = b"the-token"
TENANT = keys.tenant_id("a-tenant")
PAGE_BYTES = 4096
HOST = "127.0.0.1"
# Long for a machine that is busy with something else; nothing waits for it when all is well.
LONG_S = 20.0
LIMITS = Limits(max_keys=64, max_page_bytes=1024 * 1024)


def page_key(number: int) -> bytes:
    return hashlib.sha256(b"key %d" % number).digest()


def page_keys(count: int, start: int = 0) -> list[bytes]:
    return [page_key(number) for number in range(start, start + count)]


def content(number: int, num_bytes: int = PAGE_BYTES) -> memoryview:
    """Every page's bytes are its own."""
    return memoryview(hashlib.shake_128(b"page %d" % number).digest(num_bytes))


def contents(count: int, start: int = 0, num_bytes: int = PAGE_BYTES) -> list[memoryview]:
    return [content(number, num_bytes) for number in range(start, start + count)]


def empty(count: int, num_bytes: int = PAGE_BYTES) -> list[memoryview]:
    """Pages to be filled."""
    return [memoryview(bytearray(num_bytes)) for _ in range(count)]


def tokens(*values: bytes) -> Callable[[], Sequence[bytes]]:
    return lambda: values


@dataclass
class Cache:
    server: Server
    service: Service
    port: int

    @property
    def store(self) -> Store:
        return self.service.store

    def metric(self, name: str, **labels: str) -> float:
        self.service.metrics.text(self.store, self.service.in_flight.used_bytes)
        value = self.service.metrics.registry.get_sample_value(f"slipstream_cache_{name}", labels)
        assert value is not None, f"no {name}{labels}"
        return value


@contextlib.asynccontextmanager
async def cache(
    *,
    max_bytes: int = 64 * 1024 * 1024,
    tenant_max_bytes: int | None = None,
    limits: Limits = LIMITS,
    timeouts: Timeouts | None = None,
    max_in_flight_bytes: int = 8 * 1024 * 1024,
    max_connections: int = 16,
    accepts: Callable[[bytes], bool] = lambda token: token == TOKEN,
    port: int = 0,
) -> AsyncIterator[Cache]:
    service = Service(
        store=Store(max_bytes, tenant_max_bytes),
        limits=limits,
        timeouts=timeouts or Timeouts(hello_s=LONG_S, io_s=LONG_S, idle_s=LONG_S),
        in_flight=InFlight(max_in_flight_bytes),
        accepts=accepts,
        metrics=Metrics(),
    )
    server = Server(service, max_connections)
    made = Cache(server, service, server.start(HOST, port))
    try:
        yield made
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def client(
    port: int,
    *,
    token: bytes = TOKEN,
    max_connections: int = 4,
    policy: Policy | None = None,
) -> AsyncIterator[Client]:
    made = Client(HOST, port, tokens(token), max_connections=max_connections, policy=policy)
    try:
        yield made
    finally:
        made.close()


Behaviour = Callable[[Channel], Awaitable[None]]


@contextlib.asynccontextmanager
async def peer(behaviour: Behaviour) -> AsyncIterator[int]:
    """A server that does what `behaviour` does with each connection, then closes it; its port."""
    loop = asyncio.get_running_loop()
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()

    async def live(channel: Channel) -> None:
        try:
            await behaviour(channel)
        except OSError:
            return
        finally:
            channel.close()

    async def accept() -> None:
        while True:
            sock, _ = await loop.sock_accept(listener)
            tasks.add(asyncio.create_task(live(Channel(sock))))

    accepting = asyncio.create_task(accept())
    try:
        yield listener.getsockname()[1]
    finally:
        for task in (accepting, *tasks):
            task.cancel()
        await asyncio.wait({accepting, *tasks})
        listener.close()


async def let_in(channel: Channel, limits: Limits = LIMITS) -> None:
    """A server's part of HELLO."""
    header = codec.parse_header(await channel.receive(codec.HEADER_BYTES))
    await channel.receive(header.count)
    await channel.send(codec.pack_header(header), codec.pack_limits(limits))


async def next_request(channel: Channel) -> tuple[Header, bytes]:
    """A request up to its first page."""
    header = codec.parse_header(await channel.receive(codec.HEADER_BYTES))
    return header, await channel.receive(codec.request_bytes(header, LIMITS))


@contextlib.asynccontextmanager
async def raw(port: int) -> AsyncIterator[Channel]:
    """A connection of which the server knows nothing."""
    sock = socket.create_connection((HOST, port))
    channel = Channel(sock)
    try:
        yield channel
    finally:
        channel.close()


def hello(token: bytes = TOKEN) -> bytes:
    return codec.pack_header(Header(Kind.HELLO, 0, len(token))) + token


def set_request(number: int, *, damage: int = 0) -> bytes:
    page = content(number)
    head = PageHead(page_key(number), len(page), codec.checksum(page_key(number), page) ^ damage)
    header = codec.pack_header(Header(Kind.SET, 5, 1))
    return header + TENANT + codec.pack_page_head(head) + page


async def greet(channel: Channel, token: bytes = TOKEN) -> None:
    """A client's part of HELLO."""
    await channel.send(hello(token))
    codec.parse_header(await channel.receive(codec.HEADER_BYTES))
    await channel.receive(codec.HELLO_BYTES)


async def eventually(condition: Callable[[], bool], limit_s: float = LONG_S) -> None:
    """Wait until something is so; the time is only a bound."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  (a remote state)
            await asyncio.sleep(0.01)
