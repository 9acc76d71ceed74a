"""Who runs when: chunks, priorities, preemption, samples that part, and ends; by examples."""

import pytest

from slipstream_engine.batch import Batch, Sampled
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.scheduler import Scheduler
from tests.engine import policy
from tests.engine.policy import Simulation


def _running(simulation: Simulation) -> list[str]:
    return [one.request.id for one in simulation.scheduler.running]


def _waiting(simulation: Simulation) -> list[str]:
    return [one.request.id for one in simulation.scheduler.waiting]


def test_a_long_prompt_is_cut_into_chunks_beside_sequences_that_decode() -> None:
    simulation = Simulation(policy.limits(100, tokens=8), 50)
    simulation.submit(policy.request("short", [1, 2], 20))
    simulation.run_step()
    simulation.submit(policy.request("long", policy.text(3, 20), 5))
    batches = [simulation.run_step() for _ in range(3)]
    assert [policy.shape(batch) for batch in batches] == [
        [(2, 1, 1), (0, 7, 0)],
        [(3, 1, 1), (7, 7, 0)],
        [(4, 1, 1), (14, 6, 1)],
    ]
    assert [batch.num_prefill_tokens for batch in batches] == [7, 7, 6]


def test_the_oldest_prompt_is_finished_before_the_next_one_gets_a_token() -> None:
    simulation = Simulation(policy.limits(100, tokens=8), 75)
    simulation.submit(*(policy.request(name, policy.text(n, 20)) for n, name in enumerate("ab")))
    shapes = [policy.shape(simulation.run_step()) for _ in range(3)]
    assert shapes == [[(0, 8, 0)], [(8, 8, 0)], [(16, 4, 1), (0, 4, 0)]]


def test_requests_start_in_the_order_of_their_arrival_also_when_a_later_one_would_fit() -> None:
    simulation = Simulation(policy.limits(64, running=4), 16)
    simulation.submit(policy.request("first", policy.text(0, 40)))
    simulation.submit(policy.request("large", policy.text(1, 40)), policy.request("small", [2]))
    assert len(simulation.run_step().chunks) == 1
    assert (_running(simulation), _waiting(simulation)) == (["first"], ["large", "small"])


def test_a_better_priority_starts_first_and_arrival_decides_among_equals() -> None:
    simulation = Simulation(policy.limits(running=1), 16)
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", 0), ("e", -5)):
        simulation.submit(policy.request(name, [1], 2, priority=priority))
    started = []
    while simulation.open:
        simulation.run_step()
        started += [one for one in _running(simulation) if one not in started]
    assert started == ["e", "b", "d", "a", "c"]


def test_a_better_prompt_is_computed_before_a_worse_one_that_is_under_way() -> None:
    simulation = Simulation(policy.limits(100, tokens=8), 75)
    simulation.submit(policy.request("worse", policy.text(0, 40), priority=1))
    simulation.run_step()
    simulation.submit(policy.request("better", policy.text(1, 12)))
    assert [policy.shape(simulation.run_step()) for _ in range(2)] == [
        [(0, 8, 0)],
        [(8, 4, 1), (8, 4, 0)],
    ]


def test_a_better_request_takes_the_slot_of_the_worst_one_but_never_of_its_equal() -> None:
    simulation = Simulation(policy.limits(running=2), 32)
    simulation.submit(policy.request("one", [1], 9, priority=1))
    simulation.submit(policy.request("two", [2], 9, priority=2))
    simulation.run_step()
    simulation.submit(policy.request("equal", [3], 9, priority=2))
    simulation.run_step()
    assert simulation.scheduler.num_preemptions == 0
    assert _running(simulation) == ["one", "two"]
    simulation.submit(policy.request("better", [4], 9, priority=1))
    simulation.run_step()
    assert (_running(simulation), _waiting(simulation)) == (["one", "better"], ["two", "equal"])
    simulation.run()


def test_a_better_request_takes_pages_only_when_that_is_enough() -> None:
    simulation = Simulation(policy.limits(64, running=4), 16)
    simulation.submit(policy.request("best", policy.text(0, 30), 9, priority=-1))
    simulation.run_step()
    # Of its eight pages seven are the best one's too: it would give back a single one.
    simulation.submit(policy.request("worse", (*policy.text(0, 28), 6), 9, priority=1))
    simulation.run_step()
    simulation.submit(policy.request("large", policy.text(3, 33), 9))
    simulation.run_step()
    assert (_running(simulation), _waiting(simulation)) == (["best", "worse"], ["large"])
    assert simulation.scheduler.num_preemptions == 0
    simulation.abort("large")
    simulation.submit(policy.request("medium", policy.text(3, 21), 9))
    simulation.run_step()
    assert (_running(simulation), _waiting(simulation)) == (["best", "medium"], ["worse"])
    assert simulation.scheduler.num_preemptions == 1
    simulation.run()


def test_pages_that_a_better_request_would_use_itself_are_not_counted_as_coming_back() -> None:
    simulation = Simulation(policy.limits(64, running=4), 16)
    simulation.submit(policy.request("best", policy.text(1, 5), 9, priority=-1))
    simulation.submit(policy.request("worse", policy.text(0, 30), 9, priority=1))
    simulation.run_step()
    # Seven pages are the worse one's, eight are new, but two are the best one's.
    simulation.submit(policy.request("long", policy.text(0, 28) + policy.text(6, 32), 4))
    simulation.run_step()
    assert (_running(simulation), _waiting(simulation)) == (["best", "worse"], ["long"])
    assert simulation.scheduler.num_preemptions == 0
    simulation.run()


def test_the_newest_sequence_gives_its_pages_back_when_they_run_out_and_loses_no_token() -> None:
    for prefix_cache in (True, False):
        simulation = Simulation(policy.limits(32, running=4, prefix_cache=prefix_cache), 8)
        requests = [policy.request(str(n), [n, n + 1, n + 2], 20) for n in range(3)]
        simulation.submit(*requests)
        first_to_wait: list[str] = []
        while simulation.open:
            simulation.run_step()
            first_to_wait = first_to_wait or _waiting(simulation)
        assert first_to_wait == ["2"]
        assert simulation.scheduler.load().num_preemptions > 0
        simulation.check_answers(requests)


def test_a_sequence_that_must_preempt_itself_does_not_stop_an_older_prompt() -> None:
    simulation = Simulation(policy.limits(16, running=2, tokens=1), 4)
    requests = [policy.request("old", policy.text(0, 11), 3), policy.request("new", [5], 6)]
    simulation.submit(*requests)
    simulation.run()
    simulation.check_answers(requests)


def test_what_was_computed_before_a_preemption_is_found_again() -> None:
    simulation = Simulation(policy.limits(64), 32)
    simulation.submit(policy.request("a", policy.text(0, 21), 20))
    for _ in range(5):
        simulation.run_step()
    simulation.scheduler.preempt_newest()
    # 21 + 5 tokens, 25 of them computed: six full pages are still there.
    assert policy.shape(simulation.run_step()) == [(24, 2, 1)]
    # Only what was found at first is told as cached.
    assert simulation.cached == {"a": 0}
    simulation.run()


def test_a_newcomer_leaves_a_page_to_everyone_who_runs() -> None:
    simulation = Simulation(policy.limits(32, running=4), 8)
    simulation.submit(*(policy.request(str(n), policy.text(n, 8), 20) for n in range(3)))
    # Six pages are taken by two; the third would find two, but each of them needs one soon.
    simulation.submit(policy.request("3", policy.text(4, 5), 20))
    simulation.run_step()
    assert _running(simulation) == ["0", "1", "2"]
    simulation.run()


def test_one_slot_and_one_token_a_step_is_enough_for_everybody() -> None:
    simulation = Simulation(policy.limits(24, running=1, tokens=1), 6)
    requests = [policy.request(str(n), policy.text(n, 9), 9, num_samples=n + 1) for n in range(3)]
    simulation.submit(*requests)
    simulation.run()
    simulation.check_answers(requests)


def test_fewer_tokens_a_step_than_sequences_that_decode_go_to_the_first_ones() -> None:
    simulation = Simulation(policy.limits(tokens=2), 64)
    simulation.submit(*(policy.request(str(n), [n], 3) for n in range(3)))
    assert [policy.shape(simulation.run_step()) for _ in range(3)] == [
        [(0, 1, 1), (0, 1, 1)],
        [(1, 1, 1), (1, 1, 1)],
        [(2, 1, 1), (2, 1, 1)],
    ]
    simulation.run()


def test_end_tokens_are_banned_until_the_answer_is_long_enough() -> None:
    one = policy.request("a", [1, 2], 9, end_tokens=[4, 2], min_tokens=2)
    simulation = Simulation(policy.limits(), 64)
    simulation.submit(one)
    banned = []
    while simulation.open:
        banned += [draw.banned for chunk in simulation.run_step().chunks for draw in chunk.draws]
    assert banned[:3] == [(2, 4), (2, 4), ()][: len(banned)]
    assert len(banned) >= 2
    simulation.check_answers([one])


def test_history_is_sent_only_to_draws_that_need_it() -> None:
    simulation = Simulation(policy.limits(), 64)
    penalty = SamplingParams(temperature=0.0, repetition_penalty=1.1)
    simulation.submit(
        policy.request("plain", [1, 2]), policy.request("penal", [3], sampling=penalty)
    )
    histories = [chunk.draws[0].history for chunk in simulation.run_step().chunks]
    assert histories == [(), (3,)]


def test_an_answer_ends_at_its_end_token_its_limit_or_the_end_of_the_context() -> None:
    prompt = (1, 2, 3)
    first = policy.naive(policy.request("x", prompt), 0, 16)[0][0]
    cases = {
        policy.request("end", prompt, 30, end_tokens=[first]): (1, FinishReason.STOP),
        policy.request("limit", prompt, 2): (2, FinishReason.LENGTH),
        policy.request("context", prompt, 30): (13, FinishReason.LENGTH),
    }
    for one, expected in cases.items():
        simulation = Simulation(policy.limits(16), 4)
        simulation.submit(one)
        simulation.run()
        told = len(simulation.answers[one.id, 0]), simulation.finished[one.id, 0]
        assert told == expected


def test_prompt_tokens_found_in_the_cache_are_counted_once_a_request() -> None:
    simulation = Simulation(policy.limits(), 64)
    prompt = tuple(policy.text(0, 14))
    simulation.submit(policy.request("a", prompt, 2))
    simulation.run()
    simulation.submit(policy.request("b", prompt, 3, num_samples=2))
    simulation.run_step()
    simulation.scheduler.preempt_newest()
    simulation.run()
    load = simulation.scheduler.load()
    assert simulation.cached == {"a": 0, "b": 12}
    assert (load.num_prefix_queries, load.num_prefix_hits) == (28, 12)
    assert load.num_preemptions == 1
    assert load.num_pages_cached + load.num_pages_used < load.num_pages == 64


def test_without_the_cache_nothing_is_found_kept_or_counted() -> None:
    simulation = Simulation(policy.limits(prefix_cache=False), 64)
    for name in "ab":
        simulation.submit(policy.request(name, policy.text(0, 14), 2))
        simulation.run()
    load = simulation.scheduler.load()
    assert simulation.cached == {"a": 0, "b": 0}
    assert (load.num_prefix_queries, load.num_pages_cached) == (0, 0)


@pytest.mark.parametrize("kind", ["abort", "preempt"])
def test_what_leaves_while_its_batch_runs_is_skipped(kind: str) -> None:
    simulation = Simulation(policy.limits(), 64)
    requests = [policy.request(name, policy.text(n, 5), 4) for n, name in enumerate("ab")]
    simulation.submit(*requests)
    simulation.run_step()

    def leave() -> None:
        if kind == "abort":
            simulation.abort("b")
        else:
            assert simulation.scheduler.preempt_newest()

    simulation.step(leave)
    assert [len(simulation.answers[name, 0]) for name in "ab"] == [2, 1]
    simulation.run()
    simulation.check_answers(requests)


def test_nothing_is_preempted_where_nothing_runs() -> None:
    assert not Scheduler(policy.limits(16), 4).preempt_newest()


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (policy.request("x", ()), "prompt"),
        (policy.request("x", range(16)), "prompt"),
        (policy.request("x", [1], 0), "at most"),
        (policy.request("x", [1], num_samples=0), "answers"),
        (policy.request("x", [1], root_key=b"short"), "root key"),
        (policy.request("there", [1]), "second request"),
    ],
    ids=["no prompt", "no room for a token", "no token", "no sample", "a bad root", "twice"],
)
def test_a_request_that_can_never_run_is_refused(one: Request, message: str) -> None:
    scheduler = Scheduler(policy.limits(16), 4)
    scheduler.submit(policy.request("there", [1]))
    with pytest.raises(ValueError, match=message):
        scheduler.submit(one)
    scheduler.check()


def test_a_pool_that_cannot_hold_one_context_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold one context"):
        Scheduler(policy.limits(17), 4)


def test_one_batch_is_out_at_a_time_and_needs_a_token_for_every_draw() -> None:
    scheduler = Scheduler(policy.limits(16), 4)
    scheduler.submit(policy.request("a", [1]))
    batch = scheduler.schedule()
    assert batch is not None
    with pytest.raises(ValueError, match="not committed"):
        scheduler.schedule()
    for other, sampled in ((batch, []), (Batch(batch.chunks), [Sampled(1)])):
        with pytest.raises(ValueError, match="tokens"):
            scheduler.commit(other, sampled)
    assert len(scheduler.commit(batch, [Sampled(1)])) == 1
    with pytest.raises(ValueError, match="tokens"):
        scheduler.commit(batch, [Sampled(1)])
