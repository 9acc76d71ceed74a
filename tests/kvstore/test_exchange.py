"""A client and a server over real sockets: what is stored is given back, and to nobody else."""

import asyncio
import dataclasses

import pytest

from slipstream_kvstore import codec, keys
from slipstream_kvstore import store as stores
from slipstream_kvstore.client import Failure
from slipstream_kvstore.codec import Header, Kind, Limits
from slipstream_kvstore.keys import Namespace, Split
from slipstream_kvstore.layout import PageLayout, PoolLayout
from slipstream_kvstore.store import Page
from tests.kvstore.support import (
    LONG_S,
    PAGE_BYTES,
    TENANT,
    cache,
    client,
    content,
    contents,
    empty,
    eventually,
    greet,
    page_key,
    page_keys,
    raw,
)

pytestmark = pytest.mark.asyncio


async def test_what_was_set_is_there_and_comes_back_equal() -> None:
    async with cache() as it, client(it.port) as engine:
        names, pages = page_keys(3), contents(3)
        assert await engine.exists(names, timeout_s=LONG_S) == [False] * 3
        assert await engine.set(TENANT, names, pages, timeout_s=LONG_S) == [True] * 3
        assert await engine.exists(names, timeout_s=LONG_S) == [True] * 3
        got = empty(3)
        assert await engine.get(names, got, timeout_s=LONG_S) == [True] * 3
        assert got == pages
        assert engine.counts.hits == engine.counts.stored == 3
        assert engine.counts.received_bytes == engine.counts.sent_bytes == 3 * PAGE_BYTES
        assert set(engine.counts.failures.values()) == {0}


async def test_pages_of_many_sizes_travel_on_one_connection() -> None:
    sizes = [1, 2, 3, 100, 65_537, 1024 * 1024, 7]
    names, pages = page_keys(len(sizes)), [content(i, n) for i, n in enumerate(sizes)]
    async with cache() as it, client(it.port, max_connections=1) as engine:
        assert all(await engine.set(TENANT, names, pages, timeout_s=LONG_S))
        got = [memoryview(bytearray(n)) for n in sizes]
        assert all(await engine.get(names, got, timeout_s=LONG_S))
        assert got == pages
        assert it.metric("connections") == 1


async def test_a_page_need_not_be_of_bytes() -> None:
    """The engine's pages are views of tensors."""
    words = content(0, 64).cast("I", (4, 4))
    async with cache() as it, client(it.port) as engine:
        assert await engine.set(TENANT, [page_key(0)], [words], timeout_s=LONG_S) == [True]
        got = memoryview(bytearray(64)).cast("Q")
        assert await engine.get([page_key(0)], [got], timeout_s=LONG_S) == [True]
        assert got.tobytes() == words.tobytes()


async def test_misses_among_hits_are_told_apart() -> None:
    async with cache() as it, client(it.port) as engine:
        there = [page_key(n) for n in (1, 2, 5)]
        await engine.set(TENANT, there, [content(n) for n in (1, 2, 5)], timeout_s=LONG_S)
        got = empty(7)
        answers = await engine.get(page_keys(7), got, timeout_s=LONG_S)
        assert answers == [n in (1, 2, 5) for n in range(7)]
        assert await engine.exists(page_keys(7), timeout_s=LONG_S) == answers
        assert [got[n] for n in (1, 2, 5)] == [content(n) for n in (1, 2, 5)]
        assert it.metric("get_pages_total", outcome="hit") == 3
        assert it.metric("get_pages_total", outcome="miss") == 4
        assert it.metric("exists_pages_total", outcome="hit") == 3


async def test_more_keys_than_one_request_takes_go_in_several() -> None:
    async with (
        cache(limits=Limits(max_keys=4, max_page_bytes=100)) as it,
        client(it.port, max_connections=1) as engine,
    ):
        names, pages = page_keys(11), contents(11, num_bytes=100)
        assert await engine.set(TENANT, names, pages, timeout_s=LONG_S) == [True] * 11
        got = empty(11, 100)
        assert await engine.get(names, got, timeout_s=LONG_S) == [True] * 11
        assert got == pages
        assert await engine.exists(names, timeout_s=LONG_S) == [True] * 11


async def test_nothing_asked_is_nothing_answered_without_a_connection() -> None:
    async with cache() as it, client(it.port) as engine:
        assert await engine.exists([], timeout_s=LONG_S) == []
        assert await engine.get([], [], timeout_s=LONG_S) == []
        assert await engine.set(TENANT, [], [], timeout_s=LONG_S) == []
        assert it.metric("connections") == 0


async def test_many_calls_at_once_stay_apart() -> None:
    async with cache() as it, client(it.port, max_connections=3) as engine:

        async def round_trip(number: int) -> None:
            name, page = [page_key(number)], [content(number, 50_000 + number)]
            assert await engine.set(TENANT, name, page, timeout_s=LONG_S) == [True]
            got = [memoryview(bytearray(50_000 + number))]
            assert await engine.get(name, got, timeout_s=LONG_S) == [True]
            assert got == page

        await asyncio.gather(*(round_trip(number) for number in range(40)))
        assert it.metric("connections") <= 3
        assert it.metric("in_flight_bytes") == 0


async def test_pages_are_evicted_by_their_bytes() -> None:
    room = 4 * stores.cost_bytes(PAGE_BYTES)
    async with cache(max_bytes=room) as it, client(it.port) as engine:
        for number in range(6):
            await engine.set(TENANT, [page_key(number)], [content(number)], timeout_s=LONG_S)
        there = await engine.exists(page_keys(6), timeout_s=LONG_S)
        assert there == [False, False, True, True, True, True]
        assert it.metric("evicted_pages_total", reason="capacity") == 2
        assert it.metric("used_bytes") == room


async def test_reading_a_prefix_keeps_its_beginning_longest() -> None:
    room = 4 * stores.cost_bytes(PAGE_BYTES)
    async with cache(max_bytes=room) as it, client(it.port) as engine:
        await engine.set(TENANT, page_keys(4), contents(4), timeout_s=LONG_S)
        assert all(await engine.get(page_keys(4), empty(4), timeout_s=LONG_S))
        await engine.set(TENANT, page_keys(2, 10), contents(2, 10), timeout_s=LONG_S)
        assert await engine.exists(page_keys(4), timeout_s=LONG_S) == [True, True, False, False]


async def test_a_tenants_flood_costs_only_its_own_pages() -> None:
    cost = stores.cost_bytes(PAGE_BYTES)
    async with (
        cache(max_bytes=10 * cost, tenant_max_bytes=4 * cost) as it,
        client(it.port) as engine,
    ):
        quiet, loud = keys.tenant_id("quiet"), keys.tenant_id("loud")
        await engine.set(quiet, page_keys(3), contents(3), timeout_s=LONG_S)
        for number in range(10, 40):
            await engine.set(loud, [page_key(number)], [content(number)], timeout_s=LONG_S)
        assert await engine.exists(page_keys(3), timeout_s=LONG_S) == [True] * 3
        assert it.metric("evicted_pages_total", reason="quota") == 26
        assert it.metric("evicted_pages_total", reason="capacity") == 0
        assert it.metric("tenants") == 2


async def test_a_page_larger_than_the_store_is_refused_and_the_connection_goes_on() -> None:
    async with (
        cache(max_bytes=2 * stores.cost_bytes(PAGE_BYTES)) as it,
        client(it.port, max_connections=1) as engine,
    ):
        pages = [content(0), content(1, 20_000), content(2)]
        assert await engine.set(TENANT, page_keys(3), pages, timeout_s=LONG_S) == [
            True,
            False,
            True,
        ]
        assert engine.counts.not_stored == 1
        assert await engine.exists(page_keys(3), timeout_s=LONG_S) == [True, False, True]
        assert it.metric("set_pages_total", outcome="too_large") == 1
        assert it.metric("connections") == 1


async def test_a_page_larger_than_the_server_takes_is_never_sent() -> None:
    async with (
        cache(limits=Limits(max_keys=8, max_page_bytes=PAGE_BYTES)) as it,
        client(it.port) as engine,
    ):
        pages = [content(0, PAGE_BYTES + 1), content(1)]
        assert await engine.set(TENANT, page_keys(2), pages, timeout_s=LONG_S) == [False, True]
        assert engine.counts.not_stored == 1
        assert set(engine.counts.failures.values()) == {0}
        assert it.metric("connections_ended_total", reason="protocol") == 0


async def test_a_page_of_another_length_is_a_miss_and_the_connection_goes_on() -> None:
    async with cache() as it, client(it.port, max_connections=1) as engine:
        await engine.set(TENANT, page_keys(2), contents(2), timeout_s=LONG_S)
        got = [*empty(1, PAGE_BYTES // 2), *empty(1)]
        assert await engine.get(page_keys(2), got, timeout_s=LONG_S) == [False, True]
        assert engine.counts.mismatched == 1
        assert got[1] == content(1)
        assert it.metric("connections") == 1


async def test_when_too_much_is_on_its_way_pages_are_misses() -> None:
    async with cache(max_in_flight_bytes=PAGE_BYTES) as it, client(it.port) as engine:
        pages = [content(0), content(1, PAGE_BYTES + 1)]
        assert await engine.set(TENANT, page_keys(2), pages, timeout_s=LONG_S) == [True, False]
        assert it.metric("set_pages_total", outcome="busy") == 1
        with it.service.in_flight.hold(1) as is_held:
            assert is_held
            assert await engine.get([page_key(0)], empty(1), timeout_s=LONG_S) == [False]
        assert engine.counts.busy == 1
        assert await engine.get([page_key(0)], empty(1), timeout_s=LONG_S) == [True]
        assert it.metric("in_flight_bytes") == 0


async def test_a_page_damaged_in_the_store_is_a_miss_until_it_is_computed_again() -> None:
    async with cache() as it, client(it.port) as engine:
        await engine.set(TENANT, page_keys(2), contents(2), timeout_s=LONG_S)
        page = it.store.find(page_key(0))
        assert page is not None
        assert isinstance(page.body, bytearray)
        page.body[100] ^= 1
        assert await engine.get(page_keys(2), empty(2), timeout_s=LONG_S) == [False, True]
        assert engine.counts.corrupt == 1
        await engine.set(TENANT, page_keys(1), contents(1), timeout_s=LONG_S)
        assert await engine.get(page_keys(2), empty(2), timeout_s=LONG_S) == [True, True]


async def test_a_page_that_stands_under_anothers_key_is_a_miss() -> None:
    async with cache() as it, client(it.port) as engine:
        await engine.set(TENANT, page_keys(2), contents(2), timeout_s=LONG_S)
        other = it.store.find(page_key(1))
        assert other is not None
        it.store.put(page_key(0), other)
        assert await engine.get([page_key(0)], empty(1), timeout_s=LONG_S) == [False]
        assert engine.counts.corrupt == 1


async def test_a_page_that_is_evicted_while_it_is_sent_arrives_whole() -> None:
    """The reader starts to read only when the page is gone: it is larger than all buffers."""
    size = 32 * 1024 * 1024
    async with (
        cache(max_bytes=2 * size, limits=Limits(8, size), max_in_flight_bytes=2 * size) as it,
        client(it.port) as engine,
        raw(it.port) as reader,
    ):
        [page] = contents(1, num_bytes=size)
        assert await engine.set(TENANT, [page_key(0)], [page], timeout_s=LONG_S) == [True]
        await greet(reader)
        request = Header(Kind.GET, 1, 1)
        await reader.send(codec.pack_header(request), page_key(0))
        await eventually(lambda: it.metric("in_flight_bytes") == size)
        for number in (1, 2):
            it.store.put(page_key(number), Page(bytearray(size - 2000), 0, TENANT))
        assert it.store.find(page_key(0)) is None
        assert codec.parse_header(await reader.receive(codec.HEADER_BYTES)) == request
        data = await reader.receive(codec.FOUND_HEAD_BYTES)
        head = codec.parse_found_head(data, Limits(8, size))
        assert await reader.receive(head.length) == page
        assert head.checksum == codec.checksum(page_key(0), page)


POOLS = (PoolLayout("kv", "bfloat16", (2, 2, 8)),)
BASE = Namespace("sha256:1", PageLayout(16, POOLS), Split(), None, "0.1.0")
OTHERS = {
    "another adapter": dataclasses.replace(BASE, adapter="coder"),
    "another tenant": dataclasses.replace(BASE, tenant_salt="acme"),
    "new weights": dataclasses.replace(BASE, weights_digest="sha256:2"),
    "another layout": dataclasses.replace(
        BASE, layout=PageLayout(16, (dataclasses.replace(POOLS[0], dtype="float32"),))
    ),
    "another rank": dataclasses.replace(BASE, split=Split(tensor_size=2, tensor_rank=1)),
}


def chain(namespace: Namespace, num_pages: int) -> list[bytes]:
    names, key = [], keys.root_key(namespace)
    for number in range(num_pages):
        key = keys.next_key(key, range(number * 16, number * 16 + 16))
        names.append(key)
    return names


@pytest.mark.parametrize("other", OTHERS)
async def test_the_same_tokens_in_another_namespace_hit_nothing(other: str) -> None:
    async with cache() as it, client(it.port) as engine:
        assert all(await engine.set(TENANT, chain(BASE, 4), contents(4), timeout_s=LONG_S))
        assert all(await engine.exists(chain(BASE, 4), timeout_s=LONG_S))
        assert not any(await engine.exists(chain(OTHERS[other], 4), timeout_s=LONG_S))
        assert not any(await engine.get(chain(OTHERS[other], 4), empty(4), timeout_s=LONG_S))


@pytest.mark.parametrize(
    ("names", "pages"),
    [
        pytest.param([b"short"], [content(0)], id="a key of five bytes"),
        pytest.param([page_key(0)], [], id="a key without a page"),
        pytest.param([page_key(0)], [memoryview(b"")], id="an empty page"),
    ],
)
async def test_arguments_that_make_no_sense_are_the_callers_error(
    names: list[bytes], pages: list[memoryview]
) -> None:
    async with client(1) as engine:
        with pytest.raises(ValueError, match="key"):
            await engine.set(TENANT, names, pages, timeout_s=LONG_S)
        with pytest.raises(ValueError, match="key"):
            await engine.get(names, pages, timeout_s=LONG_S)
        with pytest.raises(ValueError, match="tenant"):
            await engine.set(b"me", [page_key(0)], [content(0)], timeout_s=LONG_S)
        assert engine.counts.failures == dict.fromkeys(Failure, 0)
