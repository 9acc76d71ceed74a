"""The engine's metrics, all of them, under vLLM's names so that existing dashboards work."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from slipstream_engine.request import FinishReason
from slipstream_engine.scheduler import Load

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class EngineMetrics:
    """Every series exists, as zero, from the start."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._name = model_name
        self.running = self._gauge("vllm:num_requests_running", "Requests in a batch.")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Requests in the queue.")
        self.kv_usage = self._gauge("vllm:kv_cache_usage_perc", "Used KV pages; 1 is all of them.")
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.ttft_s = self._histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", _LATENCY_S
        )
        self.inter_token_s = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of an answer.", _TOKEN_S
        )
        self.tpot_s = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time between the tokens of one answer.",
            _TOKEN_S,
        )
        self.e2e_s = self._histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the last token.", _LATENCY_S
        )
        self._success = Counter(
            "vllm:request_success",
            "Finished requests.",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self.success = {
            reason: self._success.labels(model_name, reason.value) for reason in FinishReason
        }

    def observe_load(self, load: Load) -> None:
        self.running.set(load.num_running)
        self.waiting.set(load.num_waiting)
        self.kv_usage.set(load.num_pages_used / load.num_pages)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _gauge(self, name: str, help_: str) -> Gauge:
        return Gauge(name, help_, ("model_name",), registry=self._registry).labels(self._name)

    def _counter(self, name: str, help_: str) -> Counter:
        return Counter(name, help_, ("model_name",), registry=self._registry).labels(self._name)

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            name, help_, ("model_name",), registry=self._registry, buckets=buckets
        ).labels(self._name)
