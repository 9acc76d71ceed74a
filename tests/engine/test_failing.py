"""What clients see when the engine is full, late, ending or broken; with a rank without a model."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import pytest_asyncio

from slipstream_api import config as configs
from slipstream_engine import apierror, internal
from slipstream_engine.messages import Failed
from slipstream_engine.rankclient import Mailbox, RankClient, RankError
from slipstream_engine.request import Request, SamplingParams
from tests.engine import fakerank, side
from tests.engine.side import CHAT, PLAIN, Side

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Side]:
    """One answer at a time, a token every 20 ms; two may wait."""
    monkeypatch.setenv(fakerank.STEP_S, "0.02")
    monkeypatch.setenv(fakerank.MAX_RUNNING, "1")
    limits = {"maxRunningSequences": 1, "maxWaitingRequests": 2, "maxDeadlineMs": 60_000}
    async with side.serving(limits=limits) as made:
        yield made


def _plain(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "abc", "max_tokens": 4000, **fields}


class _Stream:
    """A client that reads a stream to its end, however it ends."""

    def __init__(self, running: Side, **fields: Any) -> None:
        self.status: int | None = None
        self.events: list[str] = []
        self.is_cut = False
        self.started = asyncio.Event()
        self._running = running
        self._body = _plain(stream=True, **fields)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self._running.client() as client:
            try:
                async with client.stream("POST", PLAIN, json=self._body) as response:
                    self.status = response.status_code
                    async for line in response.aiter_lines():
                        if line:
                            self.events.append(line.removeprefix("data: "))
                            self.started.set()
            except httpx.RemoteProtocolError:
                self.is_cut = True

    def error(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.events[-1])["error"]
        return document


async def _until_running(running: Side, count: int) -> None:
    await side.until(lambda: running.engine.rank.load.num_running >= count)


async def test_a_full_queue_refuses_and_says_when_to_come_back(slow: Side) -> None:
    first = _Stream(slow, max_tokens=60)
    await _until_running(slow, 1)
    long = [_Stream(slow) for _ in range(2)]
    await side.until(lambda: slow.engine.num_outstanding == 3)
    async with slow.client() as client:
        refused = await client.post(PLAIN, json=_plain())
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.headers["retry-after"] == "5"  # nothing was measured yet
        # A client has the end of its answer a moment before its place is free.
        await first.task
        await side.until(lambda: slow.engine.num_outstanding < 3)
        again = _Stream(slow, max_tokens=1)
        await side.until(lambda: slow.engine.num_outstanding == 3)
        measured = await client.post(PLAIN, json=_plain(stream=True))
        assert measured.status_code == 429
        assert 1 <= int(measured.headers["retry-after"]) < 30
        many = await client.post(PLAIN, json=_plain(n=4))
        assert (many.status_code, many.json()["error"]["type"]) == (400, "invalid_request_error")
    for stream in long:
        stream.task.cancel()
    await again.task
    assert first.events[-1] == again.events[-1] == "[DONE]"


async def test_a_deadline_that_passes_in_the_queue_is_a_504_before_any_header(slow: Side) -> None:
    first = _Stream(slow)
    await _until_running(slow, 1)
    async with slow.client() as client:
        for is_stream in (False, True):
            began = time.monotonic()
            late = await client.post(PLAIN, json=_plain(stream=is_stream, deadline_ms=200))
            assert 0.15 < time.monotonic() - began < 5
            assert late.status_code == 504
            assert late.json()["error"]["code"] == "deadline_exceeded"
            assert late.json()["error"]["type"] == "timeout_error"
            # openai's client would ask again, three times in all.
            assert late.headers["x-should-retry"] == "false"
        await side.until(lambda: slow.engine.rank.load.num_waiting == 0)
        too_far = await client.post(PLAIN, json=_plain(deadline_ms=60_001))
        assert (too_far.status_code, too_far.json()["error"]["param"]) == (400, "deadline_ms")
    first.task.cancel()


async def test_a_deadline_that_passes_in_a_stream_is_an_error_event_and_a_cut(slow: Side) -> None:
    stream = _Stream(slow, deadline_ms=500)
    await stream.task
    assert stream.status == 200
    assert stream.is_cut
    assert len(stream.events) > 3
    assert stream.error()["code"] == "deadline_exceeded"
    assert set(stream.error()) == {"message", "type", "param", "code"}
    await _is_idle(slow)
    (seen,) = slow.engine.observations.after(0, 10)["observations"]
    assert (seen["status"], seen["error_class"]) == (504, "engine_timeout")
    assert "finish_reason" not in seen


async def test_the_default_deadline_holds_where_none_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(fakerank.STEP_S, "0.02")
    limits = {"defaultDeadlineMs": 300}
    async with side.serving(limits=limits) as running, running.client() as client:
        assert (await client.post(PLAIN, json=_plain())).status_code == 504
        longer = _plain(deadline_ms=20_000, max_tokens=30)
        assert (await client.post(PLAIN, json=longer)).status_code == 200


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_frees_its_place_within_a_step(
    slow: Side, is_stream: bool
) -> None:
    async with slow.client() as client:
        asked = asyncio.create_task(client.post(PLAIN, json=_plain(stream=is_stream)))
        await _until_running(slow, 1)
        asked.cancel()
    await _is_idle(slow)
    (seen,) = slow.engine.observations.after(0, 10)["observations"]
    assert (seen["status"], seen["disconnect"]) == (499, True)


@pytest.mark.slow
async def test_a_client_that_never_reads_is_let_go_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(fakerank.STEP_S, "0.0001")
    async with side.serving() as running:
        body = json.dumps(_plain(stream=True, n=16, logprobs=5, deadline_ms=1500)).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(running.url).port)
        head = f"POST {PLAIN} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await side.until(lambda: running.engine.num_outstanding == 16)
        await side.until(lambda: running.engine.num_outstanding == 0, 30)
        await _is_idle(running)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_stream_that_the_drain_cuts_says_so(slow: Side) -> None:
    stream = _Stream(slow)
    await stream.started.wait()
    waiting = _Stream(slow)
    await side.until(lambda: slow.engine.num_outstanding == 2)
    slow.engine.begin_draining()
    slow.engine.rank.give_up_all(apierror.cut_by_drain())
    await asyncio.gather(stream.task, waiting.task)
    assert stream.is_cut
    assert stream.error()["code"] == "draining"
    assert waiting.status == 503
    await _is_idle(slow)


_DEATHS = {
    "<fail>": "ArithmeticError: a step that cannot be done",
    "<vanish>": "exit code 7",
    "<garbage>": "no message of a rank",
}


@pytest.mark.parametrize("order", _DEATHS)
async def test_a_rank_that_dies_in_a_step_fails_every_request_and_the_health(order: str) -> None:
    async with side.serving() as running, running.client() as client:
        stream = _Stream(running)
        await stream.started.wait()
        asked = await client.post(CHAT, json=side.chat(order))
        assert asked.status_code == 500
        assert _DEATHS[order] in asked.json()["error"]["message"]
        assert asked.json()["error"]["code"] == "engine_failed"
        await stream.task
        assert stream.is_cut
        assert _DEATHS[order] in stream.error()["message"]
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/ready")).json() == {"status": "failed"}
        assert (await client.post(PLAIN, json=_plain())).status_code == 500
        assert "vllm:num_requests_running" in (await client.get("/metrics")).text
        failed = await running.engine.rank.ended
        assert _DEATHS[order] in failed.message
        seen = running.engine.observations.after(0, 10)["observations"]
        assert {one["error_class"] for one in seen} == {"engine_failed"}


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.slow
async def test_the_death_of_any_rank_ends_the_replica_with_its_name(victim: int) -> None:
    parallel = {"tensor": 3}
    async with side.serving(parallel=parallel) as running:
        pids = running.engine.rank.pids
        assert len(pids) == 3
        stream = _Stream(running)
        await stream.started.wait()
        os.kill(pids[victim], signal.SIGKILL)
        await stream.task
        assert f"rank {victim}: the rank process was ended by SIGKILL" in stream.error()["message"]
        began = time.monotonic()
        failed = await running.engine.rank.ended
        assert time.monotonic() - began < 8
        assert failed.message.startswith(f"rank {victim}: ")
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.parametrize("victim", [None, 1, 2])
@pytest.mark.slow
async def test_a_rank_that_only_misses_another_is_not_the_cause(victim: int | None) -> None:
    async with side.serving(parallel={"pipeline": 3}) as running, running.client() as client:
        asking = asyncio.create_task(client.post(CHAT, json=side.chat("<lost>")))
        await side.until(lambda: len(running.engine.rank._signs) == 1)
        if victim is not None:
            os.kill(running.engine.rank.pids[victim], signal.SIGKILL)
        error = (await asking).json()["error"]
        words = "rank 0: another rank is gone"
        if victim is not None:
            words = f"rank {victim}: the rank process was ended by SIGKILL"
        assert error["message"] == words
        assert (await running.engine.rank.ended).message == words


async def _take_all(mailbox: Mailbox) -> None:
    while True:
        await mailbox.take()


@pytest.mark.slow
async def test_a_rank_that_hangs_with_work_is_the_replicas_end() -> None:
    config = configs.dump(side.config())
    client = await RankClient.start(config, module=side.MODULE, silent_s=1.0)
    await client.wait_loaded()
    # Without work it may be silent.
    await asyncio.sleep(1.5)
    assert client.is_alive
    request = Request("a", (1, 2, 3), 100_000, SamplingParams(), frozenset())
    with client.ask([request]) as mailbox:
        await mailbox.take()
        (pid,) = client.pids
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(RankError, match="no answer to a command and no end of a step for 1 s"):
            await asyncio.wait_for(_take_all(mailbox), 20)
        assert 0.5 < time.monotonic() - began < 8
    await client.ended
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
async def test_a_rank_that_hangs_is_noticed_also_where_everybody_gives_up_first() -> None:
    config = configs.dump(side.config())
    client = await RankClient.start(config, module=side.MODULE, silent_s=1.0)
    await client.wait_loaded()
    request = Request("a", (1, 2, 3), 100_000, SamplingParams(), frozenset())
    # Left while it runs, and answered: it may be silent again.
    with client.ask([request]) as mailbox:
        await mailbox.take()
    await asyncio.sleep(1.5)
    assert client.is_alive
    (pid,) = client.pids
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    while client.is_alive:
        assert time.monotonic() - began < 8
        with client.ask([request]):
            await asyncio.sleep(0.1)
    assert time.monotonic() - began > 0.5
    assert "no answer to a command" in (await client.ended).message


async def test_ranks_are_told_their_place_and_a_meeting_place_that_is_gone_afterwards() -> None:
    config = configs.dump(side.config(parallel={"tensor": 2}))
    client = await RankClient.start(config, 2, module="tests.engine.placerank")
    loaded = await client.wait_loaded()
    failed = await client.ended
    assert isinstance(loaded, Failed)
    place = json.loads(failed.message.partition(": ")[2])
    assert (place["rank"], place["rendezvous"][:7]) == (0, "file://")
    assert place["others"] == 1
    assert not os.path.exists(os.path.dirname(place["rendezvous"].removeprefix("file://")))  # noqa: ASYNC240, PTH110, PTH120
    request = Request("a", (1,), 1, SamplingParams(), frozenset())
    with pytest.raises(RankError), client.ask([request]):
        pass


@pytest.mark.parametrize(
    ("address", "is_own"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("192.168.1.1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.7", False),
        ("0.0.0.0", False),  # noqa: S104
        ("", False),
        (None, False),
        ("localhost", False),
    ],
)
async def test_only_this_host_is_this_host(address: str | None, is_own: bool) -> None:
    assert internal.is_own_host(address) is is_own


async def test_without_a_token_strangers_cannot_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    async with side.serving() as running, running.client() as client:
        with monkeypatch.context() as patch:
            # The peer's address as a connection from elsewhere has it.
            patch.setattr("aiohttp.web.BaseRequest.remote", "10.0.0.7")
            refused = await client.post("/internal/v1/drain")
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_allowed")
            assert (await client.get("/internal/v1/load")).json()["state"] == "ready"
        assert (await client.post("/internal/v1/drain")).json()["state"] == "draining"


async def test_a_prompt_that_can_never_fit_is_refused_before_it_is_read() -> None:
    async with side.serving() as running, running.client() as client:
        began = time.monotonic()
        huge = await client.post(PLAIN, json=_plain(prompt="word " * 5_000_000, stream=True))
        assert huge.status_code == 400
        assert huge.json()["error"]["code"] == "context_length_exceeded"
        # Tokenising it takes half a minute.
        assert time.monotonic() - began < 8


async def _is_idle(running: Side) -> None:
    """Nothing is left, here and at the rank."""
    engine = running.engine
    await side.until(lambda: engine.num_outstanding == 0)
    await side.until(lambda: engine.rank.load.num_running + engine.rank.load.num_waiting == 0)
    assert engine.rank.load.num_pages_used == 0
