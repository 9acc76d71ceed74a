"""Names, models, what gateways and operators ask, metrics, and clients that leave."""

import json
import os
from pathlib import Path

import httpx
import pytest

from tests.engine import served
from tests.engine.served import CONTEXT, TOKEN, Served

_CHAT = "/v1/chat/completions"


def test_the_model_list_names_the_model_and_its_context(client: httpx.Client) -> None:
    document = client.get("/v1/models").json()
    assert document["object"] == "list"
    (one,) = document["data"]
    assert (one["id"], one["object"], one["max_model_len"]) == ("tiny", "model", CONTEXT)
    assert client.get("/v1/models/tiny").json() == one
    assert client.get("/v1/models/agents/tiny").json() == one
    assert client.get("/v1/models/other").status_code == 404


_CLAIM = {"x-slipstream-model": "agents/tiny"}
_NAMES: dict[str, tuple[str, dict[str, str], int]] = {
    "its name": ("tiny", {}, 200),
    "its qualified name": ("agents/tiny", {}, 200),
    "another name": ("other", {}, 404),
    "another namespace": ("other/tiny", {}, 404),
    "an alias with a claim but no token": ("alias", _CLAIM, 404),
    "an alias with a wrong token": ("alias", {**_CLAIM, "x-slipstream-token": "wrong"}, 404),
    "an alias with a token but no claim": ("alias", {"x-slipstream-token": TOKEN}, 404),
    "an alias meant for another model": (
        "alias",
        {"x-slipstream-model": "agents/other", "x-slipstream-token": TOKEN},
        404,
    ),
    "an alias that the gateway resolved": ("alias", {**_CLAIM, "x-slipstream-token": TOKEN}, 200),
    "an alias with the previous token": (
        "alias",
        {**_CLAIM, "x-slipstream-token": "the-previous-key"},
        200,
    ),
}


@pytest.mark.parametrize(("name", "headers", "status"), _NAMES.values(), ids=_NAMES.keys())
def test_which_model_names_are_answered(
    client: httpx.Client, name: str, headers: dict[str, str], status: int
) -> None:
    answer = client.post(_CHAT, json=served.chat(model=name), headers=headers)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["model"] == name
    else:
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["param"] == "model"


def test_the_request_id_comes_back(client: httpx.Client) -> None:
    answer = client.post(_CHAT, json=served.chat(), headers={"x-request-id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/internal/v1/identity"),
        ("GET", "/internal/v1/load"),
        ("POST", "/internal/v1/drain"),
        ("POST", "/internal/v1/forget"),
        ("GET", "/internal/v1/observations"),
    ],
)
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x"], ids=repr)
def test_internal_endpoints_refuse_whoever_has_no_token(
    client: httpx.Client, method: str, path: str, token: str | None
) -> None:
    headers = {} if token is None else {"x-slipstream-token": token}
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert client.get("/ready").status_code == 200


def test_a_rotated_token_is_believed_without_a_restart_and_the_dropped_one_no_more(
    client: httpx.Client, token_dir: Path
) -> None:
    def status(token: str) -> int:
        headers = {"x-slipstream-token": token}
        return client.get("/internal/v1/load", headers=headers).status_code

    assert (status(TOKEN), status("the-previous-key"), status("new")) == (200, 200, 401)
    try:
        _replace(token_dir / "previous", TOKEN)
        _replace(token_dir / "current", "new")
        assert (status("new"), status(TOKEN), status("the-previous-key")) == (200, 200, 401)
    finally:
        _replace(token_dir / "current", TOKEN)
        _replace(token_dir / "previous", "the-previous-key")


def _replace(path: Path, text: str) -> None:
    """As a mounted Secret changes: another file takes the name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def test_identity_tells_revision_layout_and_sizes(client: httpx.Client) -> None:
    answer = client.get("/internal/v1/identity", headers={"x-slipstream-token": TOKEN})
    document = answer.json()
    assert document["revision"] == "r1"
    assert document["architecture"] == "llama"
    # Two layers, two KV heads of 16, keys and values, four bytes, sixteen tokens.
    assert document["page_bytes"] == 2 * 2 * 16 * 2 * 4 * 16
    assert document["num_pages"] == 4 * 1024 * 1024 // document["page_bytes"]
    assert document["max_context"] == CONTEXT


def test_observations_hold_counts_and_no_text_and_say_what_was_missed(
    client: httpx.Client,
) -> None:
    trusted = {"x-slipstream-token": TOKEN}
    before = client.get("/internal/v1/observations?limit=1000", headers=trusted).json()["next"]
    session = {
        **trusted,
        "x-slipstream-session": "s-1",
        "x-slipstream-track": "canary",
        "x-slipstream-model": "agents/tiny",
    }
    assert client.post(_CHAT, json=served.chat(), headers=session).status_code == 200
    untrusted = {"x-slipstream-session": "s-2", "x-slipstream-track": "canary"}
    assert client.post(_CHAT, json=served.chat(), headers=untrusted).status_code == 200
    query = f"/internal/v1/observations?after={before}"
    document = client.get(query, headers=trusted).json()
    first, second = document["observations"]
    assert (document["lost"], document["next"]) == (0, before + 2)
    assert (first["session"], first["track"], first["revision"]) == ("s-1", "canary", "r1")
    assert "session" not in second
    assert "track" not in second
    assert (first["output_tokens"], first["finish_reason"]) == (12, "length")
    assert (first["status"], first["streamed"], first["disconnect"]) == (200, False, False)
    assert first["ttft_ms"] > 0
    assert first["tpot_ms"] > 0
    assert "Write" not in json.dumps(document)
    for query in ("after=-1", "limit=0", "limit=1001"):
        bad = client.get(f"/internal/v1/observations?{query}", headers=trusted)
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, query.partition("=")[0])


def _metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def test_metrics_count_tokens_and_requests_under_vllms_names(client: httpx.Client) -> None:
    names = [
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_success_total",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prefill_time_seconds_count",
        "vllm:request_decode_time_seconds_count",
    ]
    before = [_metric(client, name) for name in names]
    usage = served.ask(client)["usage"]
    after = [_metric(client, name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [12, 1, 1, 1, 1, 1, 1]
    assert usage["completion_tokens"] == 12
    text = client.get("/metrics").text
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:inter_token_latency_seconds_count",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:request_time_per_output_token_seconds_count",
    ):
        assert f'{name}{{model_name="tiny"}}' in text
    for reason in ("stop", "length", "abort"):
        assert f'finished_reason="{reason}"' in text


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_frees_its_pages_at_once(
    engine: Served, client: httpx.Client, is_stream: bool
) -> None:
    aborts = 'vllm:request_success_total{finished_reason="abort"'
    before = [line for line in client.get("/metrics").text.splitlines() if line.startswith(aborts)]
    body = served.chat(stream=is_stream, max_tokens=3900)
    if is_stream:
        with client.stream("POST", _CHAT, json=body) as response:
            # Kept: when the iterator goes, httpx closes the connection.
            lines = response.iter_lines()
            next(lines)
            served.wait_for(lambda: engine.load()["pages_used"] > 2, "pages in use")
    else:
        with engine.client() as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post(_CHAT, json=body, timeout=1.0)
    served.wait_for(lambda: engine.load()["outstanding"] == 0, "end of the request", 5)
    served.wait_for(lambda: engine.load()["pages_used"] == 0, "free pages", 5)
    after = [line for line in client.get("/metrics").text.splitlines() if line.startswith(aborts)]
    assert float(after[0].split()[-1]) == float(before[0].split()[-1]) + 1
    assert served.ask(client)["usage"]["completion_tokens"] == 12


def test_the_serving_process_holds_no_torch(engine: Served) -> None:
    maps = Path(f"/proc/{engine.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "libtorch" in Path(f"/proc/{engine.rank_pid()}/maps").read_text()
    assert os.getpid() != engine.rank_pid()


def test_openais_own_client_streams_from_it(engine: Served) -> None:
    import openai

    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="unused") as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Write a function."}],
            temperature=0,
            max_tokens=12,
            stream=True,
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(
                model="other", messages=[{"role": "user", "content": "x"}]
            )
    with engine.client() as plain:
        assert text == served.ask(plain)["choices"][0]["message"]["content"]
