"""The pool of pages and its free runs, against sets that cannot be wrong."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.batch import Sampled
from slipstream_engine.pages import PagePool
from slipstream_engine.runs import FreeRuns
from slipstream_engine.scheduler import Scheduler
from tests.engine import policy


@given(
    num_pages=st.integers(1, 40),
    operations=st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99))),
)
def test_free_runs_are_what_is_free(
    num_pages: int, operations: list[tuple[bool, int, int]]
) -> None:
    runs, free = FreeRuns(num_pages), set(range(num_pages))
    for is_taking, number, other in operations:
        if is_taking and free:
            first, length = runs.long_run()
            assert first - 1 not in free
            assert first + length not in free
            assert set(range(first, first + length)) <= free
            offset = number % length
            count = 1 + other % (length - offset)
            runs.take(first, offset, count)
            free -= set(range(first + offset, first + offset + count))
        elif len(free) < num_pages:
            used = sorted(set(range(num_pages)) - free)
            page = used[number % len(used)]
            runs.put(page)
            free.add(page)
        assert runs.pages() == sorted(free)
        assert runs.num_free == len(free)
        lengths = {page: runs.length_at(page) for page in range(num_pages)}
        for page, length in lengths.items():
            assert bool(length) == (page in free and page - 1 not in free)
        if free:
            assert 2 * runs.long_run()[1] > max(lengths.values())
    if not free:
        with pytest.raises(ValueError, match="no page"):
            runs.long_run()


@given(
    num_pages=st.integers(1, 24),
    operations=st.lists(
        st.tuples(
            st.sampled_from(["allocate", "hold", "release", "seal"]),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        max_size=60,
    ),
)
def test_the_pool_gives_no_page_twice_and_counts_right(
    num_pages: int, operations: list[tuple[str, int, int]]
) -> None:
    """Holders are chains of pages; a chain is sealed from its start, as sequences do."""
    pool = PagePool(num_pages)
    chains: list[list[int]] = []
    sealed: dict[int, int] = {}
    for name, number, other in operations:
        chain = chains[number % len(chains)] if chains else []
        match name:
            case "allocate":
                available = pool.num_available
                pages = pool.allocate(other, chain[-1] if chain else None)
                assert (pages is None) == (other > available)
                if pages:
                    assert len(set(pages)) == other
                    chains.append(pages)
                    sealed.update((page, False) for page in pages)
            case "hold" if chain:
                kept = chain[: 1 + other % len(chain)]
                # Only what is sealed may be shared while a chain grows.
                if all(sealed[page] for page in kept):
                    pool.hold(kept)
                    chains.append(list(kept))
            case "release" if chain:
                chains.remove(chain)
                pool.release(chain)
            case "seal" if chain:
                index = next((i for i, page in enumerate(chain) if not sealed[page]), None)
                if index is not None:
                    parent = chain[index - 1] if index else None
                    # The key of a place in a text: other chains hold the same text's pages.
                    key = bytes([other % 2 if parent is None else 2]) + bytes([index])
                    key = (parent_key(pool, parent) if parent is not None else b"") + key
                    chain[index] = pool.seal(chain[index], key, parent)
                    sealed[chain[index]] = True
        held = Counter(page for one in chains for page in one)
        pool.check(held)
        assert pool.num_used == len(held)
        assert pool.num_free + pool.num_used + pool.num_cached == num_pages


def parent_key(pool: PagePool, page: int) -> bytes:
    return pool.nodes()[page][0]


def test_pages_follow_each_other_where_they_can() -> None:
    pool = PagePool(256)
    first = pool.allocate(10)
    assert first == list(range(10))
    second = pool.allocate(10)
    assert second is not None
    # The second keeps its distance, so that both can grow.
    assert second == list(range(second[0], second[0] + 10))
    assert second[0] > 20
    assert pool.allocate(3, first[-1]) == [10, 11, 12]
    assert pool.allocate(1, second[-1]) == [second[-1] + 1]


@pytest.mark.parametrize(("num_pages", "most"), [(2048, 6.0), (640, 19.0)], ids=["roomy", "full"])
def test_a_growing_sequence_stands_in_few_runs(num_pages: int, most: float) -> None:
    """4.7 and 16 of them, about 55 pages; always the first free page would make it 29 and 38."""
    random = Random(5)
    limits = policy.limits(2048, tokens=256, page_tokens=8)
    scheduler = Scheduler(limits, num_pages)
    runs = []
    for number in range(3000):
        if scheduler.load().num_running + scheduler.load().num_waiting < 8:
            prompt = random.choices(range(1000), k=random.randrange(20, 500))
            scheduler.submit(policy.request(str(number), prompt, random.randrange(50, 400)))
        batch = scheduler.schedule()
        assert batch is not None
        for chunk in batch.chunks:
            steps = zip(chunk.pages, chunk.pages[1:], strict=False)
            runs.append(1 + sum(page + 1 != following for page, following in steps))
        sampled = [Sampled(random.randrange(1000)) for _ in range(batch.num_draws)]
        scheduler.commit(batch, sampled)
    assert sum(runs) / len(runs) < most


def test_a_sequence_takes_what_follows_it_before_it_starts_elsewhere() -> None:
    pool = PagePool(8)
    assert pool.allocate(8) == list(range(8))
    pool.release([0, 1, 2, 3, 5])
    assert pool.allocate(4, 4) == [5, 0, 1, 2]


def test_more_pages_than_there_are_is_none_and_changes_nothing() -> None:
    pool = PagePool(4)
    pages = pool.allocate(3)
    assert pages is not None
    assert pool.allocate(2) is None
    pool.check(Counter(pages))
    assert pool.allocate(1) is not None
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_freeing_a_page_twice_is_an_error() -> None:
    pool = PagePool(4)
    pages = pool.allocate(2)
    assert pages is not None
    pool.release(pages)
    with pytest.raises(ValueError, match="not in use"):
        pool.release(pages[:1])


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="0 pages"):
        PagePool(0)


def test_the_check_sees_a_wrong_count_a_leak_and_a_parent_that_would_go_first() -> None:
    def pool() -> tuple[PagePool, list[int]]:
        made = PagePool(4)
        pages = made.allocate(2)
        assert pages is not None
        made.seal(pages[0], b"a", None)
        made.seal(pages[1], b"b", pages[0])
        return made, pages

    made, pages = pool()
    made.check(Counter(pages))
    with pytest.raises(AssertionError, match="holders"):
        made.check(Counter(pages[:1]))
    with pytest.raises(AssertionError, match="holders"):
        made.check(Counter([*pages, pages[0]]))
    made.release(pages[:1])
    with pytest.raises(AssertionError, match="without its parent"):
        made.check(Counter(pages[1:]))
    made.release(pages[1:])
    with pytest.raises(AssertionError, match="before its child"):
        made.check(Counter())
