"""Whatever a request may ask for can be drawn: extremes of every field, alone and together."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream_api.config import EngineLimits
from slipstream_engine import protocol, sampler
from slipstream_engine.batch import Draw
from slipstream_engine.protocol import ChatRequest
from slipstream_engine.questions import Origin, Questioner
from slipstream_engine.request import Request
from tests.engine import side, tiny

_SIZE = tiny.tokenizer().get_vocab_size(with_added_tokens=True)
_QUESTIONER = Questioner(side.text_side(), 4096, EngineLimits())
# The least numbers that there are, in double and in single precision, and less than any logit.
_TINY = (5e-324, 1e-300, 1e-45, 1e-38, 1e-20)


def _numbers() -> dict[str, list[float]]:
    """Of every field that is a number between two bounds: these, and what lies close to them."""
    found: dict[str, list[float]] = {}
    for name, schema in ChatRequest.model_json_schema()["properties"].items():
        for one in schema.get("anyOf", ()):
            if one.get("type") == "number":
                least = one.get("minimum", one.get("exclusiveMinimum"))
                found[name] = [
                    one["maximum"],
                    *([least] if "minimum" in one else []),
                    *(least + number for number in _TINY),
                    math.nextafter(one["maximum"], -math.inf),
                ]
    return found


_NUMBERS = _numbers()


def _rows() -> list[torch.Tensor]:
    row = torch.randn(_SIZE, generator=torch.Generator().manual_seed(5))
    return [row, row * 1e4, row * 0, row - 1e4, row.abs() * 1e-30]


def _request(fields: dict[str, Any]) -> Request:
    document = protocol.parse(ChatRequest, json.dumps(side.chat(**fields)).encode())
    return _QUESTIONER.question(document, Origin(0.0)).requests[0]


def _check(fields: dict[str, Any]) -> None:
    request = _request(fields)
    history = (*request.prompt, 5, 5, 9)
    for row in _rows():
        draw = Draw(0, len(history), 0, request.sampling, history, len(request.prompt))
        (told,) = sampler.sample(row.unsqueeze(0), [0], [draw])
        assert not told.flaw, (fields, told.flaw)
        assert 0 <= told.token < _SIZE
        assert told.logprob is None or math.isfinite(told.logprob)


def test_every_number_of_a_request_is_tried() -> None:
    assert {"temperature", "top_p", "min_p", "repetition_penalty"} <= set(_NUMBERS)
    assert {"presence_penalty", "frequency_penalty"} <= set(_NUMBERS)


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, numbers in _NUMBERS.items() for number in numbers],
)
@pytest.mark.parametrize("temperature", [0, 1e-300, 1.0])
def test_what_is_accepted_can_be_drawn(name: str, number: float, temperature: float) -> None:
    _check({"temperature": temperature, name: number, "logprobs": True})


@given(st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in _NUMBERS.items()}))
def test_extremes_together_can_be_drawn(fields: dict[str, Any]) -> None:
    _check({**fields, "logit_bias": {"5": 100, "7": -100}, "top_logprobs": 2, "logprobs": True})
