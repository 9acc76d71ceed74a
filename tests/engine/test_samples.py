"""Several answers to one prompt: computed once, parted by copy on write, ended one by one."""

import pytest

from slipstream_engine.request import SamplingParams
from tests.engine import policy
from tests.engine.policy import Simulation

_SEEDED = SamplingParams(temperature=1.0, seed=3)


def test_samples_share_their_prompt_which_is_computed_once() -> None:
    for prefix_cache in (True, False):
        simulation = Simulation(policy.limits(prefix_cache=prefix_cache), 64)
        one = policy.request("a", policy.text(0, 10), 5, sampling=_SEEDED, num_samples=4)
        simulation.submit(one)
        batch = simulation.run_step()
        assert policy.shape(batch) == [(0, 10, 4)]
        assert [(draw.row, draw.sample) for draw in batch.chunks[0].draws] == [
            (9, 0), (9, 1), (9, 2), (9, 3),
        ]  # fmt: skip
        running = simulation.scheduler.running
        assert len({tuple(sequence.pages) for sequence in running}) == 1
        batch = simulation.run_step()
        # Three copies of the partly filled page; its last holder writes in place.
        assert len(batch.copies) == 3
        assert {source for source, _ in batch.copies} == {running[3].pages[2]}
        assert len({sequence.pages[2] for sequence in running}) == 4
        assert len({tuple(sequence.pages[:2]) for sequence in running}) == 1
        simulation.run()
        assert simulation.store.num_computed == 10 + 4 * 4
        simulation.check_answers([one])


def test_samples_that_part_at_a_pages_end_copy_nothing() -> None:
    simulation = Simulation(policy.limits(), 64)
    simulation.submit(policy.request("a", policy.text(0, 8), 5, sampling=_SEEDED, num_samples=4))
    simulation.run()
    assert simulation.store.num_copies == 0


def test_a_sample_that_makes_room_for_a_better_request_needs_no_copy_any_more() -> None:
    simulation = Simulation(policy.limits(running=3), 16)
    worse = policy.request("a", policy.text(0, 10), 9, sampling=_SEEDED, num_samples=3, priority=1)
    simulation.submit(worse)
    simulation.run_step()
    # Five of sixteen pages belong to the samples once they have parted; this takes twelve.
    better = policy.request("b", policy.text(1, 45), 3)
    simulation.submit(better)
    batch = simulation.run_step()
    running = [(one.request.id, one.samples) for one in simulation.scheduler.running]
    assert running == [("b", (0,)), ("a", (0,))]
    assert len(batch.copies) == 1
    simulation.run()
    simulation.check_answers([worse, better])


def test_samples_that_find_no_slot_wait_for_one() -> None:
    for prefix_cache in (True, False):
        simulation = Simulation(policy.limits(running=2, prefix_cache=prefix_cache), 64)
        one = policy.request("a", policy.text(0, 10), 5, sampling=_SEEDED, num_samples=5)
        simulation.submit(one)
        simulation.run_step()
        load = simulation.scheduler.load()
        assert (load.num_running, load.num_waiting) == (2, 3)
        simulation.run()
        simulation.check_answers([one])
        # The prompt's full pages are found again; without a cache each prompt is computed again.
        again = 3 * (2 if prefix_cache else 10)
        assert simulation.store.num_computed == 10 + 5 * 4 + again


def test_samples_that_find_no_page_wait_for_one() -> None:
    simulation = Simulation(policy.limits(16, running=8), 4)
    one = policy.request("a", policy.text(0, 10), 5, sampling=_SEEDED, num_samples=4)
    simulation.submit(one)
    simulation.run_step()
    # Three pages are the prompt's; the fourth is for one more sample.
    load = simulation.scheduler.load()
    assert (load.num_running, load.num_waiting) == (2, 2)
    simulation.run()
    simulation.check_answers([one])


def test_a_sample_that_ends_at_its_first_token_leaves_its_pages_to_the_others() -> None:
    requests = [
        policy.request(
            "a", policy.text(0, 6), 9, sampling=_SEEDED, num_samples=4, end_tokens=[token]
        )
        for token in range(policy.VOCABULARY)
    ]
    firsts = [policy.naive(requests[0], sample, 64)[0][0] for sample in range(4)]
    assert len(set(firsts)) > 1
    for one in requests:
        simulation = Simulation(policy.limits(), 64)
        simulation.submit(one)
        simulation.run_step()
        num_ended = firsts.count(min(one.end_tokens))
        assert simulation.scheduler.load().num_running == 4 - num_ended
        simulation.run()
        simulation.check_answers([one])
        # Five tokens at most are computed for a sample that goes on; none of the prompt again.
        told = sum(len(answer) - 1 for answer in simulation.answers.values())
        assert simulation.store.num_computed == 6 + told


def test_an_abort_ends_all_samples_and_frees_their_pages_at_once() -> None:
    simulation = Simulation(policy.limits(running=2), 64)
    simulation.submit(policy.request("a", policy.text(0, 10), 5, sampling=_SEEDED, num_samples=3))
    simulation.run_step()
    simulation.abort("a")
    simulation.check_empty()
    simulation.abort("a")
    simulation.abort("never seen")


@pytest.mark.parametrize("steps", range(4))
def test_an_aborted_sample_ends_alone(steps: int) -> None:
    one = policy.request("a", policy.text(0, 10), 6, sampling=_SEEDED, num_samples=3)
    simulation = Simulation(policy.limits(tokens=4), 64)
    simulation.submit(one)
    for _ in range(steps):
        simulation.run_step()
    simulation.abort_sample("a", 0)
    simulation.run()
    assert set(simulation.finished) == {("a", 1), ("a", 2)}
    simulation.check_answers([one])
    simulation.check_empty()


def test_the_last_aborted_sample_ends_the_request() -> None:
    simulation = Simulation(policy.limits(), 64)
    simulation.submit(policy.request("a", policy.text(0, 10), num_samples=2))
    for sample in (0, 1, 1, 2):
        simulation.abort_sample("a", sample)
    simulation.check_empty()
    assert simulation.scheduler.is_idle
