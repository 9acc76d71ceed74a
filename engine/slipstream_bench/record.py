"""What was measured of one request. Times are seconds of one monotonic clock; knows no network."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    UNREACHABLE = "unreachable"  # no connection
    HTTP = "http"  # any status but 200
    STREAM_ERROR = "stream_error"  # an error event after the stream had begun
    DISCONNECTED = "disconnected"  # the connection broke
    TRUNCATED = "truncated"  # a stream that ended in order, without a finish reason or [DONE]
    MALFORMED = "malformed"  # bytes that are no stream of chat chunks
    DEADLINE = "deadline"  # not done in time
    UNSENT = "unsent"  # open loop: it arrived, but no place was free before the run ended


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str
    status: int | None = None

    @property
    def label(self) -> str:
        """The class under which it is counted: `http_429`, `deadline`, …"""
        return f"{self.kind}_{self.status}" if self.kind is FailureKind.HTTP else self.kind.value


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the endpoint gave them; None is "it did not say", never zero."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One request. `intended_s`: when it should have been sent; `started_s`: when it was.

    `gaps_s` holds the time between neighbouring chunks that brought tokens: one fewer than
    `num_chunks`. `first_token_s` and `last_token_s` are those chunks' ends. `began_with_call`: the
    first of them was part of a tool call, which endpoints may send when all of it is there.
    """

    turn: int
    intended_s: float
    started_s: float
    ended_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_chunks: int = 0
    gaps_s: Sequence[float] = ()
    usage: Usage = Usage()
    finish_reason: str | None = None
    failure: Failure | None = None
    began_with_call: bool = False

    @property
    def is_success(self) -> bool:
        return self.failure is None

    @property
    def was_sent(self) -> bool:
        return self.failure is None or self.failure.kind is not FailureKind.UNSENT

    @property
    def queue_delay_s(self) -> float:
        return self.started_s - self.intended_s

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.started_s

    @property
    def ttft_from_arrival_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.intended_s

    @property
    def e2e_s(self) -> float:
        return self.ended_s - self.started_s

    @property
    def e2e_from_arrival_s(self) -> float:
        return self.ended_s - self.intended_s

    @property
    def num_output_tokens(self) -> int:
        """By usage; without it, one token a chunk."""
        known = self.usage.output_tokens
        return self.num_chunks if known is None else known

    @property
    def tpot_s(self) -> float | None:
        """(last − first) / (tokens − 1). None where there is nothing between two arrivals."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        if self.num_chunks < 2 or self.num_output_tokens < 2 or self.began_with_call:
            return None
        return (self.last_token_s - self.first_token_s) / (self.num_output_tokens - 1)
