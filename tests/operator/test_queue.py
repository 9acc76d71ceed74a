"""The work queue in simulated time."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_operator.queue import WorkQueue
from slipstream_operator.schedule import BASE_S, CAP_S, Schedule


def test_a_key_that_is_added_often_is_handed_out_once() -> None:
    schedule: Schedule[str] = Schedule()
    for at in (3.0, 1.0, 2.0):
        schedule.add("model", at)
    assert schedule.take(0.9) is None
    assert schedule.take(1.0) == "model"
    assert len(schedule) == 0


def test_one_key_is_never_worked_on_twice_at_a_time() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("model", 0.0)
    assert schedule.take(0.0) == "model"
    schedule.add("model", 0.0)
    assert schedule.take(1.0) is None
    assert schedule.next_at() is None
    schedule.finish("model", None)
    assert schedule.take(1.0) == "model"


def test_the_longest_due_key_comes_first() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("late", 2.0)
    schedule.add("early", 1.0)
    assert [schedule.take(3.0), schedule.take(3.0)] == ["early", "late"]


def test_failures_wait_longer_each_time_and_success_forgets_them() -> None:
    schedule: Schedule[str] = Schedule()
    rng = random.Random(7)
    waits = []
    for _ in range(14):
        schedule.add("model", 0.0)
        assert schedule.take(1e9) == "model"
        waits.append(schedule.fail("model", 0.0, rng))
    for number, wait in enumerate(waits):
        full = min(CAP_S, BASE_S * 2**number)
        assert full / 2 <= wait <= full
    assert len({round(w / min(CAP_S, BASE_S * 2**n), 3) for n, w in enumerate(waits)}) > 5
    assert schedule.take(1e9) == "model"
    schedule.finish("model", None)
    schedule.add("model", 0.0)
    assert schedule.take(0.0) == "model"
    assert schedule.fail("model", 0.0, rng) <= BASE_S


def test_a_wake_from_outside_during_a_failing_pass_is_answered_at_once() -> None:
    schedule: Schedule[str] = Schedule()
    for _ in range(12):  # long waits by now
        schedule.add("model", 0.0)
        assert schedule.take(1e9) == "model"
        schedule.fail("model", 0.0, random.Random(1))
    assert schedule.take(1e9) == "model"
    schedule.add("model", 5.0)
    assert schedule.fail("model", 1.0, random.Random(1)) > 10
    assert schedule.take(4.9) is None
    assert schedule.take(5.0) == "model"


def test_a_passs_own_wake_counts_when_it_succeeds() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("model", 0.0)
    assert schedule.take(0.0) == "model"
    schedule.add("model", 3.0, is_own=True)
    schedule.finish("model", 60.0)
    assert schedule.take(2.9) is None
    assert schedule.take(3.0) == "model"


def test_a_passs_own_wake_does_not_shorten_the_wait_after_its_failure() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("model", 0.0)
    assert schedule.take(0.0) == "model"
    schedule.add("model", 0.0, is_own=True)
    wait = schedule.fail("model", 0.0, random.Random(1))
    assert schedule.take(wait - 0.001) is None
    assert schedule.take(wait) == "model"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=40))
def test_every_added_key_is_handed_out_in_time(adds: list[tuple[str, int]]) -> None:
    schedule: Schedule[str] = Schedule()
    wanted: dict[str, int] = {}
    for key, at in adds:
        schedule.add(key, float(at))
        wanted[key] = min(at, wanted.get(key, at))
    served: dict[str, int] = {}
    for now in range(10):
        while (key_now := schedule.take(float(now))) is not None:
            served[key_now] = now
            schedule.finish(key_now, None)
    assert served == wanted


def test_a_waiting_worker_wakes_for_a_new_key_before_an_old_timer() -> None:
    async def scenario() -> str:
        loop = asyncio.get_running_loop()
        queue: WorkQueue[str] = WorkQueue(loop.time, random.Random(1))
        queue.add("far", 3600.0)
        getting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add("near")
        return await asyncio.wait_for(getting, 5)

    assert asyncio.run(scenario()) == "near"


def test_a_worker_that_waits_for_a_time_is_one_task() -> None:
    """kopf cancels every task that is younger than itself when it ends, before workers end."""

    async def scenario() -> set[asyncio.Task[str]]:
        queue: WorkQueue[str] = WorkQueue(asyncio.get_running_loop().time, random.Random(1))
        queue.add("far", 3600.0)
        worker = asyncio.create_task(queue.get())
        before = asyncio.all_tasks()
        await asyncio.sleep(0)
        younger = asyncio.all_tasks() - before
        worker.cancel()
        return younger

    assert asyncio.run(scenario()) == set()


def test_a_repetition_waits_for_its_time() -> None:
    now = 100.0
    queue: WorkQueue[str] = WorkQueue(lambda: now, random.Random(1))
    queue.add("model")

    async def take() -> str:
        return await asyncio.wait_for(queue.get(), 0.05)

    assert asyncio.run(take()) == "model"
    queue.finish("model", 10.0)
    with pytest.raises(TimeoutError):
        asyncio.run(take())
    now = 110.0
    assert asyncio.run(take()) == "model"
