"""Several checks in one gate: whose verdict counts, and what cannot be asked."""

import itertools
from typing import Any

import pytest

from slipstream_api.observation import Observation
from slipstream_judge.checks import Check, Direction, Look, Margin, OnNoData
from slipstream_judge.sessions import collect
from slipstream_judge.signals import Signal
from slipstream_judge.verdicts import Outcome, decide_gate
from tests.judge.support import LOOK, arm, failures, flags, record, slower, two_arms, worse

LOW, HIGH, SAME = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER, Direction.UNCHANGED


@pytest.mark.parametrize(
    ("canary", "reference", "share", "is_reported"),
    [(50, 50, 5000, False), (5, 95, 500, False), (50, 50, 500, True), (0, 60, 5000, True)],
)
def test_arms_that_belie_their_weights_are_reported(
    canary: int, reference: int, share: int, is_reported: bool
) -> None:
    statistics = two_arms(Signal.TTFT, "ttft_ms", [[9.0]] * canary, [[9.0]] * reference)
    look = Look(num_checks=1, canary_share_basis_points=share)
    verdict = decide_gate([slower(min_sessions=2)], statistics, look)
    assert ("sample ratio" in verdict.reason) is is_reported
    if is_reported:
        assert verdict.outcome is Outcome.ERROR
        assert f"{canary} of {canary + reference} sessions" in verdict.reason


def test_a_canary_that_fails_is_rolled_back_even_if_the_arms_belie_their_weights() -> None:
    statistics = failures(flags(60, 60), flags(0, 60))
    look = Look(num_checks=1, canary_share_basis_points=500)
    assert decide_gate([worse()], statistics, look).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("on_no_data", "outcome"),
    [
        (OnNoData.HOLD, Outcome.NO_DATA),
        (OnNoData.ROLLBACK, Outcome.FAIL),
        (OnNoData.PROCEED, Outcome.PASS),
    ],
)
def test_a_check_says_what_no_data_means_for_its_gate(
    on_no_data: OnNoData, outcome: Outcome
) -> None:
    observations = [
        *arm("canary", "ttft_ms", [[9.0]] * 40),
        *arm("stable", "ttft_ms", [[9.0]] * 40),
    ]
    statistics = collect(observations, [Signal.TTFT, Signal.TPOT])
    checks = [slower(), slower(Signal.TPOT, on_no_data=on_no_data)]
    look = Look(num_checks=2, canary_share_basis_points=5000)
    verdict = decide_gate(checks, statistics, look)
    assert verdict.outcome is outcome
    assert [it.outcome for it in verdict.verdicts] == [Outcome.PASS, Outcome.NO_DATA]


def test_a_gate_of_nothing_but_missing_data_never_passes() -> None:
    check = slower(on_no_data=OnNoData.PROCEED)
    verdict = decide_gate([check], collect([], [Signal.TTFT]), LOOK)
    assert verdict.outcome is Outcome.NO_DATA


def test_fail_goes_before_error_before_no_data_before_inconclusive_before_pass() -> None:
    signals = [Signal.TTFT, Signal.TPOT, Signal.FAILED, Signal.REPETITION, Signal.UNEXPECTED_SCRIPT]
    observations: list[Observation] = []
    for track, ttft_ms in (("canary", 90.0), ("stable", 9.0)):
        for n in range(40):
            fields = {"status": 200, "ttft_ms": ttft_ms, "tpot_ms": -1.0, "repetition": 0.0}
            observations.append(record(track, n, **fields))
    checks = {
        Outcome.FAIL: slower(),
        Outcome.ERROR: slower(Signal.TPOT),
        Outcome.NO_DATA: worse(Signal.UNEXPECTED_SCRIPT),
        Outcome.INCONCLUSIVE: worse(),
        Outcome.PASS: worse(Signal.REPETITION, 5000),
    }
    statistics = collect(observations, signals)
    order = list(checks)
    for first, *rest in itertools.combinations(order, 3):
        gate = [checks[outcome] for outcome in (*rest, first)]
        look = Look(num_checks=3, canary_share_basis_points=5000)
        verdict = decide_gate(gate, statistics, look)
        assert verdict.outcome is first
        assert verdict.reason.startswith(str(checks[first].signal))


def test_a_gate_is_looked_at_with_the_level_of_all_its_checks() -> None:
    with pytest.raises(ValueError, match="2 checks at a look for 1"):
        decide_gate([slower(), worse()], collect([], [Signal.TTFT, Signal.FAILED]), LOOK)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"signal": Signal.FAILED, "margin": Margin.RELATIVE}, "margin"),
        ({"signal": Signal.TTFT, "margin": Margin.POINTS}, "margin"),
        ({"signal": Signal.TTFT, "margin": Margin.LIMIT}, "margin"),
        ({"margin": Margin.LIMIT, "signal": Signal.FAILED, "direction": SAME}, "direction"),
        ({"margin": Margin.LIMIT, "signal": Signal.FAILED, "margin_basis_points": 0}, "margin"),
        ({"direction": SAME, "margin_basis_points": 0}, "marginBasisPoints"),
        ({"direction": SAME, "margin_basis_points": -5}, "marginBasisPoints"),
        ({"margin_basis_points": 10_000}, "marginBasisPoints"),
        ({"margin_basis_points": -10_000}, "marginBasisPoints"),
        ({"min_sessions": 1}, "minSessions"),
    ],
)
def test_a_check_that_cannot_be_tested_is_refused(fields: dict[str, Any], word: str) -> None:
    known: dict[str, Any] = {
        "signal": Signal.TTFT,
        "direction": LOW,
        "margin": Margin.RELATIVE,
        "margin_basis_points": 100,
    }
    with pytest.raises(ValueError, match=word):
        Check(**{**known, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"num_checks": 0},
        {"canary_share_basis_points": 0},
        {"canary_share_basis_points": 10_000},
        {"alpha_basis_points": 0},
        {"alpha_basis_points": 5000},
    ],
)
def test_terms_without_meaning_are_refused(fields: dict[str, Any]) -> None:
    known: dict[str, Any] = {"num_checks": 1, "canary_share_basis_points": 500}
    with pytest.raises(ValueError, match=r"\w"):
        Look(**{**known, **fields})
