"""Errors and limits: nested, with the field, decided before the first byte of a stream."""

from typing import Any

import httpx
import pytest

from tests.engine.conformance import asking
from tests.engine.conformance.asking import CHAT, CONTEXT, ENDPOINTS, PLAIN

_BOTH = pytest.mark.parametrize("path", ENDPOINTS.values(), ids=ENDPOINTS)
_MODES = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


def _error(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"].startswith("application/json")
    document = answer.json()
    assert set(document) == {"error"}
    error: dict[str, Any] = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str) and error["type"]
    return error


@_BOTH
@_MODES
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"temperature": 3}, 400),
        ({"no_such_field": 1}, 400),
        ({"model": "other"}, 404),
        ({"model": ...}, 400),
        ({"stop": ["a"] * 5}, 400),
    ],
    ids=str,
)
def test_errors_are_nested(
    client: httpx.Client, path: str, is_stream: bool, fields: dict[str, Any], status: int
) -> None:
    """vllm#12886: a flat document; clients look into `error`."""
    answer = client.post(path, json=asking.body(path, stream=is_stream, **fields))
    assert answer.status_code == status
    error = _error(answer)
    assert error["param"] in fields


@_BOTH
@_MODES
@pytest.mark.parametrize("what", ["prompt", "limit"])
def test_what_does_not_fit_is_a_400_before_the_stream_starts(
    client: httpx.Client, path: str, is_stream: bool, what: str
) -> None:
    """llama.cpp#14566, sglang PR#20027: 200 and then an error in the stream."""
    long = "x1" * CONTEXT
    fields: dict[str, Any] = {"max_tokens": CONTEXT}
    if what == "prompt":
        key = (
            {"messages": [{"role": "user", "content": long}]} if path == CHAT else {"prompt": long}
        )
        fields = {"max_tokens": ..., **key}
    answer = client.post(path, json=asking.body(path, stream=is_stream, **fields))
    assert answer.status_code == 400
    assert _error(answer)["code"] == "context_length_exceeded"


def test_an_unknown_model_is_a_404_that_names_the_field(client: httpx.Client) -> None:
    error = _error(client.post(CHAT, json=asking.body(CHAT, model="gpt-4o")))
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert client.get("/v1/models/gpt-4o").status_code == 404


def test_the_models_are_listed(client: httpx.Client) -> None:
    document = client.get("/v1/models").json()
    assert document["object"] == "list"
    assert [(one["id"], one["object"]) for one in document["data"]] == [("tiny", "model")]
    assert all(isinstance(one["created"], int) for one in document["data"])


@_BOTH
def test_both_names_of_the_limit_mean_the_same(client: httpx.Client, path: str) -> None:
    assert asking.whole(client, path, max_tokens=3)["usage"]["completion_tokens"] == 3
    if path == CHAT:
        fields = {"max_tokens": ..., "max_completion_tokens": 3}
        assert asking.whole(client, path, **fields)["usage"]["completion_tokens"] == 3


@_BOTH
def test_a_seed_gives_the_same_answer_again_and_another_seed_another(
    client: httpx.Client, path: str
) -> None:
    def text(seed: int) -> str:
        fields = {"temperature": 1.0, "max_tokens": 30, "seed": seed}
        return asking.text_of(asking.whole(client, path, **fields)["choices"][0])

    assert text(7) == text(7) != text(8)


@_BOTH
def test_samples_of_one_request_differ_and_greedy_ones_do_not(
    client: httpx.Client, path: str
) -> None:
    drawn = asking.whole(client, path, n=4, temperature=1.0, seed=1, max_tokens=30)["choices"]
    assert len({asking.text_of(choice) for choice in drawn}) == 4
    greedy = asking.whole(client, path, n=4)["choices"]
    assert len({asking.text_of(choice) for choice in greedy}) == 1


@_BOTH
@pytest.mark.parametrize("count", [1, 4])
def test_up_to_four_stop_strings_end_the_answer_before_themselves(
    client: httpx.Client, path: str, count: int
) -> None:
    text = asking.text_of(asking.whole(client, path, max_tokens=60)["choices"][0])
    stop = next(text[i : i + 2] for i in range(10, 40) if "\ufffd" not in text[i : i + 2])
    stops = [stop, "never-1", "never-2", "never-3"][:count]
    choice = asking.whole(client, path, max_tokens=60, stop=stops)["choices"][0]
    assert asking.text_of(choice) == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"


@_BOTH
def test_bias_forbids_and_forces_tokens(client: httpx.Client, path: str) -> None:
    forced = asking.whole(client, path, logit_bias={"40": 100}, max_tokens=5)
    text = asking.text_of(forced["choices"][0])
    assert len(set(text)) == 1 and len(text) == 5
    forbidden = asking.whole(client, path, logit_bias={"40": -100}, max_tokens=40)
    assert text[0] not in asking.text_of(forbidden["choices"][0])


@_BOTH
@pytest.mark.parametrize("fields", [{"presence_penalty": 2}, {"frequency_penalty": 2}], ids=str)
def test_penalties_make_repetition_rarer(
    client: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    def num_distinct(**more: Any) -> int:
        common = {"temperature": 0.3, "seed": 3, "max_tokens": 80}
        document = asking.whole(client, path, **common, **more)
        return len(set(asking.text_of(document["choices"][0])))

    assert num_distinct(**fields) > num_distinct(**dict.fromkeys(fields, -2))


@_BOTH
def test_end_tokens_end_the_answer_unless_they_are_ignored_or_come_too_early(
    client: httpx.Client, path: str
) -> None:
    fields: dict[str, Any] = {"logit_bias": {"1": 100}, "max_tokens": 6}
    choice = asking.whole(client, path, **fields)["choices"][0]
    assert (asking.text_of(choice), choice["finish_reason"]) == ("", "stop")
    ignored = asking.whole(client, path, ignore_eos=True, **fields)
    assert ignored["choices"][0]["finish_reason"] == "length"
    late = asking.whole(client, path, min_tokens=4, **fields)
    assert late["choices"][0]["finish_reason"] == "stop"
    assert late["usage"]["completion_tokens"] == 5
    own = asking.whole(client, path, logit_bias={"50": 100}, stop_token_ids=[50], max_tokens=6)
    assert own["choices"][0]["finish_reason"] == "stop"


def test_a_request_with_a_deadline_that_cannot_be_kept_is_a_504(client: httpx.Client) -> None:
    answer = client.post(CHAT, json=asking.body(CHAT, max_tokens=900, deadline_ms=60))
    assert answer.status_code == 504
    assert _error(answer)["code"] == "deadline_exceeded"


def test_a_completion_without_a_limit_takes_what_room_there_is(client: httpx.Client) -> None:
    """Sixteen tokens are the default, not a demand: close to the end there are fewer."""
    tokens = list(range(5, 105)) * 11
    for room, length in ((3, 3), (40, 16)):
        told = asking.whole(
            client, PLAIN, prompt=tokens[: CONTEXT - room], max_tokens=..., ignore_eos=True
        )
        assert told["usage"]["completion_tokens"] == length
        assert told["choices"][0]["finish_reason"] == "length"


def test_a_field_without_a_name_is_named(client: httpx.Client) -> None:
    answer = client.post(CHAT, json=asking.body(CHAT, **{"": 1}))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "'' is not supported"
