"""Whatever the server does, a call ends in time, raises nothing and gives what arrived whole."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from slipstream_kvstore import codec
from slipstream_kvstore.breaker import Policy
from slipstream_kvstore.channel import Channel
from slipstream_kvstore.client import Client, Failure
from slipstream_kvstore.codec import Found, FoundHead, Header, Kind, Limits, Status
from tests.kvstore.support import (
    HOST,
    LONG_S,
    PAGE_BYTES,
    TENANT,
    TOKEN,
    Behaviour,
    cache,
    client,
    content,
    contents,
    empty,
    let_in,
    next_request,
    page_key,
    page_keys,
    peer,
    tokens,
)

pytestmark = pytest.mark.asyncio

Call = Callable[[Client], Awaitable[list[bool]]]
CALLS: dict[str, Call] = {
    "exists": lambda it: it.exists(page_keys(3), timeout_s=LONG_S),
    "get": lambda it: it.get(page_keys(3), empty(3), timeout_s=LONG_S),
    "set": lambda it: it.set(TENANT, page_keys(3), contents(3), timeout_s=LONG_S),
}


def hit(number: int) -> bytes:
    """A page as a good server sends it."""
    page = content(number)
    head = FoundHead(Found.HIT, len(page), codec.checksum(page_key(number), page))
    return codec.pack_found_head(head) + page


async def closes_at_once(channel: Channel) -> None:
    return


async def closes_after_hello(channel: Channel) -> None:
    await let_in(channel)


async def closes_after_the_request(channel: Channel) -> None:
    await let_in(channel)
    await next_request(channel)


async def speaks_another_protocol(channel: Channel) -> None:
    await channel.receive(1)
    await channel.send(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")


async def speaks_another_version(channel: Channel) -> None:
    await channel.receive(1)
    reply = bytearray(codec.pack_header(Header(Kind.HELLO, 0, 0, Status.UNSUPPORTED_VERSION)))
    reply[4] = 2
    await channel.send(bytes(reply))


async def answers_another_request(channel: Channel) -> None:
    await let_in(channel)
    header, _ = await next_request(channel)
    reply = Header(header.kind, header.request_id + 1, header.count)
    await channel.send(codec.pack_header(reply), bytes(3))


async def answers_for_more_keys(channel: Channel) -> None:
    await let_in(channel)
    header, _ = await next_request(channel)
    reply = Header(header.kind, header.request_id, 2**32 - 1)
    await channel.send(codec.pack_header(reply), bytes(300))


async def answers_nonsense(channel: Channel) -> None:
    await let_in(channel)
    header, _ = await next_request(channel)
    if header.kind is Kind.SET:
        await channel.receive(3 * (codec.PAGE_HEAD_BYTES + PAGE_BYTES))
    await channel.send(codec.pack_header(header), b"\xff" * 48)


async def sends_a_page_beyond_its_own_limit(channel: Channel) -> None:
    await let_in(channel, Limits(max_keys=8, max_page_bytes=PAGE_BYTES))
    header, _ = await next_request(channel)
    await channel.send(
        codec.pack_header(header), codec.pack_found_head(FoundHead(Found.HIT, 2**32 - 1, 0))
    )


async def takes_nothing(channel: Channel) -> None:
    header = codec.parse_header(await channel.receive(codec.HEADER_BYTES))
    await channel.receive(header.count)
    await channel.send(codec.pack_header(header), codec.pack_limits(Limits(0, 0)))


async def tells_that_a_request_is_invalid(channel: Channel) -> None:
    await let_in(channel)
    await next_request(channel)
    await channel.send(codec.pack_header(Header(Kind.HELLO, 0, 0, Status.INVALID)))


BEHAVIOURS: dict[Behaviour, set[Failure]] = {
    closes_at_once: {Failure.CONNECTION},
    closes_after_hello: {Failure.CONNECTION},
    closes_after_the_request: {Failure.CONNECTION},
    speaks_another_protocol: {Failure.PROTOCOL},
    speaks_another_version: {Failure.PROTOCOL},
    # While pages are still being sent, the end of the connection may be seen first.
    answers_another_request: {Failure.PROTOCOL, Failure.CONNECTION},
    answers_for_more_keys: {Failure.PROTOCOL, Failure.CONNECTION},
    answers_nonsense: {Failure.PROTOCOL, Failure.CONNECTION},
    takes_nothing: {Failure.PROTOCOL},
    tells_that_a_request_is_invalid: {Failure.PROTOCOL, Failure.CONNECTION},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda it: str(it.__name__))
async def test_every_kind_of_failure_is_a_miss(behaviour: Behaviour, call: str) -> None:
    async with peer(behaviour) as port, client(port) as engine:
        assert await CALLS[call](engine) == [False] * 3
        failed = {kind for kind, count in engine.counts.failures.items() if count}
        assert failed <= BEHAVIOURS[behaviour]
        assert sum(engine.counts.failures.values()) == 1


async def test_a_page_beyond_the_servers_own_limit_is_not_waited_for() -> None:
    async with peer(sends_a_page_beyond_its_own_limit) as port, client(port) as engine:
        assert await engine.get([page_key(0)], empty(1), timeout_s=LONG_S) == [False]
        assert engine.counts.failures[Failure.PROTOCOL] == 1


@pytest.mark.parametrize("call", CALLS)
async def test_nobody_listening_is_a_miss(call: str) -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    async with client(port) as engine:
        assert await CALLS[call](engine) == [False] * 3
        assert engine.counts.failures[Failure.CONNECTION] == 1


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
async def test_a_host_that_is_none_is_a_miss(host: str) -> None:
    engine = Client(host, 7000, tokens(TOKEN))
    assert await engine.exists([page_key(0)], timeout_s=LONG_S) == [False]
    assert engine.counts.failures[Failure.CONNECTION] == 1


async def test_a_connection_cut_within_a_page_gives_the_pages_before_it() -> None:
    async def cuts_the_third(channel: Channel) -> None:
        await let_in(channel)
        header, _ = await next_request(channel)
        await channel.send(codec.pack_header(header), hit(0), hit(1), hit(2)[:-1])

    async with peer(cuts_the_third) as port, client(port) as engine:
        got = empty(4)
        assert await engine.get(page_keys(4), got, timeout_s=LONG_S) == [True, True, False, False]
        assert got[:2] == contents(2)
        assert engine.counts.failures[Failure.CONNECTION] == 1


async def test_a_page_damaged_on_its_way_is_a_miss_and_is_counted() -> None:
    async def flips_a_bit(channel: Channel) -> None:
        await let_in(channel)
        header, _ = await next_request(channel)
        damaged = bytearray(hit(0))
        damaged[-1] ^= 1
        await channel.send(codec.pack_header(header), bytes(damaged), hit(1))

    async with peer(flips_a_bit) as port, client(port) as engine:
        assert await engine.get(page_keys(2), empty(2), timeout_s=LONG_S) == [False, True]
        assert engine.counts.corrupt == 1
        assert set(engine.counts.failures.values()) == {0}


async def never_lets_in(channel: Channel) -> None:
    await asyncio.sleep(LONG_S)


async def never_answers(channel: Channel) -> None:
    await let_in(channel)
    await asyncio.sleep(LONG_S)


async def trickles(channel: Channel) -> None:
    await let_in(channel)
    header, _ = await next_request(channel)
    if header.kind is not Kind.GET:
        await asyncio.sleep(LONG_S)
    await channel.send(codec.pack_header(header), hit(0))
    for byte in hit(1):
        await channel.send(bytes((byte,)))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("behaviour", [never_lets_in, never_answers, trickles])
async def test_a_server_slower_than_the_deadline_is_not_waited_for(
    behaviour: Behaviour,
) -> None:
    async with peer(behaviour) as port, client(port) as engine:
        begun_s = time.monotonic()
        got = empty(3)
        answers = await engine.get(page_keys(3), got, timeout_s=0.3)
        assert time.monotonic() - begun_s < LONG_S / 2
        assert answers == [behaviour is trickles, False, False]
        before = [page.tobytes() for page in got]
        assert not any(await engine.set(TENANT, page_keys(3), contents(3), timeout_s=0.2))
        assert engine.counts.failures[Failure.TIMEOUT] == 2
        # What the server still sends reaches no page that the engine has taken back.
        assert [page.tobytes() for page in got] == before


async def test_a_caller_that_gives_up_leaves_no_half_read_connection() -> None:
    async with cache() as it, client(it.port, max_connections=1) as engine:
        names, pages = page_keys(8), contents(8, num_bytes=1024 * 1024)
        assert all(await engine.set(TENANT, names, pages, timeout_s=LONG_S))
        for delay_s in (0.0, 0.0005, 0.001, 0.002, 0.004):
            got = empty(8, 1024 * 1024)
            call = asyncio.create_task(engine.get(names, got, timeout_s=LONG_S))
            await asyncio.sleep(delay_s)
            call.cancel()
            await asyncio.wait({call})
            again = empty(8, 1024 * 1024)
            assert all(await engine.get(names, again, timeout_s=LONG_S))
            assert again == pages
        assert engine.counts.corrupt == 0


async def test_waiting_for_the_own_connections_says_nothing_of_the_server() -> None:
    policy = Policy(failures_to_open=1)
    async with (
        peer(never_answers) as port,
        client(port, max_connections=1, policy=policy) as engine,
    ):
        first = asyncio.create_task(engine.exists(page_keys(1), timeout_s=LONG_S))
        await asyncio.sleep(0.05)
        assert await engine.exists(page_keys(1), timeout_s=0.05) == [False]
        assert engine.counts.failures[Failure.POOL] == 1
        assert not engine.is_open
        first.cancel()
        await asyncio.wait({first})


async def test_the_breaker_opens_and_spares_everybody_the_wait() -> None:
    asked = 0

    async def counts(channel: Channel) -> None:
        nonlocal asked
        asked += 1
        await never_answers(channel)

    policy = Policy(failures_to_open=3, first_pause_s=60)
    async with peer(counts) as port, client(port, policy=policy) as engine:
        for _ in range(3):
            assert await engine.exists(page_keys(1), timeout_s=0.5) == [False]
        assert engine.is_open
        # A busy machine may not have got as far as the server within each wait.
        asked_before = asked
        assert await engine.get(page_keys(2), empty(2), timeout_s=LONG_S) == [False] * 2
        assert not any(await engine.set(TENANT, page_keys(2), contents(2), timeout_s=LONG_S))
        assert asked == asked_before <= 3
        assert engine.counts.failures[Failure.OPEN] == 2


async def test_a_probe_brings_the_server_back() -> None:
    policy = Policy(failures_to_open=2, first_pause_s=0.2, longest_pause_s=0.2)
    async with cache() as gone:
        port = gone.port
    async with client(port, policy=policy) as engine:
        for _ in range(2):
            await engine.exists(page_keys(1), timeout_s=LONG_S)
        assert engine.is_open
        async with cache(port=port):
            async with asyncio.timeout(LONG_S):
                while engine.is_open:
                    await engine.exists(page_keys(1), timeout_s=LONG_S)
                    await asyncio.sleep(0.01)
            stored = await engine.set(TENANT, page_keys(2), contents(2), timeout_s=LONG_S)
            assert stored == [True] * 2
            assert engine.counts.failures[Failure.OPEN] > 0


async def test_a_restarted_server_costs_no_call() -> None:
    """Connections that the old one closed are not used."""
    async with cache() as first, client(first.port) as engine:
        await asyncio.gather(*(engine.exists(page_keys(1), timeout_s=LONG_S) for _ in range(4)))
        port = first.port
        await first.server.close()
        async with cache(port=port):
            assert await engine.exists(page_keys(1), timeout_s=LONG_S) == [False]
            assert await engine.set(TENANT, page_keys(1), contents(1), timeout_s=LONG_S) == [True]
        assert set(engine.counts.failures.values()) == {0}
