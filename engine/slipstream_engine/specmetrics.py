"""The counters of drafts: vLLM's names with a label more, and SGLang's two gauges."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from slipstream_engine.messages import Step

# Of the gauges: what a draft weighs that was made so many drafts ago is halved.
_HALF_LIFE_DRAFTS = 100


class SpeculationMetrics:
    """By drafter; the length of what a step brings is 1 + accepted / drafts (rate: per drafted)."""

    def __init__(
        self, registry: CollectorRegistry, model_name: str, drafters: Iterable[str], most: int
    ) -> None:
        """`most`: tokens of the longest draft."""
        labels = ("model_name", "drafter")

        def counter(name: str, help_: str, *more: str) -> Counter:
            return Counter(name, help_, (*labels, *more), registry=registry)

        drafts = counter("vllm:spec_decode_num_drafts", "Drafts that were verified.")
        drafted = counter("vllm:spec_decode_num_draft_tokens", "Tokens of these drafts.")
        accepted = counter("vllm:spec_decode_num_accepted_tokens", "Of these, became output.")
        at = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Became output, by their place in the draft.",
            "position",
        )
        self._by_drafter = {
            name: (
                drafts.labels(model_name, name),
                drafted.labels(model_name, name),
                accepted.labels(model_name, name),
                [at.labels(model_name, name, place) for place in range(most)],
            )
            for name in drafters
        }
        one = ("model_name",)
        self._draft_s = Counter(
            "slipstream_draft_seconds", "Time that drafting took.", one, registry=registry
        ).labels(model_name)
        self._verify_s = Counter(
            "slipstream_verify_seconds", "Of steps that verified drafts.", one, registry=registry
        ).labels(model_name)
        failures = counter(
            "slipstream_draft_failures", "Requests that went on without a drafter that failed."
        )
        self._failures = {name: failures.labels(model_name, name) for name in self._by_drafter}
        self._num_failures = dict.fromkeys(self._by_drafter, 0)
        self._length = Gauge(
            "sglang:spec_accept_length", "Tokens of a step, lately.", one, registry=registry
        ).labels(model_name)
        self._rate = Gauge(
            "sglang:spec_accept_rate", "Accepted of drafted tokens, lately.", one, registry=registry
        ).labels(model_name)
        self._lately = (0.0, 0.0, 0.0)

    def observe(self, step: Step) -> None:
        """What became of a step's drafts. To find none takes its time too."""
        self._draft_s.inc(step.draft_s)
        for name, count in step.num_draft_failures.items():
            self._failures[name].inc(count - self._num_failures[name])
            self._num_failures[name] = count
        if not step.outcomes:
            return
        self._verify_s.inc(step.run_s)
        drafts, drafted, accepted = self._lately
        for outcome in step.outcomes:
            counters = self._by_drafter[outcome.source]
            counters[0].inc()
            counters[1].inc(outcome.num_drafted)
            counters[2].inc(outcome.num_accepted)
            for place in counters[3][: outcome.num_accepted]:
                place.inc()
            keep = 0.5 ** (1 / _HALF_LIFE_DRAFTS)
            drafts, drafted, accepted = (
                keep * drafts + 1,
                keep * drafted + outcome.num_drafted,
                keep * accepted + outcome.num_accepted,
            )
        self._lately = (drafts, drafted, accepted)
        self._length.set(1 + accepted / drafts)
        self._rate.set(accepted / drafted)
