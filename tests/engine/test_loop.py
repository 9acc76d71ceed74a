"""The engine's step, with a runner that stands for the model and a clock that ticks."""

from itertools import count

from slipstream_engine.batch import Cause
from slipstream_engine.guides.spec import Guide, GuideKind
from slipstream_engine.loop import EngineLoop
from slipstream_engine.messages import Abort, AbortSample, Step, Submit
from slipstream_engine.request import FinishReason
from slipstream_engine.scheduler import Scheduler
from tests.engine import policy


def _loop(max_batch_tokens: int = 64) -> EngineLoop:
    scheduler = Scheduler(policy.limits(tokens=max_batch_tokens), 32, guides=policy.guides())
    ticks = count()
    return EngineLoop(scheduler, policy.PageStore(4, 32), lambda: next(ticks) * 0.5)


def test_a_request_is_answered_step_by_step_until_nothing_is_left() -> None:
    one = policy.request("a", range(6), 5)
    loop = _loop(4)
    assert loop.is_idle
    loop.take(Submit(one))
    steps: list[Step] = []
    while not loop.is_idle:
        steps.append(loop.step())
    assert [step.num_prefill_tokens for step in steps] == [4, 2, 0, 0, 0, 0]
    assert [step.run_s for step in steps] == [0.5] * 6
    told = [progress.sampled.token for step in steps for progress in step.progress]
    assert (told, steps[-1].progress[-1].finish) == policy.naive(one, 0, 64)
    assert steps[-1].load.num_running == 0


def test_a_step_without_work_tells_the_load_and_runs_nothing() -> None:
    step = _loop().step()
    assert (step.progress, step.num_prefill_tokens, step.run_s) == ((), 0, 0.0)
    assert step.load.num_pages == 32


def test_a_step_tells_once_which_requests_left_the_queue() -> None:
    loop = _loop()
    for name in ("a", "b"):
        loop.take(Submit(policy.request(name, range(6), 3, num_samples=2)))
    steps: list[Step] = []
    while not loop.is_idle:
        steps.append(loop.step())
    assert steps[0].admitted == ("a", "b")
    assert all(step.admitted == () for step in steps[1:])


def test_aborts_are_seen_in_the_next_load() -> None:
    loop = _loop()
    loop.take(Submit(policy.request("a", range(6), num_samples=2)))
    loop.take(Submit(policy.request("b", range(6))))
    loop.step()
    loop.take(AbortSample("a", 0))
    loop.take(Abort("b"))
    assert [progress.sample for progress in loop.step().progress] == [1]
    loop.take(Abort("a"))
    load = loop.step().load
    assert (load.num_running, load.num_pages_used) == (0, 0)


def test_a_draw_that_fails_ends_its_request_alone() -> None:
    loop = _loop()
    names = [f"fragile {number}" for number in range(9)]
    for name in names:
        prompt = range(len(name) + int(name[-1]))
        loop.take(Submit(policy.request(name, prompt, 30, sampling=policy.FRAGILE, num_samples=2)))
    loop.take(Submit(policy.request("solid", range(6), 20)))
    steps: list[Step] = []
    while not loop.is_idle:
        steps.append(loop.step())
    failures = [one for step in steps for one in step.failures]
    assert len(failures) > 3
    assert len({one.request_id for one in failures}) == len(failures)
    assert all((one.message, one.cause) == ("fragile", Cause.DRAW) for one in failures)
    progress = [one for step in steps for one in step.progress]
    assert all(one.sampled.token >= 0 for one in progress)
    told = [one for one in progress if one.request_id == "solid"]
    assert [one.sampled.token for one in told] == policy.naive(
        policy.request("solid", range(6), 20), 0, 64
    )[0]
    assert steps[-1].load.num_pages_used == 0


def test_a_guide_that_fails_ends_its_request_alone_before_an_unchecked_token_is_told() -> None:
    loop = _loop()
    # No end token: after the only text that fits nothing is left to draw.
    stuck = Guide(GuideKind.CHOICE, '["abc"]')
    loop.take(Submit(policy.request("a", range(6), guide=stuck, num_samples=2)))
    wrong = Guide(GuideKind.REGEX, "a(")
    loop.take(Submit(policy.request("b", range(6), guide=wrong)))
    other = policy.request("c", range(6), guide=stuck, end_tokens=[6])
    loop.take(Submit(other))
    steps: list[Step] = []
    while not loop.is_idle:
        steps.append(loop.step())
    failures = [(number, one) for number, step in enumerate(steps) for one in step.failures]
    assert [(number, one.request_id) for number, one in failures] == [(0, "b"), (3, "a")]
    assert "regex parse error" in failures[0][1].message
    assert "nothing may follow" in failures[1][1].message
    told = [
        (one.request_id, one.sample, one.sampled.token) for step in steps for one in step.progress
    ]
    for sample in range(2):
        assert [token for id_, number, token in told if (id_, number) == ("a", sample)] == [0, 1, 2]
    assert [token for id_, _, token in told if id_ == "c"] == [0, 1, 2, 6]
    assert steps[-1].progress[-1].finish is FinishReason.STOP
    assert steps[-1].load.num_pages_used == 0
