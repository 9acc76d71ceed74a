"""One look: adversaries that must lose, and what the verdict says about them."""

import math
import random
from dataclasses import replace

import pytest

from slipstream_api.observation import ErrorClass
from slipstream_judge.checks import Check, Direction, Look, Margin
from slipstream_judge.sessions import collect, dumps, loads
from slipstream_judge.signals import Signal
from slipstream_judge.verdicts import Outcome, decide, decide_gate
from tests.judge.support import LOOK, arm, failures, flags, record, slower, spread, two_arms, worse

LOW, HIGH, SAME = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER, Direction.UNCHANGED


def test_half_as_slow_again_is_found_with_thirty_sessions_an_arm() -> None:
    """In a gate of eight checks, in 19 of 20 tries; the twentieth waits for more, none passes."""
    look = Look(num_checks=8, canary_share_basis_points=None)
    verdicts = []
    for seed in range(20):
        canary, reference = spread(30, 30, seed=seed), spread(20, 30, seed=seed + 100)
        statistics = two_arms(Signal.TPOT, "tpot_ms", canary, reference)
        verdicts.append(decide(slower(Signal.TPOT), statistics, look))
    outcomes = [it.outcome for it in verdicts]
    assert outcomes.count(Outcome.FAIL) >= 19
    assert Outcome.PASS not in outcomes
    assert all(it.estimate is not None and 0.3 < it.estimate < 0.75 for it in verdicts)


def test_an_equal_canary_passes() -> None:
    statistics = two_arms(Signal.TPOT, "tpot_ms", spread(20, 200), spread(20, 200, seed=2))
    assert decide(slower(Signal.TPOT), statistics, LOOK).outcome is Outcome.PASS


def test_a_speculator_must_be_faster_to_pass_not_only_no_slower() -> None:
    faster, same = spread(14, 100), spread(20, 100)
    asked = slower(Signal.TPOT, margin_basis_points=-1500)
    outcomes = [
        decide(asked, two_arms(Signal.TPOT, "tpot_ms", canary, spread(20, 100, seed=2)), LOOK)
        for canary in (faster, same)
    ]
    assert [it.outcome for it in outcomes] == [Outcome.PASS, Outcome.FAIL]


@pytest.mark.parametrize(
    ("direction", "canary_ms", "outcome"),
    [
        (LOW, 10, Outcome.PASS),
        (LOW, 40, Outcome.FAIL),
        (HIGH, 10, Outcome.FAIL),
        (HIGH, 40, Outcome.PASS),
        (SAME, 10, Outcome.FAIL),
        (SAME, 40, Outcome.FAIL),
        (SAME, 20, Outcome.PASS),
    ],
)
def test_a_direction_says_which_change_is_bad(
    direction: Direction, canary_ms: float, outcome: Outcome
) -> None:
    check = Check(
        signal=Signal.TPOT,
        direction=direction,
        margin=Margin.RELATIVE,
        margin_basis_points=2000,
    )
    statistics = two_arms(Signal.TPOT, "tpot_ms", spread(canary_ms, 150), spread(20, 150, seed=2))
    assert decide(check, statistics, LOOK).outcome is outcome


def test_one_huge_session_decides_nothing() -> None:
    """Twenty thousand requests, ten times slower, all failed: it is one of thirty sessions."""
    huge = [[1000.0] * 20_000]
    latency = two_arms(Signal.TTFT, "ttft_ms", [*spread(100, 29), *huge], spread(100, 30, seed=2))
    assert decide(slower(), latency, LOOK).outcome is Outcome.INCONCLUSIVE
    broken: list[list[ErrorClass | None]] = [[ErrorClass.ENGINE_BROKE] * 20_000]
    failed = failures([*flags(0, 29), *broken], flags(0, 30))
    assert decide(worse(), failed, LOOK).outcome is Outcome.INCONCLUSIVE


def test_one_huge_good_session_decides_nothing() -> None:
    """Without it canary fails; twenty thousand fast requests of one session save nothing."""
    canary = [*spread(200, 29), [100.0] * 20_000]
    statistics = two_arms(Signal.TTFT, "ttft_ms", canary, spread(100, 30, seed=2))
    assert decide(slower(), statistics, LOOK).outcome is Outcome.FAIL


@pytest.mark.parametrize("copies", [2, 50])
def test_requests_that_repeat_their_session_shrink_no_interval(copies: int) -> None:
    canary, reference = spread(110, 30, requests=1), spread(100, 30, requests=1, seed=2)
    once = two_arms(Signal.TTFT, "ttft_ms", canary, reference)
    often = two_arms(
        Signal.TTFT, "ttft_ms", [s * copies for s in canary], [s * copies for s in reference]
    )
    one, many = decide(slower(), once, LOOK), decide(slower(), often, LOOK)
    assert one.interval == pytest.approx(many.interval)
    assert f"({30 * copies} requests, worth 30 independent ones)" in many.reason


def test_repeated_failures_of_a_session_are_one() -> None:
    once = decide(worse(), failures(flags(3, 40), flags(1, 40)), LOOK)
    often = decide(
        worse(), failures([s * 30 for s in flags(3, 40)], [s * 30 for s in flags(1, 40)]), LOOK
    )
    assert once.interval == pytest.approx(often.interval)


def test_a_small_canary_arm_is_judged_by_its_own_size() -> None:
    """95 to 5: the large arm makes the interval no narrower than the small one allows."""
    look = Look(num_checks=1, canary_share_basis_points=500)
    even = two_arms(Signal.TTFT, "ttft_ms", spread(100, 40), spread(100, 40, seed=2))
    odd = two_arms(Signal.TTFT, "ttft_ms", spread(100, 40), spread(100, 760, seed=2))
    (low, high), (odd_low, odd_high) = (
        it.interval or (0.0, 0.0)
        for it in (decide(slower(), even, LOOK), decide(slower(), odd, look))
    )
    assert 0.5 < (odd_high - odd_low) / (high - low) < 1
    slow = two_arms(Signal.TTFT, "ttft_ms", spread(150, 40), spread(100, 760, seed=2))
    verdict = decide_gate([slower()], slow, look)
    assert verdict.outcome is Outcome.FAIL
    assert "sample ratio" not in verdict.reason


def test_a_crash_in_every_third_session_is_found_with_forty() -> None:
    look = Look(num_checks=8, canary_share_basis_points=None)
    verdict = decide(worse(), failures(flags(16, 40), flags(0, 40)), look)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.estimate == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("sessions", "outcome"), [(300, Outcome.INCONCLUSIVE), (800, Outcome.PASS)]
)
def test_no_failure_at_all_passes_once_the_sessions_can_prove_it(
    sessions: int, outcome: Outcome
) -> None:
    statistics = failures(flags(0, sessions), flags(0, sessions))
    assert decide(worse(margin_basis_points=100), statistics, LOOK).outcome is outcome


@pytest.mark.parametrize(
    ("bad", "outcome"), [(0, Outcome.PASS), (3, Outcome.INCONCLUSIVE), (40, Outcome.FAIL)]
)
def test_a_limit_needs_no_reference(bad: int, outcome: Outcome) -> None:
    check = Check(signal=Signal.FAILED, direction=LOW, margin=Margin.LIMIT, margin_basis_points=300)
    verdict = decide(check, failures(flags(bad, 200), []), LOOK)
    assert verdict.outcome is outcome
    assert verdict.interval is not None
    assert verdict.interval[0] <= bad / 200 <= verdict.interval[1]


def test_a_share_that_should_be_high_has_a_limit_below() -> None:
    called = [[0.9]] * 200
    for share, outcome in ((0.5, Outcome.PASS), (0.99, Outcome.FAIL)):
        check = Check(
            signal=Signal.REPETITION,
            direction=HIGH,
            margin=Margin.LIMIT,
            margin_basis_points=round(share * 10_000),
        )
        statistics = two_arms(Signal.REPETITION, "repetition", called, [])
        assert decide(check, statistics, LOOK).outcome is outcome


@pytest.mark.parametrize(
    ("canary_ms", "outcome"), [(20.0, Outcome.PASS), (30.0, Outcome.FAIL), (20.01, Outcome.PASS)]
)
def test_constant_values_have_no_variance_and_still_a_verdict(
    canary_ms: float, outcome: Outcome
) -> None:
    statistics = two_arms(Signal.TPOT, "tpot_ms", [[canary_ms]] * 30, [[20.0]] * 30)
    assert decide(slower(Signal.TPOT), statistics, LOOK).outcome is outcome


def test_one_constant_arm_takes_nothing_from_the_others_variance() -> None:
    statistics = two_arms(Signal.TPOT, "tpot_ms", spread(20, 30), [[20.0]] * 30)
    interval = decide(slower(Signal.TPOT), statistics, LOOK).interval
    assert interval is not None
    assert interval[1] - interval[0] > 0.1


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_ties_everywhere_are_no_difference(share: float) -> None:
    statistics = two_arms(Signal.REPETITION, "repetition", [[share]] * 40, [[share]] * 40)
    verdict = decide(worse(Signal.REPETITION, 1000), statistics, LOOK)
    assert verdict.estimate == 0
    assert verdict.interval is not None
    assert verdict.interval[0] < 0 < verdict.interval[1]
    assert verdict.outcome is not Outcome.FAIL


@pytest.mark.parametrize("sessions", [(29, 30), (30, 29), (0, 30), (30, 0), (0, 0)])
def test_too_few_sessions_are_no_data_however_clear_they_look(sessions: tuple[int, int]) -> None:
    statistics = two_arms(
        Signal.TTFT, "ttft_ms", [[900.0] * 99] * sessions[0], [[1.0] * 99] * sessions[1]
    )
    verdict = decide(slower(), statistics, LOOK)
    assert verdict.outcome is Outcome.NO_DATA
    assert verdict.estimate is None and verdict.interval is None
    assert f"a value in {min(sessions)} of {min(sessions)} sessions" in verdict.reason
    assert "30 are needed" in verdict.reason


def test_missing_values_are_neither_zeros_nor_sessions() -> None:
    unmeasured = [record("canary", n, status=200) for n in range(40)]
    statistics = collect([*unmeasured, *arm("stable", "ttft_ms", spread(9, 40))], [Signal.TTFT])
    verdict = decide(slower(), statistics, LOOK)
    assert verdict.outcome is Outcome.NO_DATA
    assert "canary has a value in 0 of 40 sessions" in verdict.reason


def test_an_arm_of_disconnects_has_no_latency_and_no_success_but_its_disconnects() -> None:
    signals = [Signal.TTFT, Signal.FAILED, Signal.DISCONNECTED]
    left = [
        record("canary", n, disconnect=True, status=499, error_class=ErrorClass.CLIENT_DISCONNECT)
        for n in range(60)
    ]
    statistics = collect([*left, *arm("stable", "ttft_ms", spread(9, 60))], signals)
    checks = [slower(), worse(), worse(Signal.DISCONNECTED)]
    look = Look(num_checks=3, canary_share_basis_points=5000)
    verdict = decide_gate(checks, statistics, look)
    assert [it.outcome for it in verdict.verdicts] == [
        Outcome.NO_DATA,
        Outcome.NO_DATA,
        Outcome.FAIL,
    ]
    assert verdict.outcome is Outcome.FAIL


@pytest.mark.parametrize("value", [math.nan, -5.0, math.inf])
def test_a_value_that_cannot_be_is_an_error_that_names_its_field(value: float) -> None:
    bad = record("stable", 3, status=200, ttft_ms=value)
    good = [
        record(track, n, status=200, ttft_ms=9.0)
        for track in ("canary", "stable")
        for n in range(800)
    ]
    statistics = collect([*good, bad], [Signal.TTFT, Signal.FAILED])
    verdict = decide(slower(), statistics, LOOK)
    assert verdict.outcome is Outcome.ERROR
    assert "TTFT.ttft_ms (1)" in verdict.reason
    assert decide(worse(), statistics, LOOK).outcome is Outcome.PASS


def test_requests_without_a_session_are_an_error_of_every_check() -> None:
    statistics = collect([record(session=None)], [Signal.TTFT])
    verdict = decide(slower(), statistics, LOOK)
    assert verdict.outcome is Outcome.ERROR
    assert "session (1)" in verdict.reason


def test_the_same_statistics_give_the_same_verdict_to_the_last_bit() -> None:
    observations = [
        *arm("canary", "ttft_ms", spread(110, 50)),
        *arm("stable", "ttft_ms", spread(100, 50, seed=2)),
    ]
    checks = [slower(), worse()]
    look = Look(num_checks=2, canary_share_basis_points=5000)
    first = collect(observations, [Signal.TTFT, Signal.FAILED])
    random.Random(3).shuffle(observations)
    again = loads(dumps(collect(observations, [Signal.FAILED, Signal.TTFT])))
    assert repr(decide_gate(checks, first, look)) == repr(decide_gate(checks, again, look))


def test_a_reason_says_what_was_found_asked_and_how_much_it_rests_on() -> None:
    statistics = two_arms(Signal.TPOT, "tpot_ms", [[30.0, 30.0]] * 30, [[20.0]] * 31)
    reason = decide(slower(Signal.TPOT), statistics, LOOK).reason
    assert reason == (
        "TPOT: change 50.08 % (50.05 % to 50.11 %), LowerIsBetter within 10 %; 30 sessions "
        "(60 requests, worth 60 independent ones) against 31 sessions (31 requests, worth 31 "
        "independent ones)"
    )


def test_every_halving_of_canarys_arm_halves_the_level() -> None:
    """Its sessions start anew, so what was seen before must not count for what comes."""
    whole = two_arms(Signal.TTFT, "ttft_ms", spread(105, 60), spread(100, 60, seed=2))
    halved = replace(whole, canary=replace(whole.canary, halvings=3))
    fewer = Look(num_checks=8, canary_share_basis_points=None, alpha_basis_points=500)
    eighth = decide(slower(), whole, fewer).interval
    after = decide(slower(), halved, LOOK).interval
    assert eighth is not None and after is not None
    assert after[0] == pytest.approx(eighth[0])
    larger_reference = replace(whole, reference=replace(whole.reference, halvings=3))
    assert decide(slower(), larger_reference, LOOK) == decide(slower(), whole, LOOK)
