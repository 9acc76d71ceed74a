"""Whatever a client sends or leaves out, the server refuses it in time and serves the others."""

import asyncio
import contextlib
import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kvstore import codec
from slipstream_kvstore.channel import Channel, ClosedError
from slipstream_kvstore.codec import Header, Kind, PageHead, Status, Stored
from slipstream_kvstore.metrics import Ended
from slipstream_kvstore.session import Timeouts
from tests.kvstore.support import (
    HOST,
    LONG_S,
    PAGE_BYTES,
    TENANT,
    TOKEN,
    Cache,
    cache,
    client,
    content,
    contents,
    empty,
    eventually,
    greet,
    hello,
    page_key,
    page_keys,
    raw,
    set_request,
)

pytestmark = pytest.mark.slow

SHORT = Timeouts(hello_s=0.2, io_s=0.2, idle_s=LONG_S)


async def last_words(channel: Channel) -> Status | None:
    """The status of the next reply, after which nothing must come; None: closed without one."""
    try:
        header = codec.parse_header(await channel.receive(codec.HEADER_BYTES))
        with pytest.raises(OSError, match=r"closed|reset"):
            await channel.receive(1)
    except OSError:
        return None
    return header.status


async def serves(it: Cache) -> bool:
    """Whether a good client is served."""
    async with client(it.port) as engine:
        stored = await engine.set(TENANT, [page_key(77)], [content(77)], timeout_s=LONG_S)
        return stored == [True]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        pytest.param(hello(b"guess"), Status.UNAUTHORIZED, "token", id="a wrong token"),
        pytest.param(hello(TOKEN[:-1]), Status.UNAUTHORIZED, "token", id="most of the token"),
        pytest.param(set_request(0), Status.INVALID, "protocol", id="no HELLO"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", Status.INVALID, "protocol", id="HTTP"),
        pytest.param(
            b"SLKV\x02" + hello()[5:], Status.UNSUPPORTED_VERSION, "version", id="another version"
        ),
        pytest.param(
            codec.pack_header(Header(Kind.HELLO, 0, 2**32 - 1)),
            Status.INVALID,
            "protocol",
            id="a token of 4 GB",
        ),
    ],
)
async def test_who_is_not_let_in_hears_why_and_that_is_all(
    sent: bytes, status: Status, reason: str
) -> None:
    async with cache() as it, raw(it.port) as stranger:
        await stranger.send(sent)
        assert await last_words(stranger) is status
        assert it.metric("connections_ended_total", reason=reason) == 1
        assert len(it.store) == 0
        assert await serves(it)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(hello(), id="a second HELLO"),
        pytest.param(codec.pack_header(Header(Kind.GET, 1, 65)), id="one key too many"),
        pytest.param(codec.pack_header(Header(Kind.EXISTS, 1, 2**32 - 1)), id="137 GB of keys"),
        pytest.param(codec.pack_header(Header(Kind.GET, 1, 0)), id="no key"),
        pytest.param(
            codec.pack_header(Header(Kind.SET, 1, 1))
            + TENANT
            + codec.pack_page_head(PageHead(page_key(0), 2**32 - 1, 0)),
            id="a page of 4 GB",
        ),
        pytest.param(
            codec.pack_header(Header(Kind.SET, 1, 1))
            + TENANT
            + codec.pack_page_head(PageHead(page_key(0), 0, 0)),
            id="a page of nothing",
        ),
    ],
)
async def test_a_request_that_breaks_the_rules_ends_its_connection(sent: bytes) -> None:
    async with cache() as it, raw(it.port) as stranger:
        await greet(stranger)
        await stranger.send(sent)
        assert await last_words(stranger) is Status.INVALID
        assert it.metric("connections_ended_total", reason="protocol") == 1
        assert await serves(it)


@pytest.mark.asyncio
async def test_a_page_damaged_on_its_way_here_is_not_stored() -> None:
    async with cache() as it, raw(it.port) as stranger:
        await greet(stranger)
        for damage, result in ((1, Stored.CORRUPT), (0, Stored.STORED)):
            await stranger.send(set_request(0, damage=damage))
            header = codec.parse_header(await stranger.receive(codec.HEADER_BYTES))
            assert (header.kind, header.request_id, header.count) == (Kind.SET, 5, 1)
            assert codec.parse_stored(await stranger.receive(1)) == [result]
            assert len(it.store) == (result is Stored.STORED)
        assert it.metric("set_pages_total", outcome="corrupt") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("cut", [5, 16, 20, 60, 90, 4000])
async def test_a_page_cut_on_its_way_here_is_not_stored(cut: int) -> None:
    async with cache() as it:
        async with raw(it.port) as stranger:
            await greet(stranger)
            await stranger.send(set_request(0)[:cut])
        await eventually(lambda: it.metric("connections_ended_total", reason="network") == 1)
        assert len(it.store) == 0
        assert it.metric("in_flight_bytes") == 0
        assert await serves(it)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("greets", "sent"),
    [
        pytest.param(False, b"", id="says nothing"),
        pytest.param(False, hello()[:-1], id="half a HELLO"),
        pytest.param(True, codec.pack_header(Header(Kind.GET, 1, 2)) + page_key(0), id="one key"),
        pytest.param(True, set_request(0)[:50], id="half a page's head"),
        pytest.param(True, set_request(0)[:-1], id="all of a page but one byte"),
    ],
)
async def test_a_client_that_stops_in_the_middle_is_not_waited_for(
    greets: bool, sent: bytes
) -> None:
    async with cache(timeouts=SHORT) as it, raw(it.port) as stranger:
        if greets:
            await greet(stranger)
        await stranger.send(sent)
        with pytest.raises(ClosedError):
            await stranger.receive(1)
        assert it.metric("connections_ended_total", reason="deadline") == 1
        assert it.metric("in_flight_bytes") == 0


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_is_not_waited_for() -> None:
    size = 1024 * 1024
    async with (
        cache(timeouts=SHORT, max_in_flight_bytes=2 * size) as it,
        client(it.port) as engine,
    ):
        await engine.set(TENANT, page_keys(20), contents(20, num_bytes=size), timeout_s=LONG_S)
        async with raw(it.port) as stranger:
            await greet(stranger)
            body = codec.pack_keys(page_keys(20))
            await stranger.send(codec.pack_header(Header(Kind.GET, 1, 20)), body)
            await eventually(lambda: it.metric("connections_ended_total", reason="deadline") == 1)
        assert it.metric("in_flight_bytes") == 0
        assert await engine.get([page_key(0)], empty(1, size), timeout_s=LONG_S) == [True]


@pytest.mark.asyncio
async def test_an_idle_connection_is_closed_and_its_client_notices_nothing() -> None:
    timeouts = Timeouts(hello_s=LONG_S, io_s=LONG_S, idle_s=0.1)
    async with cache(timeouts=timeouts) as it, client(it.port) as engine:
        for _ in range(2):
            assert await engine.exists(page_keys(1), timeout_s=LONG_S) == [False]
            await eventually(lambda: it.metric("connections") == 0)
        assert it.metric("connections_ended_total", reason="idle") == 2
        assert set(engine.counts.failures.values()) == {0}


@pytest.mark.asyncio
async def test_one_connection_too_many_is_closed_and_takes_no_place() -> None:
    async with cache(max_connections=2) as it, raw(it.port) as one:
        await greet(one)
        async with raw(it.port) as two:
            await greet(two)
            async with raw(it.port) as three:
                with pytest.raises(OSError, match=r"closed|reset"):
                    await three.receive(1)
            assert it.metric("connections_ended_total", reason="limit") == 1
        await eventually(lambda: it.metric("connections") == 1)
        assert await serves(it)


@pytest.mark.asyncio
async def test_a_probe_of_the_port_is_no_failure() -> None:
    async with cache() as it:
        async with raw(it.port):
            await eventually(lambda: it.metric("connections") == 1)
        await eventually(lambda: it.metric("connections") == 0)
        for reason in Ended:
            assert it.metric("connections_ended_total", reason=reason.name.lower()) == 0


@pytest.mark.asyncio
async def test_a_busy_client_does_not_keep_the_others_waiting() -> None:
    """Its next request is always there already: without a pause nobody else would be heard."""
    request = codec.pack_header(Header(Kind.EXISTS, 1, 1)) + page_key(0)
    async with cache() as it, raw(it.port) as busy:
        await greet(busy)

        async def send() -> None:
            while True:
                await busy.send(request * 2000)

        async def read() -> None:
            while True:
                await busy.discard(17 * 2000)

        tasks = [asyncio.create_task(send()), asyncio.create_task(read())]
        await eventually(lambda: it.metric("exists_pages_total", outcome="miss") > 2000)
        # Milliseconds; without the pause, as long as it takes to empty the socket's buffers.
        async with asyncio.timeout(2):
            assert await serves(it)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.asyncio
async def test_many_large_promises_take_no_memory() -> None:
    """Twelve clients announce 64 pages of 1 MiB each and send one byte of the first."""
    size, bound = 1024 * 1024, 3 * 1024 * 1024
    async with cache(max_in_flight_bytes=bound, max_connections=12) as it:
        gc.collect()
        tracemalloc.start()
        try:
            async with contextlib.AsyncExitStack() as stack:
                for number in range(12):
                    stranger = await stack.enter_async_context(raw(it.port))
                    await greet(stranger)
                    head = codec.pack_page_head(PageHead(page_key(number), size, 0))
                    header = codec.pack_header(Header(Kind.SET, 1, 64))
                    await stranger.send(header, TENANT, head, b"x")
                await eventually(lambda: it.metric("in_flight_bytes") == bound)
                await asyncio.sleep(0.05)
                _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < bound + size
        await eventually(lambda: it.metric("connections") == 0)
        assert it.metric("in_flight_bytes") == 0


GOOD = (hello(), set_request(0), codec.pack_header(Header(Kind.GET, 6, 1)) + page_key(0))


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Good ones with a few bytes changed, removed or added; and anything at all."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    data = bytearray(b"".join(GOOD))
    for _ in range(draw(st.integers(1, 4))):
        # Most of a conversation is one page, of which every byte is alike.
        at = draw(st.integers(0, 120) | st.integers(0, len(data)))
        match draw(st.sampled_from(("change", "remove", "add", "cut"))):
            case "change":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=4))
            case "remove":
                del data[at : at + draw(st.integers(1, 50))]
            case "add":
                data[at:at] = draw(st.binary(max_size=50))
            case _:
                del data[at:]
    return bytes(data)


async def _converse(data: bytes) -> None:
    timeouts = Timeouts(hello_s=LONG_S, io_s=LONG_S, idle_s=LONG_S)
    async with cache(timeouts=timeouts, max_in_flight_bytes=10**6) as it:
        reader, writer = await asyncio.open_connection(HOST, it.port)
        with contextlib.suppress(OSError):
            writer.write(data)
            writer.write_eof()
            async with asyncio.timeout(LONG_S):
                await reader.read()
        writer.close()
        await eventually(lambda: it.metric("connections") == 0)
        assert it.metric("connections_ended_total", reason="bug") == 0
        assert it.metric("connections_ended_total", reason="deadline") == 0
        assert it.metric("in_flight_bytes") == 0
        assert await serves(it)
        page = it.store.find(page_key(0))
        assert page is None or codec.checksum(page_key(0), page.body) == page.checksum


@given(conversations())
def test_any_conversation_ends_and_the_next_client_is_served(data: bytes) -> None:
    asyncio.run(_converse(data))


@pytest.mark.asyncio
async def test_a_drain_finishes_what_has_begun_and_cuts_the_rest() -> None:
    size = 1024 * 1024
    async with cache() as it, client(it.port) as engine, raw(it.port) as slow:
        assert await engine.exists(page_keys(1), timeout_s=LONG_S) == [False]
        await greet(slow)
        page = content(3, size)
        head = PageHead(page_key(3), size, codec.checksum(page_key(3), page))
        await slow.send(codec.pack_header(Header(Kind.SET, 9, 1)), TENANT)
        await slow.send(codec.pack_page_head(head), page[:1000])
        await eventually(lambda: it.metric("in_flight_bytes") == size)
        draining = asyncio.create_task(it.server.drain(LONG_S))
        await eventually(lambda: not it.server.is_serving and it.metric("connections") == 1)
        with pytest.raises(ConnectionRefusedError):
            async with raw(it.port):
                pass
        assert not draining.done()
        await slow.send(page[1000:])
        codec.parse_header(await slow.receive(codec.HEADER_BYTES))
        assert codec.parse_stored(await slow.receive(1)) == [Stored.STORED]
        await draining
        with pytest.raises(ClosedError):
            await slow.receive(1)
        assert not it.server.has_failed


@pytest.mark.asyncio
async def test_a_drain_does_not_wait_for_ever() -> None:
    async with cache() as it, raw(it.port) as slow:
        await greet(slow)
        await slow.send(set_request(0)[:-1])
        await eventually(lambda: it.metric("in_flight_bytes") == PAGE_BYTES)
        async with asyncio.timeout(LONG_S / 2):
            await it.server.drain(0.05)
        assert it.metric("connections") == 0
        assert len(it.store) == 0
