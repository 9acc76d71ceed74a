"""What a record says of each signal: a value, nothing, or a fault in a named field."""

import math
from typing import Any

import pytest

from slipstream_api.observation import ErrorClass, Observation, ToolCallClass
from slipstream_judge.signals import LOG_STEPS, FieldError, Kind, Signal, measure
from tests.judge.support import record

FAILED = {"error_class": ErrorClass.ENGINE_BROKE, "status": 502}
LEFT = {"disconnect": True, "error_class": ErrorClass.CLIENT_DISCONNECT, "status": 499}
REFUSED = {"error_class": ErrorClass.ENGINE_REFUSED, "status": 503}
OURS = {"error_class": ErrorClass.GATEWAY_SHUTDOWN, "status": 503}
ANSWERED = {"status": 200}


@pytest.mark.parametrize(
    ("signal", "fields", "value"),
    [
        (Signal.FAILED, ANSWERED, 0),
        (Signal.FAILED, {"finish_reason": "stop"}, 0),
        (Signal.FAILED, FAILED, 1),
        (Signal.FAILED, LEFT, None),
        (Signal.FAILED, REFUSED, None),
        (Signal.FAILED, OURS, None),
        (Signal.FAILED, {"status": 400}, None),
        (Signal.FAILED, {}, None),
        (Signal.REJECTED, ANSWERED, 0),
        (Signal.REJECTED, {"status": 422}, 1),
        (Signal.REJECTED, {"status": 429}, None),
        (Signal.REJECTED, FAILED, None),
        (Signal.REJECTED, LEFT, None),
        (Signal.REJECTED, {}, None),
        (Signal.DISCONNECTED, LEFT, 1),
        (Signal.DISCONNECTED, ANSWERED, 0),
        (Signal.DISCONNECTED, OURS, None),
        (Signal.EMPTY, {**ANSWERED, "output_tokens": 0}, 1),
        (Signal.EMPTY, {**ANSWERED, "output_tokens": 1}, 0),
        (Signal.EMPTY, ANSWERED, None),
        (Signal.EMPTY, {**LEFT, "output_tokens": 0}, None),
        (Signal.CUT_AT_LENGTH, {"finish_reason": "length"}, 1),
        (Signal.CUT_AT_LENGTH, {"finish_reason": "stop"}, 0),
        (Signal.CUT_AT_LENGTH, ANSWERED, None),
        (Signal.CUT_AT_LENGTH, {**LEFT, "finish_reason": "stop"}, None),
        (Signal.TOOL_CALLED, {**ANSWERED, "tool_call_class": ToolCallClass.NONE}, 0),
        (Signal.TOOL_CALLED, {**ANSWERED, "tool_call_class": ToolCallClass.VALID}, 1),
        (Signal.TOOL_CALLED, ANSWERED, None),
        (Signal.TOOL_CALL_INVALID, {**ANSWERED, "tool_call_class": ToolCallClass.NONE}, None),
        (Signal.TOOL_CALL_INVALID, {**ANSWERED, "tool_call_class": ToolCallClass.VALID}, 0),
        (Signal.TOOL_CALL_INVALID, {**ANSWERED, "tool_call_class": ToolCallClass.INVALID_JSON}, 1),
        (Signal.TOOL_CALL_INVALID, {**FAILED, "tool_call_class": ToolCallClass.VALID}, None),
        (Signal.REPETITION, {"repetition": 0.25}, 2500),
        (Signal.REPETITION, {}, None),
        (Signal.UNEXPECTED_SCRIPT, {"script": 0}, 0),
        (Signal.TTFT, {}, None),
        (Signal.TTFT, {"ttft_ms": 0.0}, None),
        (Signal.TPOT, {"tpot_ms": 1e-9}, 0),
        (Signal.ACCEPTANCE_LENGTH, {"drafts": 0, "accepted": 0}, None),
        (Signal.ACCEPTANCE_LENGTH, {"drafts": 4}, None),
    ],
)
def test_a_request_counts_as_what_is_known_of_it(
    signal: Signal, fields: dict[str, Any], value: int | None
) -> None:
    assert measure(signal, record(**fields)) == value


@pytest.mark.parametrize("ttft_ms", [0.5, 40.0, 61_000.0])
def test_a_latency_half_as_long_again_is_the_same_step_everywhere(ttft_ms: float) -> None:
    short = measure(Signal.TTFT, record(ttft_ms=ttft_ms))
    long = measure(Signal.TTFT, record(ttft_ms=1.5 * ttft_ms))
    assert short is not None and long is not None
    assert abs(long - short - LOG_STEPS * math.log(1.5)) <= 1


def test_acceptance_length_is_one_more_than_what_was_accepted_a_draft() -> None:
    three = measure(Signal.ACCEPTANCE_LENGTH, record(drafts=10, accepted=20))
    two = measure(Signal.ACCEPTANCE_LENGTH, record(drafts=10, accepted=10))
    assert three is not None and two is not None
    assert abs(three - two - LOG_STEPS * math.log(3 / 2)) <= 1


@pytest.mark.parametrize(
    ("signal", "field", "value"),
    [
        (Signal.TTFT, "ttft_ms", math.nan),
        (Signal.TTFT, "ttft_ms", -0.001),
        (Signal.TPOT, "tpot_ms", math.inf),
        (Signal.TPOT, "tpot_ms", "12"),
        (Signal.TPOT, "tpot_ms", True),
        (Signal.TTFT, "ttft_ms", 10**400),
        (Signal.OUTPUT_TOKENS, "output_tokens", -1),
        (Signal.EMPTY, "status", math.nan),
        (Signal.FAILED, "error_class", "engine_fell_asleep"),
        (Signal.REJECTED, "status", 700),
        (Signal.TOOL_CALLED, "tool_call_class", "perhaps"),
        (Signal.ACCEPTANCE_LENGTH, "accepted", -1),
        (Signal.ACCEPTANCE_LENGTH, "drafts", 0.5),
        (Signal.REPETITION, "repetition", 1.01),
        (Signal.UNEXPECTED_SCRIPT, "script", -0.1),
    ],
)
def test_what_cannot_be_is_a_fault_of_its_field(signal: Signal, field: str, value: Any) -> None:
    fields: dict[str, Any] = {"drafts": 1, "accepted": 1, "output_tokens": 1, field: value}
    with pytest.raises(FieldError) as caught:
        measure(signal, record(**fields))
    assert caught.value.field == field


@pytest.mark.parametrize("signal", Signal)
def test_no_value_is_larger_than_the_signal_says(signal: Signal) -> None:
    largest: dict[str, Any] = {
        "ttft_ms": 1e9,
        "tpot_ms": 1e9,
        "output_tokens": 10**9,
        "drafts": 1,
        "accepted": 10**9,
        "repetition": 1.0,
        "script": 1.0,
    }
    value = measure(signal, Observation(time_unix_s=0.0, disconnect=False, status=200, **largest))
    if value is not None:
        assert 0 <= value <= signal.most
        assert signal.kind is Kind.BINARY or value == signal.most
