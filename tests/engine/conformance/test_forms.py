"""OpenAI's `response_format` and vLLM's structured outputs, with the official client.

The tiny model knows nothing, so that every token of an answer's form is the guide's.
"""

import json
import time
from enum import Enum
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.engine.conformance.asking import CHAT, ENDPOINTS, body, chunks, joined, text_of, whole
from tests.engine.served import Served

pytestmark = pytest.mark.slow


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Literal["bolt", "nut"]
    count: int = Field(ge=0, le=99)


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    parts: list[Part] = Field(min_length=1, max_length=2)
    colour: Colour
    note: str | None = Field(max_length=5)
    is_urgent: bool


_SCHEMA = Order.model_json_schema()
_FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "order", "schema": _SCHEMA, "strict": True},
}
_MODES = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
# Blanks between the parts are free, and the tiny model likes them.
_ROOM: dict[str, Any] = {"max_tokens": 900}


def _client(engine: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{engine.url}/v1", api_key="unused", max_retries=0)


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_official_client_parses_an_answer_into_its_model(
    engine: Served, temperature: float
) -> None:
    messages: Any = [{"role": "user", "content": "Order something."}]
    with _client(engine) as official:
        completion = official.chat.completions.parse(
            model="tiny",
            messages=messages,
            response_format=Order,
            temperature=temperature,
            seed=3,
            **_ROOM,
        )
        parsed = completion.choices[0].message.parsed
        assert isinstance(parsed, Order)
        assert completion.choices[0].finish_reason == "stop"
        with official.chat.completions.stream(
            model="tiny",
            messages=messages,
            response_format=Order,
            temperature=temperature,
            seed=3,
            **_ROOM,
        ) as stream:
            streamed = stream.get_final_completion().choices[0].message.parsed
        assert streamed == parsed


@_MODES
def test_every_sample_keeps_to_the_schema_and_logprobs_are_those_of_its_tokens(
    client: httpx.Client, is_stream: bool
) -> None:
    fields = {
        "response_format": _FORMAT,
        "n": 3,
        "temperature": 1,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
        **_ROOM,
    }
    if is_stream:
        documents = chunks(client, CHAT, **fields)
        texts = [joined(documents, index) for index in range(3)]
        entries = [
            entry
            for document in documents
            for choice in document["choices"]
            if choice["index"] == 0 and choice["logprobs"]
            for entry in choice["logprobs"]["content"]
        ]
    else:
        document = whole(client, CHAT, **fields)
        texts = [text_of(choice) for choice in document["choices"]]
        entries = document["choices"][0]["logprobs"]["content"]
        assert {choice["finish_reason"] for choice in document["choices"]} == {"stop"}
    for text in texts:
        jsonschema.validate(json.loads(text), _SCHEMA)
    assert len(set(texts)) > 1
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == texts[0]
    # Of the raw logits: what the guide forbids is among the likeliest all the same.
    assert any(
        entry["token"] not in {t["token"] for t in entry["top_logprobs"]} for entry in entries
    )


@_MODES
def test_an_object_is_an_object_and_a_limit_cuts_it(client: httpx.Client, is_stream: bool) -> None:
    fields: dict[str, Any] = {"response_format": {"type": "json_object"}, "max_tokens": 2}
    documents = chunks(client, CHAT, **fields) if is_stream else [whole(client, CHAT, **fields)]
    assert joined(documents).startswith("{")
    reasons = [c["finish_reason"] for document in documents for c in document["choices"]]
    assert [reason for reason in reasons if reason] == ["length"]


@pytest.mark.parametrize("path", ENDPOINTS.values(), ids=ENDPOINTS)
@pytest.mark.parametrize("is_older", [False, True], ids=["structured_outputs", "guided"])
def test_vllms_names_work_on_both_endpoints(
    client: httpx.Client, path: str, is_older: bool
) -> None:
    def answer(name: str, value: Any, **fields: Any) -> str:
        asked = {f"guided_{name}": value} if is_older else {"structured_outputs": {name: value}}
        document = whole(client, path, **asked, **_ROOM, **fields)
        assert document["choices"][0]["finish_reason"] == "stop"
        return text_of(document["choices"][0])

    assert answer("choice", ["yes", "größer 🙂", "no"]) in {"yes", "größer 🙂", "no"}
    assert answer("regex", r"[a-f]{3}-\d{2}")[3] == "-"
    assert set(answer("grammar", 'root ::= "ab" | "ab" root', temperature=1, seed=1)) == {"a", "b"}
    assert json.loads(answer("json", {"enum": [[1, 2], [3]]})) in ([1, 2], [3])


def test_the_end_comes_when_the_form_ends_whatever_else_was_asked(client: httpx.Client) -> None:
    fields: dict[str, Any] = {"structured_outputs": {"choice": ["abc"]}}
    for extra in ({"ignore_eos": True}, {"min_tokens": 11}, {"min_tokens": 11, "ignore_eos": True}):
        choice = whole(client, CHAT, **fields, **extra)["choices"][0]
        assert (text_of(choice), choice["finish_reason"]) == ("abc", "stop")
    # Where it could end and could go on, it goes on as long as was asked.
    open_ended: dict[str, Any] = {"structured_outputs": {"regex": "a*"}, "max_tokens": 40}
    eager = whole(client, CHAT, **open_ended, ignore_eos=True)["choices"][0]
    assert (len(text_of(eager)) >= 40, eager["finish_reason"]) == (True, "length")
    least = whole(client, CHAT, **open_ended, min_tokens=20, logit_bias={"1": 100})
    assert least["usage"]["completion_tokens"] == 21


def test_stop_strings_cut_a_guided_answer_too(client: httpx.Client) -> None:
    choice = whole(client, CHAT, structured_outputs={"choice": ["abcdef"]}, stop="cd")["choices"][0]
    assert (text_of(choice), choice["finish_reason"]) == ("ab", "stop")


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a keyword": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"properties": {"a": {"not": {}}}}},
            }
        },
        "response_format.json_schema.schema.properties.a.not",
    ),
    "what the library refuses": (
        {"structured_outputs": {"regex": "a(?=b)"}},
        "structured_outputs.regex",
    ),
    "what takes too long": (
        {"guided_json": {"type": "integer", "multipleOf": 999_983}},
        "guided_json",
    ),
    "two at once": (
        {"response_format": {"type": "json_object"}, "guided_choice": ["a"]},
        "guided_choice",
    ),
}


@_MODES
@pytest.mark.parametrize(("fields", "param"), _REFUSED.values(), ids=_REFUSED)
def test_a_form_that_cannot_be_had_is_a_400_before_any_stream(
    client: httpx.Client, is_stream: bool, fields: dict[str, Any], param: str
) -> None:
    answer = client.post(CHAT, json=body(CHAT, stream=is_stream, **fields))
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"].startswith(f"{param}: ")


def test_no_request_waits_for_the_trial_of_forms_beyond_its_deadline(client: httpx.Client) -> None:
    """Forms are tried one by one, up to a second of a processor each."""
    slow = [
        {
            "type": "string",
            "minLength": number,
            "allOf": [{"pattern": f".*[a-{chr(97 + i)}].*x{{{i}}}"} for i in range(1, 20)],
        }
        for number in range(2)
    ]
    for document in slow:
        began = time.monotonic()
        answer = client.post(CHAT, json=body(CHAT, guided_json=document, deadline_ms=300))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert time.monotonic() - began < 0.9
    # The next one waits for the first two, and comes.
    assert client.post(CHAT, json=body(CHAT, guided_choice=["a"])).status_code == 200
