"""Log-probabilities: their schemas, where they stand in a stream, and that they are right."""

import codecs
import math
from typing import Any

import httpx
import pytest

from tests.engine.conformance import asking
from tests.engine.conformance.asking import CHAT, PLAIN


def _content(document: Any) -> list[Any]:
    content: list[Any] = document["choices"][0]["logprobs"]["content"]
    return content


def test_logprobs_alone_are_enough_in_a_chat(client: httpx.Client) -> None:
    """vllm#4795: logprobs without top_logprobs were refused."""
    content = _content(asking.whole(client, CHAT, logprobs=True))
    assert len(content) == 12
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["top_logprobs"] == []
        assert entry["logprob"] < 0


@pytest.mark.parametrize("count", [0, 1, 20])
def test_as_many_alternatives_as_asked_for_likeliest_first(
    client: httpx.Client, count: int
) -> None:
    """vllm#3707: 0 was taken for none."""
    for entry in _content(asking.whole(client, CHAT, logprobs=True, top_logprobs=count)):
        top = entry["top_logprobs"]
        assert len(top) == count
        assert [one["logprob"] for one in top] == sorted((o["logprob"] for o in top), reverse=True)
        assert all(set(one) == {"token", "logprob", "bytes"} for one in top)
        if count:
            # Greedy: the token is the likeliest one.
            assert (top[0]["token"], top[0]["logprob"]) == (entry["token"], entry["logprob"])


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None}], ids=str)
def test_logprobs_are_null_unless_asked_for(client: httpx.Client, fields: dict[str, Any]) -> None:
    assert asking.whole(client, CHAT, **fields)["choices"][0]["logprobs"] is None
    for chunk in asking.chunks(client, CHAT, **fields):
        assert chunk["choices"][0]["logprobs"] is None


def test_zero_is_a_number_of_logprobs_for_plain_completions(client: httpx.Client) -> None:
    document = asking.whole(client, PLAIN, logprobs=0)["choices"][0]["logprobs"]
    assert set(document) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    for token, logprob, top in zip(
        document["tokens"], document["token_logprobs"], document["top_logprobs"], strict=True
    ):
        assert top == {token: logprob}


@pytest.mark.parametrize("seed", range(4))
def test_each_delta_of_a_stream_has_the_logprobs_of_its_own_tokens(
    client: httpx.Client, seed: int
) -> None:
    """Random bytes make many deltas of several tokens."""
    fields: dict[str, Any] = {"temperature": 1.5, "seed": seed, "max_tokens": 60}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    entries: list[Any] = []
    told, text = "", ""
    for chunk in asking.chunks(client, CHAT, logprobs=True, top_logprobs=2, **fields):
        choice = chunk["choices"][0]
        text += asking.text_of(choice)
        for entry in (choice["logprobs"] or {"content": []})["content"]:
            entries.append(entry)
            told += decoder.decode(bytes(entry["bytes"] or ()))
        # A token comes with the end of its text, of which a beginning may be out already.
        assert text.startswith(told)
    assert told + decoder.decode(b"", final=True) == text
    assert len(entries) == 60
    assert entries == _content(asking.whole(client, CHAT, logprobs=True, top_logprobs=2, **fields))


def test_bytes_are_the_tokens_own(client: httpx.Client) -> None:
    fields: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_tokens": 60}
    document = asking.whole(client, CHAT, logprobs=True, **fields)
    joined = b"".join(bytes(entry["bytes"] or ()) for entry in _content(document))
    assert joined.decode(errors="replace") == document["choices"][0]["message"]["content"]
    for entry in _content(document):
        if entry["bytes"] is not None and not entry["token"].startswith("bytes:"):
            assert bytes(entry["bytes"]).decode() == entry["token"]


def test_a_chosen_token_that_is_not_likely_has_its_own_logprob(client: httpx.Client) -> None:
    fields: dict[str, Any] = {"temperature": 2.0, "seed": 1, "max_tokens": 60}
    content = _content(asking.whole(client, CHAT, logprobs=True, top_logprobs=3, **fields))
    unlikely = [e for e in content if e["token"] not in [t["token"] for t in e["top_logprobs"]]]
    assert unlikely
    for entry in unlikely:
        assert -50 < entry["logprob"] <= entry["top_logprobs"][-1]["logprob"]


def test_logprobs_are_of_the_raw_distribution_whatever_the_sampling(client: httpx.Client) -> None:
    """vllm#34497: wrong or 0.0 by the path that was taken."""
    plain = _content(asking.whole(client, CHAT, logprobs=True, top_logprobs=20, max_tokens=1))[0]
    total = sum(math.exp(one["logprob"]) for one in plain["top_logprobs"])
    assert 0 < total < 1
    for fields in (
        {"temperature": 1.9, "seed": 4},
        {"temperature": 1.0, "top_k": 1},
        {"presence_penalty": 1.5, "repetition_penalty": 1.5},
        {"logit_bias": {"5": 100}},
    ):
        other = _content(
            asking.whole(client, CHAT, logprobs=True, top_logprobs=20, max_tokens=1, **fields)
        )[0]
        for one, two in zip(plain["top_logprobs"], other["top_logprobs"], strict=True):
            assert one["token"] == two["token"]
            assert abs(one["logprob"] - two["logprob"]) < 1e-4


def test_decoded_tokens_have_the_logprobs_that_a_prompt_of_them_gives(client: httpx.Client) -> None:
    """Step by step or all at once, alone or from the cache: the same numbers."""
    prompt = list(range(40, 60))
    fields: dict[str, Any] = {"prompt": prompt, "logprobs": 1, "max_tokens": 1}
    tokens, logprobs = [], []
    for count in range(8):
        document = asking.whole(client, PLAIN, **{**fields, "prompt": prompt[: 12 + count]})
        logprobs.append(document["choices"][0]["logprobs"]["token_logprobs"][0])
        tokens.append(document["choices"][0]["logprobs"]["tokens"][0])
        forced = prompt[12 + count]
        biased = {**fields, "prompt": prompt[: 12 + count], "logit_bias": {str(forced): 100}}
        drawn = asking.whole(client, PLAIN, **biased)["choices"][0]["logprobs"]
        assert drawn["token_logprobs"][0] <= logprobs[-1] + 1e-6
    batch = [prompt[: 12 + count] for count in range(8)]
    together = asking.whole(client, PLAIN, **{**fields, "prompt": batch})["choices"]
    for choice, token, logprob in zip(together, tokens, logprobs, strict=True):
        assert choice["logprobs"]["tokens"][0] == token
        assert abs(choice["logprobs"]["token_logprobs"][0] - logprob) < 1e-4
