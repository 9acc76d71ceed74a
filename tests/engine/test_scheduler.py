"""The scheduler and its pages, without a model: properties of random workloads, and examples."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.pages import PageAllocator
from slipstream_engine.request import FinishReason, Request
from slipstream_engine.scheduler import Batch, Limits, Scheduler
from tests.engine import local
from tests.engine.local import RecordingRunner

_MAX_CONTEXT = 40


def _expected(one: Request) -> list[int]:
    tokens = list(one.prompt)
    answer: list[int] = []
    while True:
        token = local.next_token(tokens)
        tokens.append(token)
        answer.append(token)
        if token in one.end_tokens or len(answer) == one.max_tokens:
            return answer
        if len(tokens) == _MAX_CONTEXT:
            return answer


def _check(scheduler: Scheduler, limits: Limits, batch: Batch | None) -> None:
    """What must hold after every step."""
    load = scheduler.load()
    owned = [page for one in scheduler.running for page in one.pages]
    assert len(owned) == len(set(owned)) == load.num_pages_used
    assert all(0 <= page < load.num_pages for page in owned)
    assert all(not one.pages and one.num_computed == 0 for one in scheduler.waiting)
    for one in scheduler.running:
        assert 0 <= one.num_computed <= len(one.tokens) <= _MAX_CONTEXT
        assert len(one.pages) * limits.page_tokens >= one.num_computed
    orders = [one.order for one in (*scheduler.running, *scheduler.waiting)]
    assert orders == sorted(orders)
    assert len(scheduler.running) <= limits.max_running_sequences
    if batch is not None:
        assert 0 < batch.num_tokens <= limits.max_batch_tokens
        ids = [chunk.request_id for chunk in batch.chunks]
        assert len(ids) == len(set(ids))


_requests = st.builds(
    lambda prompt, count, ends: (tuple(prompt), count, frozenset(ends)),
    st.lists(st.integers(0, 996), min_size=1, max_size=_MAX_CONTEXT - 1),
    st.integers(1, 30),
    st.lists(st.integers(0, 996), max_size=40),
)
_workloads = st.lists(
    st.tuples(st.integers(0, 12), _requests, st.one_of(st.none(), st.integers(0, 30))),
    min_size=1,
    max_size=10,
)
_limits = st.builds(
    Limits,
    max_running_sequences=st.integers(1, 6),
    max_batch_tokens=st.integers(1, 64),
    page_tokens=st.integers(1, 9),
    max_context=st.just(_MAX_CONTEXT),
)


@given(workload=_workloads, limits=_limits, spare_pages=st.integers(0, 12))
def test_any_workload_finishes_with_the_same_tokens_and_leaves_no_page_behind(
    workload: list[tuple[int, tuple[tuple[int, ...], int, frozenset[int]], int | None]],
    limits: Limits,
    spare_pages: int,
) -> None:
    num_pages = -(-_MAX_CONTEXT // limits.page_tokens) + spare_pages
    scheduler = Scheduler(limits, num_pages)
    runner = RecordingRunner(limits.page_tokens)
    arrivals = {
        str(index): (at, Request(str(index), p, n, _GREEDY, ends), abort_at)
        for index, (at, (p, n, ends), abort_at) in enumerate(workload)
    }
    answers: dict[str, list[int]] = {id_: [] for id_ in arrivals}
    open_ids = set(arrivals)
    for step in range(4000):
        for id_, (at, one, abort_at) in arrivals.items():
            if at == step:
                scheduler.submit(one)
            if abort_at is not None and at + abort_at == step and id_ in open_ids:
                scheduler.abort(id_)
                open_ids.discard(id_)
        batch = scheduler.schedule()
        _check(scheduler, limits, batch)
        if batch is None:
            if not open_ids:
                break
            # Idle only while every open request is still to come.
            assert all(arrivals[id_][0] > step for id_ in open_ids)
            continue
        for progress in scheduler.commit(batch, runner.run(batch)):
            answers[progress.request_id].append(progress.token)
            if progress.finish is not None:
                open_ids.discard(progress.request_id)
        _check(scheduler, limits, None)
    assert not open_ids
    assert scheduler.load().num_pages_used == 0
    for id_, (_, one, abort_at) in arrivals.items():
        expected = _expected(one)
        if abort_at is None:
            assert answers[id_] == expected
        else:
            assert answers[id_] == expected[: len(answers[id_])]


@given(
    operations=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60),
    num_pages=st.integers(1, 20),
)
def test_the_allocator_gives_no_page_twice_and_counts_right(
    operations: list[tuple[bool, int]], num_pages: int
) -> None:
    allocator = PageAllocator(num_pages)
    held: list[list[int]] = []
    for is_allocation, number in operations:
        if is_allocation:
            pages = allocator.allocate(number)
            free = num_pages - sum(map(len, held))
            assert (pages is None) == (number > free)
            if pages is not None:
                held.append(pages)
        elif held:
            allocator.free(held.pop(number % len(held)))
        flat = [page for pages in held for page in pages]
        assert len(flat) == len(set(flat)) == allocator.num_used
        assert allocator.num_free + allocator.num_used == num_pages


def test_freeing_a_page_twice_is_an_error() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    assert pages is not None
    allocator.free(pages)
    with pytest.raises(ValueError, match="not in use"):
        allocator.free(pages[:1])


def test_a_long_prompt_is_cut_into_chunks_beside_sequences_that_decode() -> None:
    limits = local.limits(100, tokens=8, page_tokens=4)
    scheduler, runner = Scheduler(limits, 50), RecordingRunner(4)
    scheduler.submit(local.request("short", [1, 2], 20))
    _run(scheduler, runner, 1)
    scheduler.submit(local.request("long", range(20), 5))
    sizes = []
    for _ in range(3):
        batch = scheduler.schedule()
        assert batch is not None
        sizes.append([(c.request_id, len(c.tokens), c.sampling is None) for c in batch.chunks])
        scheduler.commit(batch, runner.run(batch))
    assert sizes == [
        [("short", 1, False), ("long", 7, True)],
        [("short", 1, False), ("long", 7, True)],
        [("short", 1, False), ("long", 6, False)],
    ]


def test_requests_start_in_the_order_of_their_arrival_also_when_a_later_one_would_fit() -> None:
    limits = local.limits(64, running=4, tokens=64, page_tokens=4)
    scheduler = Scheduler(limits, 16)
    scheduler.submit(local.request("first", range(40), 8))
    scheduler.submit(local.request("large", range(40), 8))
    scheduler.submit(local.request("small", [1], 8))
    batch = scheduler.schedule()
    assert batch is not None
    assert [chunk.request_id for chunk in batch.chunks] == ["first"]
    assert [one.request.id for one in scheduler.waiting] == ["large", "small"]


def test_the_newest_sequence_gives_its_pages_back_when_they_run_out_and_loses_no_token() -> None:
    limits = local.limits(32, running=4, tokens=64, page_tokens=4)
    scheduler, runner = Scheduler(limits, 8), RecordingRunner(4)
    requests = [local.request(str(i), [i, i + 1, i + 2], 20) for i in range(3)]
    answers = local.drive(scheduler, runner, [(0, one) for one in requests])
    assert scheduler.num_preemptions > 0
    assert answers == {one.id: _expected(one)[:20] for one in requests}


def test_a_sequence_that_must_preempt_itself_does_not_stop_an_older_prompt() -> None:
    limits = local.limits(16, running=2, tokens=1, page_tokens=4)
    scheduler, runner = Scheduler(limits, 4), RecordingRunner(4)
    requests = [local.request("old", range(11), 3), local.request("new", [5], 6)]
    answers = local.drive(scheduler, runner, [(0, one) for one in requests])
    assert answers == {one.id: _expected(one) for one in requests}


@pytest.mark.parametrize(
    ("prompt", "max_tokens"), [((), 1), (tuple(range(16)), 1), ((1,), 0)], ids=str
)
def test_a_request_that_can_never_run_is_refused(prompt: tuple[int, ...], max_tokens: int) -> None:
    scheduler = Scheduler(local.limits(16, page_tokens=4), 4)
    with pytest.raises(ValueError, match=r"prompt|at most"):
        scheduler.submit(local.request("x", prompt, max_tokens))


def test_a_pool_that_cannot_hold_one_context_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold one context"):
        Scheduler(local.limits(17, page_tokens=4), 4)


def test_an_answer_ends_at_its_end_token_its_limit_or_the_end_of_the_context() -> None:
    prompt = (1, 2, 3)
    first = local.next_token(prompt)
    cases = {
        "end": local.request("end", prompt, 30, end_tokens=[first]),
        "limit": local.request("limit", prompt, 2),
        "context": local.request("context", prompt, 30),
    }
    expected = {
        "end": (1, FinishReason.STOP),
        "limit": (2, FinishReason.LENGTH),
        "context": (13, FinishReason.LENGTH),
    }
    for name, one in cases.items():
        scheduler, runner = Scheduler(local.limits(16, page_tokens=4), 4), RecordingRunner(4)
        scheduler.submit(one)
        assert _finish(_run(scheduler, runner, 30)) == expected[name]


def _run(
    scheduler: Scheduler, runner: RecordingRunner, steps: int
) -> list[tuple[int, FinishReason | None]]:
    progress = []
    for _ in range(steps):
        batch = scheduler.schedule()
        if batch is None:
            break
        progress += [(p.token, p.finish) for p in scheduler.commit(batch, runner.run(batch))]
    return progress


def _finish(progress: Iterable[tuple[int, FinishReason | None]]) -> tuple[int, FinishReason | None]:
    items = list(progress)
    return len(items), items[-1][1]


_GREEDY = local.request("x", (1,), 1).sampling
