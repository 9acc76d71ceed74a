"""What a finished request says about each signal, as one whole number or as nothing.

Whole numbers add without rounding, in any order, so that statistics merged along different ways are
equal. Knows records only: no arms, no sessions, no margins.
"""

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Final, TypeVar

from slipstream_api.observation import ErrorClass, Observation, ToolCallClass

# Thousandths of a natural logarithm: 0.1 %, far below what any gate resolves.
LOG_STEPS: Final = 1000
# Where the logarithms begin; smaller positive values (of a latency, a microsecond) count as this.
_LEAST: Final = 1e-3
_MOST: Final = 1e9

# Overload, and a client that left: not what the request was answered with.
_NO_ANSWERS: Final = (429, 499)
_FAULTS_OF_ENGINES: Final = {it for it in ErrorClass if it.name.startswith("ENGINE_")} - {
    ErrorClass.ENGINE_REFUSED
}
_Word = TypeVar("_Word", bound=StrEnum)


class FieldError(ValueError):
    """A field holds what cannot be: negative, not a number, an unknown word."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class Kind(StrEnum):
    """How a request's value is kept, and which mathematics compares it."""

    POSITIVE = "positive"  # latencies, lengths: logarithms, compared as a ratio
    BINARY = "binary"  # 0 or 1: counts, compared as a share
    PORTION = "portion"  # 0 to 1: compared as a share


class Signal(StrEnum):
    """The catalogue."""

    TTFT = "TTFT"
    TPOT = "TPOT"
    ACCEPTANCE_LENGTH = "AcceptanceLength"
    OUTPUT_TOKENS = "OutputTokens"
    FAILED = "Failed"
    REJECTED = "Rejected"
    DISCONNECTED = "Disconnected"
    EMPTY = "Empty"
    CUT_AT_LENGTH = "CutAtLength"
    TOOL_CALLED = "ToolCalled"
    TOOL_CALL_INVALID = "ToolCallInvalid"
    REPETITION = "Repetition"
    UNEXPECTED_SCRIPT = "UnexpectedScript"

    @property
    def kind(self) -> Kind:
        return _CATALOGUE[self][0]

    @property
    def steps(self) -> int:
        """Whole numbers a unit: a natural logarithm, or the share 1."""
        return {Kind.POSITIVE: LOG_STEPS, Kind.BINARY: 1, Kind.PORTION: 10_000}[self.kind]

    @property
    def most(self) -> int:
        """The largest value that `measure` returns."""
        return _log_steps(_MOST) if self.kind is Kind.POSITIVE else self.steps


def measure(signal: Signal, observation: Observation) -> int | None:
    """The request's value in `signal.steps`, None where it has none. Raises FieldError."""
    kind, read = _CATALOGUE[signal]
    value = read(observation)
    if value is None:
        return None
    if kind is Kind.POSITIVE:
        # A zero is no measurement: an answer in one event has no time between tokens.
        return _log_steps(value) if value > 0 else None
    return round(value * signal.steps)


def _log_steps(value: float) -> int:
    return max(0, round(LOG_STEPS * math.log(value / _LEAST)))


def _number(observation: Observation, field: str, at_most: float = _MOST) -> float | None:
    value = getattr(observation, field)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A NaN is in no range.
    if not is_number or not 0 <= value <= at_most:
        raise FieldError(field)
    return float(value)


def _member(kind: type[_Word], observation: Observation, field: str) -> _Word | None:
    word = getattr(observation, field)
    try:
        return None if word is None else kind(word)
    except ValueError:
        raise FieldError(field) from None


def _error(observation: Observation) -> ErrorClass | None:
    return _member(ErrorClass, observation, "error_class")


def _status(observation: Observation) -> float | None:
    return _number(observation, "status", at_most=599)


def _is_finished(observation: Observation) -> bool:
    """It came to the end that its engine gave it: no fault, and the client was still there."""
    status = _status(observation)
    if _error(observation) is not None or observation.disconnect:
        return False
    return status < 400 if status is not None else observation.finish_reason is not None


def _failed(observation: Observation) -> float | None:
    error = _error(observation)
    if error is not None:
        return 1.0 if error in _FAULTS_OF_ENGINES else None
    return 0.0 if _is_finished(observation) else None


def _rejected(observation: Observation) -> float | None:
    status = _status(observation)
    if status is None or _error(observation) or observation.disconnect or status in _NO_ANSWERS:
        return None
    return float(400 <= status < 500)


def _disconnected(observation: Observation) -> float | None:
    is_gateways = _error(observation) in (ErrorClass.GATEWAY_SHUTDOWN, ErrorClass.GATEWAY_FAILED)
    return None if is_gateways else float(observation.disconnect)


def _tokens(observation: Observation) -> float | None:
    tokens = _number(observation, "output_tokens")
    return tokens if _is_finished(observation) else None


def _cut_at_length(observation: Observation) -> float | None:
    reason = observation.finish_reason
    return float(reason == "length") if _is_finished(observation) and reason else None


def _tool_call(observation: Observation) -> ToolCallClass | None:
    call = _member(ToolCallClass, observation, "tool_call_class")
    return call if _is_finished(observation) else None


def _tool_call_invalid(observation: Observation) -> float | None:
    call = _tool_call(observation)
    return None if call in (None, ToolCallClass.NONE) else float(call is not ToolCallClass.VALID)


def _acceptance_length(observation: Observation) -> float | None:
    drafts, accepted = _number(observation, "drafts"), _number(observation, "accepted")
    if not drafts or accepted is None:
        return None
    if drafts < 1:
        raise FieldError("drafts")
    return 1 + accepted / drafts


_Read = Callable[[Observation], float | None]
_CATALOGUE: Final[dict[Signal, tuple[Kind, _Read]]] = {
    Signal.TTFT: (Kind.POSITIVE, lambda o: _number(o, "ttft_ms")),
    Signal.TPOT: (Kind.POSITIVE, lambda o: _number(o, "tpot_ms")),
    Signal.ACCEPTANCE_LENGTH: (Kind.POSITIVE, _acceptance_length),
    # One more: an empty answer has a logarithm too.
    Signal.OUTPUT_TOKENS: (Kind.POSITIVE, lambda o: None if (n := _tokens(o)) is None else n + 1),
    Signal.FAILED: (Kind.BINARY, _failed),
    Signal.REJECTED: (Kind.BINARY, _rejected),
    Signal.DISCONNECTED: (Kind.BINARY, _disconnected),
    Signal.EMPTY: (Kind.BINARY, lambda o: None if (n := _tokens(o)) is None else float(n == 0)),
    Signal.CUT_AT_LENGTH: (Kind.BINARY, _cut_at_length),
    Signal.TOOL_CALLED: (
        Kind.BINARY,
        lambda o: None if (c := _tool_call(o)) is None else float(c is not ToolCallClass.NONE),
    ),
    Signal.TOOL_CALL_INVALID: (Kind.BINARY, _tool_call_invalid),
    Signal.REPETITION: (Kind.PORTION, lambda o: _number(o, "repetition", at_most=1)),
    Signal.UNEXPECTED_SCRIPT: (Kind.PORTION, lambda o: _number(o, "script", at_most=1)),
}
