"""Records of a run become figures. Pure; every figure says how many values stand behind it."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slipstream_bench import objectives as slo
from slipstream_bench.objectives import Objectives
from slipstream_bench.record import Record


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles interpolate linearly between neighbours (numpy's default)."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    minimum: float
    maximum: float


class TokenSource(StrEnum):
    USAGE = "usage"  # the endpoint counted every answer
    CHUNKS = "chunks"  # it counted none: one token a chunk is assumed
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole in tokens, over the `n` requests whose endpoint told it."""

    n: int
    part_tokens: int
    whole_tokens: int

    @property
    def share(self) -> float:
        return self.part_tokens / self.whole_tokens if self.whole_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every objective, of all that arrived; failed ones met none."""

    objectives: dict[str, float]
    good: int
    of: int
    per_s: float
    met_share: dict[str, float]

    @property
    def share(self) -> float:
        return self.good / self.of if self.of else 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """All requests that were the same turn of their sessions, counted from 1."""

    turn: int
    n: int
    ttft_ms: Distribution | None
    prompt_tokens: Distribution | None
    cached: Share | None


@dataclass(frozen=True, slots=True)
class Summary:
    """`duration_s`: first request sent to last one ended. Rates and latencies are of successes."""

    requests: int
    succeeded: int
    failed: dict[str, int]
    failure_examples: dict[str, str]
    finish_reasons: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float | None
    token_source: TokenSource
    ttft_ms: Distribution | None
    tpot_ms: Distribution | None
    inter_token_ms: Distribution | None
    e2e_ms: Distribution | None
    queue_delay_ms: Distribution | None
    ttft_from_arrival_ms: Distribution | None
    e2e_from_arrival_ms: Distribution | None
    prompt_tokens: Distribution | None
    output_tokens: Distribution | None
    tokens_per_chunk: float | None
    cached: Share | None
    accepted_predictions: Share | None
    goodput: Goodput | None
    turns: tuple[Turn, ...]


def distribution(values: Iterable[float]) -> Distribution | None:
    """None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    if len(ordered) == 1:
        only = ordered[0]
        return Distribution(1, only, only, only, only, only, only)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    return Distribution(
        n=len(ordered),
        mean=statistics.fmean(ordered),
        p50=cuts[49],
        p90=cuts[89],
        p99=cuts[98],
        minimum=ordered[0],
        maximum=ordered[-1],
    )


def summarize(records: Sequence[Record], objectives: Objectives) -> Summary:
    good = [record for record in records if record.is_success]
    sent = [record for record in records if record.was_sent]
    failures = [record.failure for record in records if record.failure is not None]
    duration_s = _duration_s(sent)
    output_tokens = sum(record.num_output_tokens for record in good)
    prompts = [it.usage.prompt_tokens for it in good if it.usage.prompt_tokens is not None]
    num_chunks = sum(record.num_chunks for record in good)
    return Summary(
        requests=len(records),
        succeeded=len(good),
        failed=dict(Counter(failure.label for failure in failures)),
        failure_examples={failure.label: failure.message for failure in reversed(failures)},
        finish_reasons=dict(Counter(it.finish_reason or "none" for it in good)),
        duration_s=duration_s,
        requests_per_s=_per_s(len(good), duration_s),
        output_tokens_per_s=_per_s(output_tokens, duration_s),
        total_tokens_per_s=(
            _per_s(output_tokens + sum(prompts), duration_s) if len(prompts) == len(good) else None
        ),
        token_source=_token_source(good),
        ttft_ms=_ms(record.ttft_s for record in good),
        tpot_ms=_ms(record.tpot_s for record in good),
        inter_token_ms=_ms(gap_s for record in good for gap_s in record.gaps_s),
        e2e_ms=_ms(record.e2e_s for record in good),
        queue_delay_ms=_ms(record.queue_delay_s for record in records),
        ttft_from_arrival_ms=_ms(record.ttft_from_arrival_s for record in good),
        e2e_from_arrival_ms=_ms(record.e2e_from_arrival_s for record in good),
        prompt_tokens=distribution(prompts),
        output_tokens=distribution(record.num_output_tokens for record in good),
        tokens_per_chunk=output_tokens / num_chunks if num_chunks else None,
        cached=_cached(good),
        accepted_predictions=_accepted(good),
        goodput=_goodput(records, objectives, duration_s),
        turns=_turns(good),
    )


def _duration_s(sent: Sequence[Record]) -> float:
    if not sent:
        return 0.0
    return max(it.ended_s for it in sent) - min(it.started_s for it in sent)


def _per_s(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _ms(values_s: Iterable[float | None]) -> Distribution | None:
    return distribution(value * 1000 for value in values_s if value is not None)


def _token_source(good: Sequence[Record]) -> TokenSource:
    counted = sum(record.usage.output_tokens is not None for record in good)
    if counted == len(good):
        return TokenSource.USAGE
    return TokenSource.MIXED if counted else TokenSource.CHUNKS


def _cached(good: Sequence[Record]) -> Share | None:
    told = [
        (it.usage.cached_tokens, it.usage.prompt_tokens)
        for it in good
        if it.usage.cached_tokens is not None and it.usage.prompt_tokens is not None
    ]
    if not told:
        return None
    return Share(len(told), sum(part for part, _ in told), sum(whole for _, whole in told))


def _accepted(good: Sequence[Record]) -> Share | None:
    """Accepted of all predicted tokens (OpenAI's `prediction`)."""
    told = [
        (it.usage.accepted_prediction_tokens, it.usage.rejected_prediction_tokens)
        for it in good
        if it.usage.accepted_prediction_tokens is not None
        and it.usage.rejected_prediction_tokens is not None
    ]
    accepted = sum(part for part, _ in told)
    predicted = accepted + sum(rest for _, rest in told)
    # Servers that take no predictions tell two zeros, which is no share of anything.
    return Share(len(told), accepted, predicted) if predicted else None


def _goodput(
    records: Sequence[Record], objectives: Objectives, duration_s: float
) -> Goodput | None:
    stated = objectives.stated()
    if not stated:
        return None
    results = [slo.met(record, objectives) for record in records]
    good = sum(all(result.values()) for result in results)
    return Goodput(
        objectives=stated,
        good=good,
        of=len(results),
        per_s=_per_s(good, duration_s),
        met_share={
            name: sum(result[name] for result in results) / len(results) if results else 0.0
            for name in stated
        },
    )


def _turns(good: Sequence[Record]) -> tuple[Turn, ...]:
    """Empty where every session had one turn."""
    numbers = sorted({record.turn for record in good})
    if numbers in ([], [0]):
        return ()
    groups = ((number, [it for it in good if it.turn == number]) for number in numbers)
    return tuple(
        Turn(
            turn=number + 1,
            n=len(group),
            ttft_ms=_ms(it.ttft_s for it in group),
            prompt_tokens=distribution(
                it.usage.prompt_tokens for it in group if it.usage.prompt_tokens is not None
            ),
            cached=_cached(group),
        )
        for number, group in groups
    )
