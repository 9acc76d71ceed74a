"""The engine's metrics, all of them, under vLLM's names so that existing dashboards work."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from slipstream_engine.batch import Cause, Load
from slipstream_engine.request import FinishReason
from slipstream_engine.specmetrics import SpeculationMetrics

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class EngineMetrics:
    """Every series exists, as zero, from the start."""

    def __init__(
        self, model_name: str, drafters: Sequence[str] = (), max_draft_tokens: int = 0
    ) -> None:
        self._registry = CollectorRegistry()
        self._name = model_name
        self._running = self._gauge("vllm:num_requests_running", "Requests in a batch.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests in the queue.")
        self._kv_usage = self._gauge("vllm:kv_cache_usage_perc", "Used KV pages; 1: all of them.")
        self._preemptions = self._counter("vllm:num_preemptions", "Sequences computed again.")
        self._prefix_queries = self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked for in the prefix cache."
        )
        self._prefix_hits = self._counter(
            "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."
        )
        self._load = Load(0, 0, 0, 0, 1)
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.failures = {
            Cause.GUIDE: self._counter(
                "slipstream_guide_failures", "Answers ended because their guide failed."
            ),
            Cause.DRAW: self._counter(
                "slipstream_draw_failures", "Answers ended because no token could be drawn."
            ),
        }
        self.ttft_s = self._latency(
            "vllm:time_to_first_token_seconds", "From arrival to the first token."
        )
        self.inter_token_s = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of an answer.", _TOKEN_S
        )
        self.tpot_s = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time between the tokens of one answer.",
            _TOKEN_S,
        )
        self.e2e_s = self._latency(
            "vllm:e2e_request_latency_seconds", "From arrival to the last token."
        )
        self.queue_s = self._latency(
            "vllm:request_queue_time_seconds", "From arrival to the first step."
        )
        self.prefill_s = self._latency(
            "vllm:request_prefill_time_seconds", "From the first step to the first token."
        )
        self.decode_s = self._latency(
            "vllm:request_decode_time_seconds", "From the first token to the last."
        )
        self._success = Counter(
            "vllm:request_success",
            "Finished answers.",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self.success = {
            reason: self._success.labels(model_name, reason.value) for reason in FinishReason
        }

        self.speculation = SpeculationMetrics(
            self._registry, model_name, drafters, max_draft_tokens
        )

    def observe_load(self, load: Load) -> None:
        """Gauges as they are, counters by what was added since the last time."""
        before, self._load = self._load, load
        self._running.set(load.num_running)
        self._waiting.set(load.num_waiting)
        self._kv_usage.set(load.num_pages_used / load.num_pages)
        self._preemptions.inc(load.num_preemptions - before.num_preemptions)
        self._prefix_queries.inc(load.num_prefix_queries - before.num_prefix_queries)
        self._prefix_hits.inc(load.num_prefix_hits - before.num_prefix_hits)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _gauge(self, name: str, help_: str) -> Gauge:
        return Gauge(name, help_, ("model_name",), registry=self._registry).labels(self._name)

    def _counter(self, name: str, help_: str) -> Counter:
        return Counter(name, help_, ("model_name",), registry=self._registry).labels(self._name)

    def _latency(self, name: str, help_: str) -> Histogram:
        return self._histogram(name, help_, _LATENCY_S)

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            name, help_, ("model_name",), registry=self._registry, buckets=buckets
        ).labels(self._name)
