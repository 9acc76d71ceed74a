"""Records to figures: definitions by example, and what must hold for any run."""

import itertools
import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_bench import objectives
from slipstream_bench.objectives import Objectives
from slipstream_bench.record import Failure, FailureKind, Record, Usage
from slipstream_bench.summary import Share, Summary, TokenSource, distribution, summarize

NO_OBJECTIVES = Objectives()
DEADLINE = Failure(FailureKind.DEADLINE, "not done after 1 s")


def record(
    *,
    intended_s: float = 10.0,
    started_s: float = 10.0,
    tokens_at_s: tuple[float, ...] = (10.5, 10.6, 10.8),
    ended_s: float = 10.9,
    usage: Usage = Usage(prompt_tokens=100, output_tokens=3),  # noqa: B008  (frozen)
    failure: Failure | None = None,
    turn: int = 0,
) -> Record:
    pairs = itertools.pairwise(tokens_at_s)
    return Record(
        turn=turn,
        intended_s=intended_s,
        started_s=started_s,
        ended_s=ended_s,
        first_token_s=tokens_at_s[0] if tokens_at_s else None,
        last_token_s=tokens_at_s[-1] if tokens_at_s else None,
        num_chunks=len(tokens_at_s),
        gaps_s=tuple(b - a for a, b in pairs),
        usage=usage,
        finish_reason="stop",
        failure=failure,
    )


def of(*records: Record, slo: Objectives = NO_OBJECTIVES) -> Summary:
    return summarize(records, slo)


def test_the_times_of_one_request() -> None:
    one = record(intended_s=9.0)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.ttft_from_arrival_s == pytest.approx(1.5)
    assert one.queue_delay_s == pytest.approx(1.0)
    assert one.e2e_s == pytest.approx(0.9)
    assert one.e2e_from_arrival_s == pytest.approx(1.9)
    assert one.tpot_s == pytest.approx((10.8 - 10.5) / 2)


def test_tpot_divides_by_tokens_not_by_chunks() -> None:
    bundled = record(usage=Usage(output_tokens=31))
    assert bundled.tpot_s == pytest.approx(0.3 / 30)


@pytest.mark.parametrize(
    ("tokens_at_s", "output_tokens"),
    [((), 0), ((10.5,), 1), ((10.5,), 50), ((10.5, 10.6), 1)],
    ids=["no token", "one token", "all in one chunk", "the endpoint counts one"],
)
def test_there_is_no_tpot_without_two_arrivals(
    tokens_at_s: tuple[float, ...], output_tokens: int
) -> None:
    one = record(tokens_at_s=tokens_at_s, usage=Usage(output_tokens=output_tokens))
    assert one.tpot_s is None
    assert of(one).tpot_ms is None


def test_there_is_no_tpot_of_an_answer_that_began_with_a_call() -> None:
    """It came when all of it was there: the division would say that tokens took no time."""
    one = replace(record(), began_with_call=True)
    assert one.tpot_s is None


def test_throughput_counts_the_time_from_the_first_start_to_the_last_end() -> None:
    found = of(
        record(started_s=10.0, ended_s=11.0),
        record(started_s=10.5, ended_s=14.0, tokens_at_s=(11.0, 12.0, 13.0)),
    )
    assert found.duration_s == pytest.approx(4.0)
    assert found.requests_per_s == pytest.approx(2 / 4)
    assert found.output_tokens_per_s == pytest.approx(6 / 4)
    assert found.total_tokens_per_s == pytest.approx(206 / 4)


def test_a_failed_request_counts_for_no_latency_and_no_throughput_but_is_counted() -> None:
    found = of(record(), record(failure=DEADLINE), record(failure=DEADLINE))
    assert (found.requests, found.succeeded, found.failed) == (3, 1, {"deadline": 2})
    assert found.failure_examples == {"deadline": "not done after 1 s"}
    assert found.ttft_ms is not None
    assert found.ttft_ms.n == 1
    assert found.output_tokens_per_s == pytest.approx(3 / found.duration_s)


def test_http_failures_are_told_apart_by_their_status() -> None:
    failures = [Failure(FailureKind.HTTP, "slow down", status=429)] * 2
    failures.append(Failure(FailureKind.HTTP, "oh", status=500))
    found = of(*(record(failure=it) for it in failures))
    assert found.failed == {"http_429": 2, "http_500": 1}


def test_a_cached_share_that_nobody_told_is_absent_and_zero_is_zero() -> None:
    silent = record(usage=Usage(prompt_tokens=100, output_tokens=3))
    cold = record(usage=Usage(prompt_tokens=100, output_tokens=3, cached_tokens=0))
    warm = record(usage=Usage(prompt_tokens=300, output_tokens=3, cached_tokens=200))
    assert of(silent).cached is None
    assert of(cold).cached == Share(n=1, part_tokens=0, whole_tokens=100)
    both = of(silent, cold, warm).cached
    assert both == Share(n=2, part_tokens=200, whole_tokens=400)
    assert both.share == pytest.approx(0.5)


def test_where_nothing_was_predicted_there_is_no_share_of_it() -> None:
    def told(accepted: int, rejected: int) -> Record:
        return record(
            usage=Usage(accepted_prediction_tokens=accepted, rejected_prediction_tokens=rejected)
        )

    assert of(told(0, 0)).accepted_predictions is None
    assert of(told(0, 4)).accepted_predictions == Share(n=1, part_tokens=0, whole_tokens=4)


def test_without_usage_chunks_are_counted_and_it_says_so() -> None:
    counted, uncounted = record(), record(usage=Usage())
    assert of(counted).token_source is TokenSource.USAGE
    assert of(uncounted).token_source is TokenSource.CHUNKS
    assert of(counted, uncounted).token_source is TokenSource.MIXED
    assert of(uncounted).total_tokens_per_s is None
    assert of(uncounted).output_tokens is not None
    assert of(uncounted).output_tokens_per_s == pytest.approx(3 / 0.9)


def test_goodput_wants_every_objective_and_counts_failures_as_missed() -> None:
    slo = Objectives(ttft_ms=600, tpot_ms=100)
    slow_start = record(tokens_at_s=(10.7, 10.75, 10.8))
    slow_tokens = record(tokens_at_s=(10.5, 10.6, 10.8))
    fine = record(tokens_at_s=(10.5, 10.6, 10.65))
    found = of(fine, slow_start, slow_tokens, record(failure=DEADLINE), slo=slo).goodput
    assert found is not None
    assert (found.good, found.of, found.share) == (1, 4, 0.25)
    assert found.met_share == {"ttft_ms": 0.5, "tpot_ms": 0.5}
    assert found.per_s == pytest.approx(1 / 0.9)


def test_objectives_count_from_the_arrival_so_a_late_start_is_no_excuse() -> None:
    late = record(intended_s=9.0)
    assert objectives.met(late, Objectives(ttft_ms=600)) == {"ttft_ms": False}
    assert objectives.met(replace(late, intended_s=10.0), Objectives(ttft_ms=600)) == {
        "ttft_ms": True
    }


def test_an_answer_without_a_token_misses_ttft_and_one_without_tpot_meets_it() -> None:
    empty = record(tokens_at_s=(), usage=Usage(output_tokens=0))
    assert objectives.met(empty, Objectives(ttft_ms=1e9, tpot_ms=1)) == {
        "ttft_ms": False,
        "tpot_ms": True,
    }


def test_turns_stand_apart_only_where_there_are_several() -> None:
    assert of(record(), record()).turns == ()
    warm = Usage(prompt_tokens=300, output_tokens=3, cached_tokens=240)
    turns = of(record(), record(turn=1, usage=warm), record(turn=1, usage=warm)).turns
    assert [(turn.turn, turn.n) for turn in turns] == [(1, 1), (2, 2)]
    assert turns[1].cached is not None
    assert turns[1].cached.share == pytest.approx(0.8)
    assert turns[0].cached is None


def test_nothing_is_summarised_as_nothing() -> None:
    found = of(slo=Objectives(ttft_ms=1))
    assert (found.requests, found.duration_s, found.ttft_ms, found.cached) == (0, 0.0, None, None)
    assert found.goodput is not None
    assert found.goodput.share == 0


def test_percentiles_are_numpys_linear_ones() -> None:
    found = distribution(range(1, 102))
    assert found is not None
    assert (found.n, found.mean, found.p50, found.p90, found.p99) == (101, 51, 51, 91, 100)
    assert (found.minimum, found.maximum) == (1, 101)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft=5", "NAME=MILLISECONDS"),
        ("ttft_ms", "NAME=MILLISECONDS"),
        ("ttft_ms=x", "needs a number"),
        ("ttft_ms=0", "positive"),
        ("tpot_ms=nan", "positive"),
        ("tpot_ms=inf", "positive"),
        ("ttft_ms=1,ttft_ms=2", "twice"),
        ("", "NAME=MILLISECONDS"),
    ],
)
def test_objectives_that_make_no_sense_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        objectives.parse(text)


def test_objectives_are_read() -> None:
    assert objectives.parse("ttft_ms=500, e2e_ms=1e4") == Objectives(ttft_ms=500, e2e_ms=10_000)


durations_s = st.floats(0, 1e4, allow_nan=False)
counts = st.none() | st.integers(0, 10_000)


@st.composite
def records(draw: st.DrawFn) -> Record:
    intended_s = draw(durations_s)
    started_s = intended_s + draw(durations_s)
    gaps = draw(st.lists(durations_s, max_size=5))
    times = [started_s + sum(gaps[: i + 1]) for i in range(len(gaps))]
    failure = draw(st.none() | st.sampled_from([DEADLINE, Failure(FailureKind.UNSENT, "late")]))
    return record(
        intended_s=intended_s,
        started_s=started_s,
        tokens_at_s=tuple(times),
        ended_s=(times[-1] if times else started_s) + draw(durations_s),
        usage=Usage(draw(counts), draw(counts), draw(counts)),
        failure=failure,
        turn=draw(st.integers(0, 3)),
    )


@given(st.lists(records(), max_size=12), st.randoms(use_true_random=False))
def test_a_summary_is_consistent_and_the_order_of_records_is_nothing(
    found: list[Record], rng: Random
) -> None:
    slo = Objectives(ttft_ms=2000, tpot_ms=500, e2e_ms=60_000)
    one = summarize(found, slo)
    shuffled = list(found)
    rng.shuffle(shuffled)
    assert summarize(shuffled, slo) == one
    assert one.succeeded + sum(one.failed.values()) == one.requests == len(found)
    assert one.goodput is not None
    assert one.goodput.good <= one.succeeded
    assert all(one.goodput.share <= share for share in one.goodput.met_share.values())
    for figure in (one.ttft_ms, one.e2e_ms, one.queue_delay_ms, one.inter_token_ms):
        if figure is not None:
            points = (figure.minimum, figure.p50, figure.p90, figure.p99, figure.maximum)
            assert all(a <= b or math.isclose(a, b) for a, b in itertools.pairwise(points))
            assert figure.minimum >= 0
    if one.ttft_ms is not None and one.ttft_from_arrival_ms is not None:
        assert one.ttft_from_arrival_ms.mean >= one.ttft_ms.mean - 1e-6
    assert sum(turn.n for turn in one.turns) in (0, one.succeeded)
