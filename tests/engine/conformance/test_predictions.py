"""A prediction and any drafts change how soon an answer is there, and nothing else of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.engine import served, tiny
from tests.engine.conformance import asking
from tests.engine.conformance.asking import CHAT, CONTEXT, PLAIN
from tests.engine.served import Served

pytestmark = pytest.mark.slow  # three servers more

_WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 5},
    "three": {"temperature": 0.9, "seed": -7, "n": 3, "top_p": 0.8},
    "penalties": {"frequency_penalty": 2.0, "presence_penalty": -1.0},
    "repeated": {"frequency_penalty": -2.0},
    "log-probabilities": {"logprobs": True, "top_logprobs": 3},
    "a limit": {"max_tokens": 5},
    "the least": {"min_tokens": 30, "stop_token_ids": list(range(0, 380, 3))},
    "bias": {"logit_bias": {"70": 8, "71": 7}},
}


@contextmanager
def _serving(folder: Path, **speculator: Any) -> Iterator[httpx.Client]:
    model = tiny.write(folder / "model", tiny.config(max_position_embeddings=CONTEXT))
    config = served.config(model, speculator=speculator)
    with served.serving(config, folder) as running, running.client() as made:
        yield made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The model of the suite without drafts."""
    with _serving(tmp_path_factory.mktemp("plain"), method="none") as made:
        yield made


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """With the longest drafts, whatever they cost on a loaded machine."""
    with _serving(tmp_path_factory.mktemp("drafting"), adaptive=False) as made:
        yield made


def _bare(document: Any) -> Any:
    """An answer without what differs between any two."""
    left_out = {"id", "created", "metrics"}
    bare = {name: value for name, value in document.items() if name not in left_out}
    bare["usage"] = {
        name: value for name, value in bare["usage"].items() if name != "prompt_tokens_details"
    }
    return bare


def _round_logprobs(document: Any) -> None:
    """To four digits: rows of a batch are not summed in one order."""
    for choice in document["choices"]:
        for entry in (choice["logprobs"] or {}).get("content") or ():
            for one in (entry, *entry["top_logprobs"]):
                one["logprob"] = pytest.approx(one["logprob"], abs=1e-4)


def _assembled(chunks: list[Any]) -> list[tuple[str, Any, list[Any]]]:
    """Of each choice of a stream the text, the reason of its end, and what stands with tokens."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    found = []
    for index in range(1 + max(choice["index"] for choice in choices)):
        own = [choice for choice in choices if choice["index"] == index]
        (finish,) = [one["finish_reason"] for one in own if one["finish_reason"] is not None]
        entries = [
            entry for one in own for entry in (one.get("logprobs") or {}).get("content") or ()
        ]
        found.append((asking.joined(chunks, index), finish, entries))
    return found


def _streamed(choice: Any) -> tuple[str, Any, list[Any]]:
    entries = (choice["logprobs"] or {}).get("content") or []
    return asking.text_of(choice), choice["finish_reason"], entries


@pytest.mark.parametrize("way", _WAYS)
def test_an_answer_is_the_same_with_any_prediction_and_without_drafts(
    drafting: httpx.Client, plain: httpx.Client, way: str
) -> None:
    asked = {"max_tokens": 40, **_WAYS[way]}
    expected = asking.whole(plain, CHAT, **asked)
    text = asking.text_of(expected["choices"][0])
    _round_logprobs(expected)
    for content in ("", "nothing like it", text, text[:20] + "?" + text[20:], text * 3):
        prediction = {"type": "content", "content": content}
        told = asking.whole(drafting, CHAT, prediction=prediction, **asked)
        without = asking.whole(plain, CHAT, prediction=prediction, **asked)
        assert (
            told["usage"]["completion_tokens_details"]
            == (without["usage"]["completion_tokens_details"])
        )
        assert _bare(told)["choices"] == _bare(expected)["choices"]
        assert told["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]
        chunks = asking.chunks(
            drafting,
            CHAT,
            prediction=prediction,
            stream_options={"include_usage": True},
            **asked,
        )
        assert _assembled(chunks) == [_streamed(choice) for choice in expected["choices"]]
        assert _bare(chunks[-1])["usage"] == _bare(told)["usage"]


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_a_stop_string_is_found_wherever_it_begins_in_an_accepted_draft(
    drafting: httpx.Client, plain: httpx.Client, path: str
) -> None:
    """sgl-project/sglang#23802; huggingface/transformers#48039: only a short tail was searched."""
    whole = asking.text_of(asking.whole(plain, path, max_tokens=32)["choices"][0])
    prediction = {"prediction": {"type": "content", "content": whole}} if path == CHAT else {}
    for number, start in enumerate(range(0, len(whole) - 4, 3)):
        asked = {"max_tokens": 32, "stop": [whole[start : start + 4]], **prediction}
        if path == CHAT and number % 2:
            # Wrong in the middle of the stop string: one step ends there, and another begins.
            content = f"{whole[: start + 2]}@{whole[start + 2 :]}"
            asked["prediction"] = {"type": "content", "content": content}
        expected = asking.whole(plain, path, **asked)
        told = asking.whole(drafting, path, **asked)
        assert _bare(told) == _bare(expected)
        chunks = asking.chunks(drafting, path, **asked)
        assert asking.joined(chunks) == asking.text_of(expected["choices"][0])


def test_usage_says_how_much_of_the_prediction_is_in_the_answer(drafting: httpx.Client) -> None:
    whole = asking.whole(drafting, CHAT, max_tokens=40)
    text = asking.text_of(whole["choices"][0])
    assert whole["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }

    def details(content: Any) -> tuple[int, int]:
        prediction = {"type": "content", "content": content}
        told = asking.whole(drafting, CHAT, max_tokens=40, prediction=prediction)
        found = told["usage"]["completion_tokens_details"]
        return found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]

    accepted, rejected = details(text)
    assert accepted > 10
    in_parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    assert details(in_parts) == (accepted, rejected)
    assert details("") == (0, 0)
    nothing = details("@" * 30)
    assert nothing[0] <= 1 < nothing[1]


def test_speculation_without_a_prediction_is_not_reported_as_one(drafting: httpx.Client) -> None:
    """vllm#50895: other drafts were counted as prediction tokens."""
    prompt = "```python\n" + "value = compute(value)\n" * 20 + "```\nWrite it again."
    messages = [{"role": "user", "content": prompt}]
    told = asking.whole(
        drafting, CHAT, messages=messages, max_tokens=60, speculation_metrics="summary"
    )
    details = told["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0


def test_what_drafts_gave_an_answer_is_told_to_who_asks(drafting: httpx.Client) -> None:
    text = asking.text_of(asking.whole(drafting, CHAT, max_tokens=40)["choices"][0])
    prediction = {"type": "content", "content": text}
    asked = {"max_tokens": 40, "prediction": prediction}
    assert "metrics" not in asking.whole(drafting, CHAT, **asked)
    told = asking.whole(drafting, CHAT, speculation_metrics="detailed", **asked)
    found = told["metrics"]["speculative_decoding"]
    assert found["num_accepted_draft_tokens"] == sum(found["per_step_accepted"]) > 10
    assert found["num_draft_tokens"] == sum(found["per_step_drafted"])
    assert found["num_spec_steps"] == len(found["per_step_accepted"])
    assert sum(found["acceptance_histogram"]) == found["num_spec_steps"]
    mean = 1 + found["num_accepted_draft_tokens"] / found["num_spec_steps"]
    assert found["mean_acceptance_length"] == pytest.approx(mean)
    options = {"include_usage": True}
    chunks = asking.chunks(
        drafting, CHAT, speculation_metrics="summary", stream_options=options, **asked
    )
    assert "per_step_accepted" not in chunks[-1]["metrics"]["speculative_decoding"]
    assert all("metrics" not in chunk for chunk in chunks[:-1])
    refused = drafting.post(
        CHAT, json=asking.body(CHAT, stream=True, speculation_metrics="summary", **asked)
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "speculation_metrics"


def test_past_answers_are_drafted_from_until_they_are_forgotten_and_by_their_tenant_alone(
    tmp_path: Path,
) -> None:
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "current").write_text(served.TOKEN)
    model = tiny.write(tmp_path / "model", tiny.config(max_position_embeddings=CONTEXT))
    config = served.config(
        model,
        speculator={"adaptive": False, "method": "suffix"},
        server={"port": 0, "tokenDir": str(tokens)},
    )
    with served.serving(config, tmp_path) as running, running.client() as asking_:

        def accepted(salt: str) -> int:
            """How much of an answer was drafted from past ones."""
            told = asking_.post(
                CHAT,
                json=asking.body(CHAT, max_tokens=40, speculation_metrics="summary"),
                headers={"x-slipstream-token": served.TOKEN, "x-slipstream-cache-salt": salt},
            ).json()
            found = told["metrics"]["speculative_decoding"]
            by_drafter = {} if found is None else found["num_accepted_draft_tokens_by_drafter"]
            return int(by_drafter.get("store", 0))

        def forget(salt: str) -> int:
            headers = {"x-slipstream-token": served.TOKEN, "x-slipstream-cache-salt": salt}
            return asking_.post("/internal/v1/forget", headers=headers).status_code

        assert accepted("a") == 0
        assert accepted("a") > 10
        assert accepted("b") == 0
        assert forget("a") == 200
        assert accepted("a") == 0
        assert accepted("b") > 10


def test_where_nothing_was_drafted_there_is_no_length(plain: httpx.Client) -> None:
    told = asking.whole(plain, CHAT, speculation_metrics="summary")
    assert told["metrics"] == {"speculative_decoding": None}


def test_counters_have_vllms_and_sglangs_names(drafting: httpx.Client) -> None:
    # Letters, which are the same tokens again; and from the past answer nothing may be drafted.
    form = {"max_tokens": 60, "structured_outputs": {"regex": "[a-z ]{60}"}}
    text = asking.text_of(asking.whole(drafting, CHAT, **form)["choices"][0])
    assert drafting.post("/internal/v1/forget").status_code == 200
    asking.whole(drafting, CHAT, **form, prediction={"type": "content", "content": text})
    lines = drafting.get("/metrics").text.splitlines()
    values = {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }
    for drafter in ("edit", "suffix", "store"):
        labels = f'{{drafter="{drafter}",model_name="tiny"}}'
        accepted = values[f"vllm:spec_decode_num_accepted_tokens_total{labels}"]
        assert accepted <= values[f"vllm:spec_decode_num_draft_tokens_total{labels}"]
        by_place = [
            value
            for name, value in values.items()
            if name.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total")
            and f'drafter="{drafter}"' in name
        ]
        assert len(by_place) == 64
        assert sum(by_place) == accepted
        if drafter == "edit":
            assert values[f"vllm:spec_decode_num_drafts_total{labels}"] > 0
            assert accepted > 0
    assert values['sglang:spec_accept_length{model_name="tiny"}'] > 1
    assert 0 < values['sglang:spec_accept_rate{model_name="tiny"}'] <= 1
    assert values['slipstream_draft_seconds_total{model_name="tiny"}'] > 0


def test_the_official_client_predicts(engine: Served) -> None:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="unused") as official:
        told = official.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Write a function."}],
            prediction={"type": "content", "content": "def f(): pass"},
            max_tokens=8,
        )
    assert told.usage is not None
    details = told.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) + (details.rejected_prediction_tokens or 0) > 0


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "file", "content": "x"}, "prediction.type"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": "x", "more": 1}, "prediction.more"),
    ],
    ids=str,
)
def test_a_malformed_prediction_is_refused_by_its_path(
    client: httpx.Client, prediction: Any, param: str
) -> None:
    answer = client.post(CHAT, json=asking.body(CHAT, prediction=prediction))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
