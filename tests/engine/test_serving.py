"""The serving side over a real socket, with a rank process that answers every prompt by itself."""

import codecs
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from slipstream_engine import digests
from slipstream_engine.batch import Progress, Sampled
from slipstream_engine.messages import AbortSample, Submit
from slipstream_engine.rankprocess import RankProcess
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.tokens import InternalTokens
from slipstream_kvstore import keys
from tests.engine import side, tiny
from tests.engine.side import CHAT, PLAIN, Side

pytestmark = pytest.mark.asyncio(loop_scope="module")
_TOKEN = "the-key"
_TRUSTED = {"x-slipstream-token": _TOKEN}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Side]:
    folder = tmp_path_factory.mktemp("token")
    (folder / "current").write_text(_TOKEN)
    async with side.serving(tokens=InternalTokens(folder)) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Side) -> AsyncIterator[httpx.AsyncClient]:
    async with running.client() as made:
        yield made


async def _ask(client: httpx.AsyncClient, **fields: Any) -> Any:
    body = {"model": "tiny", "prompt": "abcxyz", "max_tokens": 6, **fields}
    answer = await client.post(PLAIN, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _events(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> list[dict[str, Any]]:
    answer = await client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_several_answers_have_their_index_and_one_usage(client: httpx.AsyncClient) -> None:
    document = await _ask(client, n=3)
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in document["choices"]] == ["abcxyz"] * 3
    usage = document["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (6, 18)
    assert usage["total_tokens"] == 24
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


async def test_several_prompts_are_answered_in_their_order(client: httpx.AsyncClient) -> None:
    prompts = ["abc", "xy", "hello"]
    document = await _ask(client, prompt=prompts, n=2, max_tokens=5)
    texts = [choice["text"] for choice in document["choices"]]
    assert texts == ["abcab", "abcab", "xyxyx", "xyxyx", "hello", "hello"]
    assert [choice["index"] for choice in document["choices"]] == list(range(6))
    ids = [list(tiny.tokenizer().encode(prompt).ids) for prompt in prompts]
    assert document["usage"]["prompt_tokens"] == sum(map(len, ids))
    by_tokens = await _ask(client, prompt=ids, n=2, max_tokens=5)
    assert by_tokens["choices"] == document["choices"]


async def test_several_answers_of_a_stream_interleave_and_each_has_one_end(
    client: httpx.AsyncClient,
) -> None:
    body = side.chat(n=3, max_tokens=8, stream_options={"include_usage": True})
    chunks = await _events(client, CHAT, body)
    assert [c["choices"][0]["index"] for c in chunks[:3]] == [0, 1, 2]
    assert all(c["choices"][0]["delta"] == {"role": "assistant", "content": ""} for c in chunks[:3])
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 24)
    middle = [c["choices"][0] for c in chunks[3:-1]]
    for index in range(3):
        own = [choice for choice in middle if choice["index"] == index]
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["length"]
        text = "".join(c["delta"].get("content", "") for c in own)
        assert text == "user\nhello"[: len(text)] != ""
    ends = [place for place, c in enumerate(middle) if c["finish_reason"]]
    assert ends[0] > len(middle) // 3, "one after the other instead of side by side"


async def test_usage_in_every_chunk_is_given_to_who_asks_for_it(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 4, "stream_options": options}
    chunks = await _events(client, PLAIN, body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 4


async def test_a_stop_string_ends_one_answer_and_frees_it_at_the_rank(
    running: Side, client: httpx.AsyncClient
) -> None:
    document = await _ask(client, stop=["xy"], max_tokens=4000, n=2)
    assert [choice["text"] for choice in document["choices"]] == ["abc", "abc"]
    assert [choice["finish_reason"] for choice in document["choices"]] == ["stop", "stop"]
    assert document["usage"]["completion_tokens"] == 10
    await side.until(lambda: running.engine.rank.load.num_running == 0)


async def test_end_tokens_are_the_models_and_the_clients(client: httpx.AsyncClient) -> None:
    tokenizer = tiny.tokenizer()
    ids = list(tokenizer.encode("ab", add_special_tokens=False).ids)
    prompt = [*ids, 1, *ids]
    assert (await _ask(client, prompt=prompt, max_tokens=9))["choices"][0]["text"] == "ab"
    ignored = await _ask(client, prompt=prompt, max_tokens=9, ignore_eos=True)
    assert ignored["choices"][0]["text"] == "abababa"
    own = await _ask(client, prompt=prompt, max_tokens=9, stop_token_ids=[ids[1]])
    assert (own["choices"][0]["text"], own["choices"][0]["finish_reason"]) == ("a", "stop")


async def test_a_stop_string_before_the_minimum_is_text(client: httpx.AsyncClient) -> None:
    for minimum, text in ((0, "ab"), (3, "abcab"), (6, "abcabcab")):
        document = await _ask(client, prompt="abc", stop="c", min_tokens=minimum, max_tokens=12)
        assert document["choices"][0]["text"] == text


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_log_probabilities_stand_with_their_text(
    client: httpx.AsyncClient, is_stream: bool
) -> None:
    content = "naïve 🙂 東京 stop here"
    body = side.chat(content, logprobs=True, top_logprobs=2, max_tokens=40, stop="op h")
    if is_stream:
        chunks = [c["choices"][0] for c in await _events(client, CHAT, body)]
        parts = [(c["delta"]["content"], c["logprobs"]) for c in chunks if c["logprobs"]]
        whole = (await client.post(CHAT, json=body)).json()["choices"][0]
        entries = [entry for _, logprobs in parts for entry in logprobs["content"]]
        assert entries == whole["logprobs"]["content"]
    else:
        choice = (await client.post(CHAT, json=body)).json()["choices"][0]
        parts = [(choice["message"]["content"], choice["logprobs"])]
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, told = "", ""
    for piece, logprobs in parts:
        text += piece
        told += decoder.decode(b"".join(bytes(one["bytes"] or ()) for one in logprobs["content"]))
        # A token is told with the end of its text; only in the last may a stop string begin.
        is_last = logprobs is parts[-1][1]
        assert text.startswith(told) or (is_last and told.startswith(text))
        for entry in logprobs["content"]:
            assert len(entry["top_logprobs"]) == 2
            assert entry["logprob"] == -0.25
    assert told.startswith(text)
    assert text == "user\nnaïve 🙂 東京 st"


async def test_without_log_probabilities_the_field_is_null(client: httpx.AsyncClient) -> None:
    chat = (await client.post(CHAT, json=side.chat())).json()
    assert chat["choices"][0]["logprobs"] is None
    assert (await _ask(client))["choices"][0]["logprobs"] is None


async def test_plain_log_probabilities_have_offsets_and_the_drawn_token(
    client: httpx.AsyncClient,
) -> None:
    document = await _ask(client, prompt="a🙂bc", logprobs=2, max_tokens=7)
    choice = document["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 1, 1, 1, 2, 3]
    assert logprobs["tokens"][:3] == ["a", "bytes:\\xf0", "bytes:\\x9f"]
    assert logprobs["token_logprobs"] == [-0.25] * 7
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert len(top) == 3
        assert top[token] == -0.25
    none = await _ask(client, logprobs=0)
    assert none["choices"][0]["logprobs"]["top_logprobs"][0] == {"a": -0.25}


async def test_every_field_reaches_the_rank(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = _record(monkeypatch)
    await _ask(
        client,
        n=2,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={"9": 2, "5": -1.5},
        seed=-3,
        logprobs=4,
        stop_token_ids=[9],
        min_tokens=2,
        priority=-5,
    )
    (request,) = [message.request for message in sent if isinstance(message, Submit)]
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias=((5, -1.5), (9, 2.0)),
        seed=-3,
        num_top_logprobs=4,
    )
    assert (request.min_tokens, request.num_samples, request.priority) == (2, 2, -5)
    assert request.end_tokens == {1, 9}
    await _ask(client, top_k=-1)
    neutral = [message.request for message in sent if isinstance(message, Submit)][-1].sampling
    assert neutral == SamplingParams(seed=neutral.seed)


async def test_prompts_of_one_request_without_a_seed_are_drawn_apart(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = _record(monkeypatch)
    await _ask(client, prompt=["a", "a"])
    await _ask(client, prompt=["a", "a"], seed=4)
    seeds = [m.request.sampling.seed for m in sent if isinstance(m, Submit)]
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [4, 4]


async def test_only_a_trusted_gateway_names_tenant_session_and_track(
    running: Side, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = _record(monkeypatch)
    said = {
        "x-slipstream-cache-salt": "tenant-1",
        "x-slipstream-session": "s-1",
        "x-slipstream-track": "canary",
    }
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
    for headers in ({}, said, {**said, **_TRUSTED}, _TRUSTED):
        assert (await client.post(PLAIN, json=body, headers=headers)).status_code == 200
    plain, untrusted, tenant, nobody = [m.request.root_key for m in sent if isinstance(m, Submit)]
    assert plain == untrusted == nobody == running.engine.root_key(None)
    assert tenant == running.engine.root_key("tenant-1") != plain
    assert len(tenant) == keys.KEY_BYTES
    answer = await client.get("/internal/v1/observations", headers=_TRUSTED)
    seen = [(o.get("session"), o.get("track")) for o in answer.json()["observations"][-4:]]
    assert seen == [(None, None), (None, None), ("s-1", "canary"), (None, None)]


async def test_identity_tells_digests_kernels_and_layout(
    running: Side, client: httpx.AsyncClient
) -> None:
    await side.until(lambda: running.engine.digest() is not None)
    document = (await client.get("/internal/v1/identity", headers=_TRUSTED)).json()
    digest = document["checkpoint_digest"]
    assert digest == digests.checkpoint_digest(Path(side.__file__))
    assert document["kernels"] == {"matmul": "torch"}
    assert document["layout"]["pools"][0]["token_shape"] == [2, 2, 16]
    assert document["page_namespace"] == running.engine.root_key(None).hex()
    assert document["weights_digest"] == "sha256:weights"


async def test_load_tells_queues_pages_and_the_speed_of_prompts(
    client: httpx.AsyncClient,
) -> None:
    await _ask(client, prompt="abc" * 50)
    document = (await client.get("/internal/v1/load", headers=_TRUSTED)).json()
    assert (document["state"], document["outstanding"]) == ("ready", 0)
    assert (document["running"], document["waiting"], document["pages_used"]) == (0, 0, 0)
    assert (document["pages_cached"], document["pages"]) == (3, 1024)
    assert document["prefill_tokens_per_s"] > 0


async def test_metrics_follow_the_load_of_the_rank(client: httpx.AsyncClient) -> None:
    before = await _metrics(client)
    await _ask(client, n=2, max_tokens=5)
    after = await _metrics(client)
    change = {name: after[name] - before.get(name, 0) for name in after}
    assert change["vllm:prefix_cache_queries_total"] == 6
    assert change["vllm:prefix_cache_hits_total"] == 3
    assert change["vllm:prompt_tokens_total"] == 6
    assert change["vllm:generation_tokens_total"] == 10
    assert change["vllm:request_success_total"] == 2
    assert change["vllm:inter_token_latency_seconds_count"] == 8
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert change[f"vllm:{name}_seconds_count"] == 1
    for name in ("request_prefill_time", "request_decode_time"):
        assert change[f"vllm:{name}_seconds_count"] == 1
    assert change["vllm:request_time_per_output_token_seconds_count"] == 1


async def test_a_slow_reader_gets_the_same_text_in_fewer_events(running: Side) -> None:
    """What comes while it does not read waits in one piece."""
    request = Request("slow", (101, 102, 103), 500, SamplingParams(temperature=0.0), frozenset())
    with running.engine.rank.ask([request]) as mailbox:
        first = await mailbox.take()
        await side.until(lambda: "slow" not in running.engine.rank._open)
        rest = await mailbox.take()
    assert len(first) + len(rest) == 500
    assert rest[-1][1] == Progress(
        "slow", 0, Sampled((101, 102, 103)[499 % 3]), FinishReason.LENGTH, 1
    )


def _record(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What goes to the rank from now on; it goes there all the same."""
    sent: list[Any] = []
    original = RankProcess.send

    def send(self: RankProcess, message: Any) -> None:
        sent.append(message)
        original(self, message)

    monkeypatch.setattr(RankProcess, "send", send)
    return sent


async def test_a_stop_string_is_told_to_the_rank_by_sample(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = _record(monkeypatch)
    await _ask(client, stop="c", n=2, max_tokens=100)
    (request,) = [message.request for message in sent if isinstance(message, Submit)]
    assert sent[1:] == [AbortSample(request.id, 0), AbortSample(request.id, 1)]


async def _metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """The sum of each metric over its labels."""
    sums: dict[str, float] = {}
    for line in (await client.get("/metrics")).text.splitlines():
        if not line.startswith("#"):
            name = line.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
    return sums
