"""The breaker: opens after failures in a row, probes with one call, and leaks no probe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kvstore import breaker as breakers
from slipstream_kvstore.breaker import Breaker, Permit, Policy

POLICY = Policy(failures_to_open=3, first_pause_s=1.0, longest_pause_s=5.0)


def opened(now_s: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(POLICY.failures_to_open):
        breaker, permit = breakers.admit(breaker, now_s)
        assert permit is Permit.CALL
        breaker = breakers.failed(breaker, permit, POLICY, now_s)
    assert not breaker.is_closed
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker()
    for outcome in "ffsffsff":
        breaker, permit = breakers.admit(breaker, 0.0)
        assert permit is Permit.CALL
        if outcome == "f":
            breaker = breakers.failed(breaker, permit, POLICY, 0.0)
        else:
            breaker = breakers.succeeded(breaker, permit)
    assert breaker.is_closed
    assert not breakers.failed(breaker, Permit.CALL, POLICY, 0.0).is_closed


def test_while_open_nobody_calls_and_after_the_pause_one_does() -> None:
    breaker = opened(now_s=10.0)
    assert breakers.admit(breaker, 10.9)[1] is None
    breaker, permit = breakers.admit(breaker, 11.0)
    assert permit is Permit.PROBE
    assert breakers.admit(breaker, 99.0)[1] is None


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker, permit = breakers.admit(opened(), 1.0)
    assert permit is Permit.PROBE
    assert breakers.succeeded(breaker, permit) == Breaker()


def test_every_failed_probe_doubles_the_pause_up_to_the_longest() -> None:
    breaker, now_s, pauses = opened(), 0.0, []
    for _ in range(4):
        now_s = breaker.probe_at_s
        breaker, permit = breakers.admit(breaker, now_s)
        assert permit is Permit.PROBE
        breaker = breakers.failed(breaker, permit, POLICY, now_s)
        pauses.append(breaker.probe_at_s - now_s)
    assert pauses == [2.0, 4.0, 5.0, 5.0]


def test_an_abandoned_probe_makes_way_for_the_next() -> None:
    breaker, permit = breakers.admit(opened(), 1.0)
    assert permit is Permit.PROBE
    breaker = breakers.abandoned(breaker, permit)
    assert breakers.admit(breaker, 1.0)[1] is Permit.PROBE


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "abandoned"])
def test_calls_from_before_the_opening_decide_nothing(outcome: str) -> None:
    breaker = opened(now_s=0.0)
    if outcome == "succeeded":
        after = breakers.succeeded(breaker, Permit.CALL)
    elif outcome == "failed":
        after = breakers.failed(breaker, Permit.CALL, POLICY, 0.9)
    else:
        after = breakers.abandoned(breaker, Permit.CALL)
    assert after == breaker


@given(st.lists(st.tuples(st.sampled_from("asfx"), st.floats(0, 3))))
def test_there_is_one_probe_at_most_and_always_a_way_back(steps: list[tuple[str, float]]) -> None:
    """a: begin a call; s, f, x: the oldest open call succeeds, fails, is given up."""
    breaker, now_s = Breaker(), 0.0
    calls: list[Permit] = []
    for step, pause_s in steps:
        now_s += pause_s
        if step == "a":
            breaker, permit = breakers.admit(breaker, now_s)
            calls += [] if permit is None else [permit]
        elif calls:
            permit = calls.pop(0)
            if step == "s":
                breaker = breakers.succeeded(breaker, permit)
            elif step == "f":
                breaker = breakers.failed(breaker, permit, POLICY, now_s)
            else:
                breaker = breakers.abandoned(breaker, permit)
        assert calls.count(Permit.PROBE) <= 1
        assert breaker.is_probing == (Permit.PROBE in calls)
    for permit in calls:
        breaker = breakers.abandoned(breaker, permit)
    breaker, permit_now = breakers.admit(breaker, now_s + POLICY.longest_pause_s)
    assert permit_now is not None
    assert breakers.succeeded(breaker, permit_now).is_closed
