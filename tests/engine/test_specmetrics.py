"""What is counted of drafts, step by step."""

import math
from collections.abc import Sequence
from itertools import count

import pytest

from slipstream_engine.batch import Load
from slipstream_engine.loop import EngineLoop
from slipstream_engine.messages import Step, Submit
from slipstream_engine.metrics import EngineMetrics
from slipstream_engine.scheduler import Scheduler
from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import Draft, Key
from slipstream_engine.spec.edit import EditDrafter
from slipstream_engine.spec.lookup import LookupDrafter
from slipstream_engine.spec.speculation import Outcome, Speculation
from tests.engine import policy

_LOAD = Load(0, 0, 0, 0, 1)
_LABELS = '{drafter="edit",model_name="m"}'


def _values(metrics: EngineMetrics) -> dict[str, float]:
    lines = metrics.text().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_every_counter_begins_at_zero_and_counts_what_it_is_told() -> None:
    metrics = EngineMetrics("m", ["edit", "suffix"], 4)
    before = _values(metrics)
    mine = {
        name: value
        for name, value in before.items()
        if name.startswith(("vllm:spec", "sglang:spec", "slipstream_draft", "slipstream_verify"))
        and "_created" not in name
    }
    # Drafts, drafted, accepted, failures and four places of each drafter; two times, two gauges.
    assert len(mine) == 2 * (4 + 4) + 2 + 2
    assert set(mine.values()) == {0.0}
    outcomes = (Outcome("r", 0, "edit", 4, 3), Outcome("r", 1, "edit", 2, 0))
    metrics.speculation.observe(Step((), _LOAD, run_s=0.5, outcomes=outcomes, draft_s=0.25))
    after = _values(metrics)
    assert after[f"vllm:spec_decode_num_drafts_total{_LABELS}"] == 2
    assert after[f"vllm:spec_decode_num_draft_tokens_total{_LABELS}"] == 6
    assert after[f"vllm:spec_decode_num_accepted_tokens_total{_LABELS}"] == 3
    places = [
        after[
            "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            f'{{drafter="edit",model_name="m",position="{place}"}}'
        ]
        for place in range(4)
    ]
    assert places == [1, 1, 1, 0]
    assert after['slipstream_verify_seconds_total{model_name="m"}'] == 0.5
    # The later draft weighs a little more.
    assert after['sglang:spec_accept_length{model_name="m"}'] == pytest.approx(2.5, abs=0.01)
    assert after['sglang:spec_accept_rate{model_name="m"}'] == pytest.approx(0.5, abs=0.01)


def test_time_that_brought_no_draft_is_counted_too() -> None:
    metrics = EngineMetrics("m", ["edit"], 4)
    for _ in range(3):
        metrics.speculation.observe(Step((), _LOAD, run_s=1.0, draft_s=0.25))
    after = _values(metrics)
    assert after['slipstream_draft_seconds_total{model_name="m"}'] == 0.75
    assert after['slipstream_verify_seconds_total{model_name="m"}'] == 0.0


class _Broken(EditDrafter):
    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        return [Draft((1,), (), (math.nan,), self.name) for _ in asked]


def test_a_drafter_that_fails_shows_in_a_counter_of_its_own() -> None:
    drafters = (_Broken(), LookupDrafter())
    chooser = Chooser([Member(one) for one in drafters])
    speculation = Speculation(chooser, 4, num_failures=lambda: chooser.num_failures)
    scheduler = Scheduler(policy.limits(), 32, speculation=speculation)
    ticks = count()
    loop = EngineLoop(scheduler, policy.PageStore(4, 32), lambda: next(ticks) * 0.5, speculation)
    metrics = EngineMetrics("m", [one.name for one in drafters], 4)
    for name in ("a", "b"):
        loop.take(Submit(policy.request(name, range(6), 9)))
    while not loop.is_idle:
        metrics.speculation.observe(loop.step())
    after = _values(metrics)
    assert after[f"slipstream_draft_failures_total{_LABELS}"] == 2
    assert after['slipstream_draft_failures_total{drafter="lookup",model_name="m"}'] == 0
