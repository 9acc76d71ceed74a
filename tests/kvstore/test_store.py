"""The store never exceeds its bytes nor a tenant its share; what goes first is what helps least."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kvstore import store as stores
from slipstream_kvstore.store import Evicted, Page, Store

A, B, C = (letter.encode() * 16 for letter in "abc")


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def page(tenant: bytes = A, num_bytes: int = 1000) -> Page:
    return Page(b"x" * num_bytes, 0, tenant)


def room(num_pages: int, num_bytes: int = 1000) -> int:
    """Bytes that so many pages count."""
    return num_pages * stores.cost_bytes(num_bytes)


def stored(store: Store, count: int = 20) -> list[int]:
    return [number for number in range(count) if store.find(key(number)) is not None]


def test_the_least_recently_used_page_goes_first() -> None:
    store = Store(room(3))
    for number in range(3):
        assert store.put(key(number), page()) == Evicted()
    store.touch([key(0)])
    assert store.put(key(3), page()) == Evicted(by_capacity=1)
    assert stored(store) == [0, 2, 3]


def test_finding_a_page_is_no_use_of_it() -> None:
    store = Store(room(2))
    store.put(key(0), page())
    store.put(key(1), page())
    assert store.find(key(0)) is not None
    store.put(key(2), page())
    assert stored(store) == [1, 2]


def test_of_one_prefix_the_end_goes_before_the_beginning() -> None:
    store = Store(room(4))
    chain = [key(number) for number in range(4)]
    for name in chain:
        store.put(name, page())
    store.touch(chain)
    store.put(key(9), page())
    assert stored(store) == [0, 1, 2, 9]


def test_a_tenant_over_its_share_loses_its_own_pages_only() -> None:
    store = Store(room(10), tenant_max_bytes=room(3))
    store.put(key(0), page(B))
    for number in range(1, 6):
        store.put(key(number), page(A))
    assert store.put(key(6), page(A)) == Evicted(by_quota=1)
    assert stored(store) == [0, 4, 5, 6]
    assert store.tenant_used_bytes(A) == room(3)
    assert store.tenant_used_bytes(B) == room(1)


def test_one_large_page_takes_the_place_of_several() -> None:
    store = Store(room(4))
    for number in range(4):
        store.put(key(number), page())
    big = page(num_bytes=2000)
    assert store.put(key(4), big) == Evicted(by_capacity=2)
    assert stored(store) == [2, 3, 4]


def test_the_last_page_under_a_key_wins_and_counts_once() -> None:
    store = Store(room(4))
    store.put(key(0), page(A))
    healed = Page(b"y" * 500, 7, B)
    assert store.put(key(0), healed) == Evicted()
    assert store.find(key(0)) is healed
    assert store.used_bytes == stores.cost_bytes(500)
    assert store.tenant_used_bytes(A) == 0
    assert store.num_tenants == 1


@pytest.mark.parametrize("share", [None, room(1)])
def test_a_page_that_can_never_fit_is_not_admitted(share: int | None) -> None:
    store = Store(room(2), share)
    largest = (room(2) if share is None else share) - stores.PAGE_OVERHEAD_BYTES
    assert store.admits(largest)
    assert not store.admits(largest + 1)
    with pytest.raises(ValueError, match="does not admit"):
        store.put(key(0), page(num_bytes=largest + 1))
    assert len(store) == 0


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.integers(0, 15),
            st.sampled_from((A, B, C)),
            st.integers(1, 3000),
        ),
        st.tuples(st.just("touch"), st.lists(st.integers(0, 20), max_size=6)),
    ),
    max_size=60,
)


@given(operations, st.integers(1, 8), st.none() | st.integers(1, 4))
def test_bounds_and_sums_hold_after_every_step(
    steps: list[tuple[object, ...]], num_pages: int, share_pages: int | None
) -> None:
    limit, share = room(num_pages), None if share_pages is None else room(share_pages)
    store = Store(limit, share)
    model: dict[int, tuple[bytes, int]] = {}
    for step in steps:
        match step:
            case ("put", int(number), bytes(tenant), int(size)):
                if not store.admits(size):
                    continue
                evicted = store.put(key(number), page(tenant, size))
                before = set(model)
                model[number] = (tenant, size)
                model = {n: model[n] for n in stored(store)}
                assert number in model
                went = before - set(model)
                assert len(went) == evicted.by_capacity + evicted.by_quota
            case ("touch", list(numbers)):
                store.touch([key(number) for number in numbers])
        used = {t: 0 for t, _ in model.values()}
        for tenant, size in model.values():
            used[tenant] += stores.cost_bytes(size)
        assert store.used_bytes == sum(used.values()) <= limit
        assert len(store) == len(model)
        assert store.num_tenants == len(used)
        for tenant in (A, B, C):
            assert store.tenant_used_bytes(tenant) == used.get(tenant, 0) <= (share or limit)


def test_a_pages_overhead_is_counted_in_full() -> None:
    """Tiny pages, each of a tenant of its own, are the worst case."""
    count = 20_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = Store(10**9)
        for number in range(count):
            store.put(
                key(number), Page(bytearray(b"x"), 2**63 + number, number.to_bytes(16, "big"))
            )
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(store) == count
    assert (after - before) / count <= stores.cost_bytes(1)
