"""Statistics add up in any way, fit their bound, and come back from JSON as they were."""

import itertools
import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_api.observation import ErrorClass, Observation
from slipstream_judge import sessions
from slipstream_judge.sessions import (
    LIMIT_BYTES,
    Arm,
    Statistics,
    Tally,
    arm_counts,
    collect,
    dumps,
    independent_requests,
    loads,
    merge,
)
from slipstream_judge.signals import Signal
from tests.judge.support import record, session

SIGNALS = (Signal.TTFT, Signal.FAILED, Signal.REPETITION)

records = st.lists(
    st.builds(
        record,
        track=st.sampled_from(["canary", "stable", "baseline"]),
        name=st.integers(0, 12),
        status=st.sampled_from([None, 200, 500]),
        error_class=st.sampled_from([None, ErrorClass.ENGINE_FAILED, "nonsense"]),
        ttft_ms=st.sampled_from([None, 0.0, 3.5, 1e6, math.nan, -1.0]),
        repetition=st.sampled_from([None, 0.0, 0.3333333, 1.0]),
    ),
    max_size=30,
)


@given(records, records, records, st.sampled_from([40, 120, 250, 10_000]))
def test_parts_merge_to_the_whole_in_any_order_with_room_or_without(
    one: list[Observation], two: list[Observation], three: list[Observation], room_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_ARM_BYTES", room_bytes)
        whole = collect([*one, *two, *three], SIGNALS)
        a, b, c = (collect(part, SIGNALS) for part in (one, two, three))
        assert merge(merge(a, b), c) == whole
        assert merge(a, merge(b, c)) == whole
        assert merge(merge(c, a), b) == whole
        assert merge(a, b) == merge(b, a)
        assert merge(whole, collect([], SIGNALS)) == whole
        for arm in (whole.canary, whole.reference):
            assert all(int(key, 16) < 2 ** (96 - arm.halvings) for key, _ in arm.sessions)
        assert loads(dumps(whole)) == whole


def everything(track: str, name: int) -> Observation:
    """A record with a value of every signal, of as many digits as there can be."""
    return record(
        track,
        name,
        status=200,
        finish_reason="length",
        ttft_ms=9e8,
        tpot_ms=9e8,
        output_tokens=10**9,
        drafts=1,
        accepted=10**9,
        tool_call_class="valid",
        repetition=0.98765,
        script=0.98765,
    )


def test_twenty_thousand_sessions_of_every_signal_fit_the_bound_and_use_it() -> None:
    names = range(10_000)
    faulty = [record("canary", -1, status=-1, ttft_ms=-1.0, drafts=-1, script=2.0)]
    whole = collect(
        [everything(track, name) for track in ("canary", "stable") for name in names]
        + [*faulty, record("stable", session=None)],
        Signal,
    )
    text = dumps(whole)
    assert LIMIT_BYTES / 2 < len(text.encode()) <= LIMIT_BYTES
    assert loads(text) == whole
    assert text.isascii()
    assert len(whole.faults) > 5
    kept = [key for key, _ in whole.canary.sessions]
    assert kept == sorted(session("canary", name) for name in (-1, *names))[: len(kept)]
    assert whole.canary.halvings == 4


def test_four_latencies_and_two_shares_of_nine_hundred_sessions_an_arm_have_room() -> None:
    requests = 100
    latency, share = (requests, 12_345 * requests, 12_345**2 * requests), (requests, requests // 2)
    rows = {session(name): latency * 4 + share * 2 for name in range(3000)}
    nine_hundred = dict(list(rows.items())[:900])
    assert sessions._bounded(nine_hundred).halvings == 0
    halved = sessions._bounded(rows)
    assert halved.halvings == 2
    assert len(halved.sessions) == pytest.approx(750, rel=0.1)


def test_both_arms_are_counted_over_the_same_part_of_the_hashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = [record("canary", name, ttft_ms=1.0) for name in range(100)]
    many = [record("stable", name, ttft_ms=1.0) for name in range(1900)]
    assert arm_counts(collect([*few, *many], [Signal.TTFT])) == (100, 1900)
    monkeypatch.setattr(sessions, "_ARM_BYTES", 20_000)
    halved = collect([*few, *many], [Signal.TTFT])
    assert halved.canary.halvings == 0 and halved.reference.halvings == 3
    canary, reference = arm_counts(halved)
    assert reference == len(halved.reference.sessions)
    assert canary == sum(session("canary", name)[0] in "01" for name in range(100))


def test_other_tracks_do_not_count_and_a_baseline_may_be_the_reference() -> None:
    observations = [record(track, ttft_ms=5.0) for track in ("canary", "stable", "baseline")]
    observations.append(replace(observations[0], track=None))
    against = {
        reference: collect(observations, [Signal.TTFT], reference=reference).reference.sessions
        for reference in ("stable", "baseline")
    }
    assert [[key for key, _ in rows] for rows in against.values()] == [
        [session("stable", 0)],
        [session("baseline", 0)],
    ]
    with pytest.raises(ValueError, match="both arms"):
        collect([], [Signal.TTFT], canary="stable")


@pytest.mark.parametrize("name", [None, "", "ABCDEF0123456789", "0123abc", "0" * 65, "\u0661" * 24])
def test_a_request_of_no_session_is_a_fault_not_a_session(name: str | None) -> None:
    statistics = collect([record(session=name, ttft_ms=1.0)], [Signal.TTFT])
    assert statistics.canary.sessions == ()
    assert statistics.faults == (("session", 1),)


def test_a_session_without_a_value_is_seen_but_has_no_zero() -> None:
    statistics = collect([record(status=200), record(name=1, ttft_ms=2.0)], [Signal.TTFT])
    assert len(statistics.canary.sessions) == 2
    assert [t.n for t in statistics.tallies(statistics.canary, Signal.TTFT)] == [1]


def test_statistics_of_different_signals_do_not_merge() -> None:
    with pytest.raises(ValueError, match="signals differ"):
        merge(collect([], [Signal.TTFT]), collect([], [Signal.TPOT]))


def good() -> dict[str, Any]:
    observations = [record(track, ttft_ms=9.0, status=200) for track in ("canary", "stable")]
    document: dict[str, Any] = json.loads(
        dumps(collect(observations, [Signal.TTFT, Signal.FAILED]))
    )
    return document


def changed(path: str, value: Any) -> dict[str, Any]:
    document = good()
    at: Any = document
    *folders, last = path.split("/")
    for folder in folders:
        at = at[next(iter(at)) if folder == "*" else folder]
    at[next(iter(at)) if last == "*" else last] = value
    return document


# Signals stand in order: Failed has n and total, TTFT n, total and squares.
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("version", None),
        ("more", 1),
        ("signals", ["TTFT", "Failed"]),
        ("signals", ["Failed", "Failed"]),
        ("signals", ["Failed", "Beauty"]),
        ("faults", {"TTFT.ttft_ms": 0}),
        ("faults", {"TTFT ttft_ms": 1}),
        ("canary/halvings", -1),
        ("canary/halvings", None),
        ("canary/halvings", 30),
        ("canary/sessions/NOHASH", [1, 0, 1, 10, 100]),
        ("canary/sessions/0123456789abcdef\n", [1, 0, 1, 10, 100]),
        ("canary/sessions/*", [1, 0]),
        ("canary/sessions/*", [1, 0, 1, 10, 100, 0]),
        ("canary/sessions/*", [1, 0, 1, 10.5, 100]),
        ("canary/sessions/*", [1, 0, 1, -10, 100]),
        ("canary/sessions/*", [True, 0, 1, 10, 100]),
        ("canary/sessions/*", [1, 2, 1, 10, 100]),
        ("canary/sessions/*", [1, 0, 2, 10, 49]),
        ("canary/sessions/*", [1, 0, 1, 10, 10**9]),
        ("canary/sessions/*", [1, 0, 0, 0, 5]),
    ],
)
def test_a_document_that_no_statistics_have_is_refused(path: str, value: Any) -> None:
    assert dumps(loads(json.dumps(good()))) == json.dumps(good(), separators=(",", ":"))
    with pytest.raises(ValueError, match=r"\w"):
        loads(json.dumps(changed(path, value)))


def test_a_document_larger_than_its_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dumps(collect([record(name=n, ttft_ms=1.0) for n in range(50)], [Signal.TTFT]))
    monkeypatch.setattr(sessions, "_ARM_BYTES", 1000)
    with pytest.raises(ValueError, match="1000 bytes"):
        loads(text)


def tallies(groups: list[list[int]]) -> list[Tally]:
    return [Tally(len(g), sum(g), sum(v * v for v in g)) for g in groups]


def test_requests_that_repeat_their_session_are_worth_one_each() -> None:
    assert independent_requests(tallies([[v] * 20 for v in range(50)])) == pytest.approx(50)


def test_requests_that_owe_their_session_nothing_are_worth_themselves() -> None:
    rng = random.Random(5)
    groups = [[round(rng.gauss(1000, 100)) for _ in range(20)] for _ in range(200)]
    assert independent_requests(tallies(groups)) > 0.9 * 4000


def test_the_design_effect_follows_from_size_and_correlation() -> None:
    rng = random.Random(6)
    groups = []
    for _ in range(2000):
        base = rng.gauss(10_000, 500)  # a quarter of the variance is the session's: 0.25
        groups.append([round(rng.gauss(base, 866)) for _ in range(10)])
    assert 20_000 / independent_requests(tallies(groups)) == pytest.approx(1 + 9 * 0.25, rel=0.1)


@pytest.mark.parametrize("groups", [[], [[3]], [[3, 4]], [[3], [4]], [[7, 7], [7, 7]]])
def test_few_or_equal_requests_are_worth_themselves(groups: list[list[int]]) -> None:
    assert independent_requests(tallies(groups)) == len(list(itertools.chain(*groups)))


def test_nothing_in_it_can_be_changed() -> None:
    statistics = Statistics((Signal.TTFT,))
    assert hash(statistics) == hash(Statistics((Signal.TTFT,), Arm(), Arm(), ()))
