"""What a step costs: measured in a bounded time, whatever disturbs it, on any machine."""

import itertools
from collections.abc import Callable, Sequence

import pytest

from slipstream_engine import costs
from slipstream_engine.batch import Batch, Sampled


class Machine:
    """A runner and its clock: a step takes what `step_s` says of its tokens and those before."""

    def __init__(self, step_s: Callable[[int, int], float], noise_s: Sequence[float] = ()) -> None:
        """`noise_s`: what others take of one step after the other, again and again."""
        self.now_s = 0.0
        self.batches: list[Batch] = []
        self._step_s = step_s
        self._noise_s = itertools.cycle(noise_s or (0.0,))

    def run(self, batch: Batch) -> list[Sampled]:
        (chunk,) = batch.chunks
        self.batches.append(batch)
        self.now_s += self._step_s(len(chunk.tokens), chunk.start) + next(self._noise_s)
        return [Sampled(0) for _ in chunk.draws]

    def measure(self, max_tokens: int = 512, max_context: int = 2048) -> dict[int, float]:
        return costs.measure(self, 16, max_tokens, max_context, lambda: self.now_s)


def small(num_tokens: int, start: int) -> float:
    """About SmolLM2 on two cores."""
    return 0.005 + num_tokens * (0.0007 + 0.0006 * start / 1000)


def test_every_size_is_measured_behind_a_context() -> None:
    machine = Machine(small)
    found = machine.measure()
    assert sorted(found) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert found == pytest.approx({count: small(count, 512) for count in found})
    # Each token of a measured step is drawn from, where it would be.
    drawn = [batch.chunks[0] for batch in machine.batches if batch.num_draws]
    for chunk in drawn:
        assert [draw.row for draw in chunk.draws] == list(range(len(chunk.tokens)))
        assert [draw.position for draw in chunk.draws] == list(range(513, chunk.end + 1))
        assert len(chunk.pages) * 16 >= chunk.end


def test_what_others_take_now_and_then_is_no_cost() -> None:
    # Every fourth step is disturbed, for as long as a step of a hundred tokens.
    found = Machine(small, (0.0, 0.1, 0.0, 0.0)).measure()
    assert found == pytest.approx({count: small(count, 512) for count in found})


@pytest.mark.parametrize("token_s", [0.001, 0.02, 0.3, 3.0])
def test_a_slow_machine_is_not_kept_from_its_work(token_s: float) -> None:
    machine = Machine(lambda num_tokens, start: token_s * (1 + num_tokens))
    found = machine.measure()
    assert 1 in found
    # The filling ends with the step that goes beyond its second, and one token is always measured.
    assert machine.now_s <= 1 + 2 + token_s * (33 + 2)


@pytest.mark.parametrize(("max_tokens", "max_context"), [(1, 128), (16, 128), (512, 100), (7, 30)])
def test_no_step_is_larger_than_the_engine_takes(max_tokens: int, max_context: int) -> None:
    machine = Machine(small)
    found = machine.measure(max_tokens, max_context)
    assert max(found) <= min(max_tokens, max_context)
    assert all(batch.num_tokens <= max_tokens for batch in machine.batches)
    assert all(batch.chunks[0].end <= max_context for batch in machine.batches)
