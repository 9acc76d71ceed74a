"""The cache as its image starts it: one file, two ports, SIGTERM, words for a failed start."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream_api import config as configs
from slipstream_api import failure, names
from slipstream_api.cacheconfig import CacheConfig
from slipstream_cli import cache as command
from slipstream_kvstore.breaker import Policy
from slipstream_kvstore.client import Client, Failure
from slipstream_kvstore.codec import Limits
from slipstream_kvstore.credentials import Tokens
from slipstream_kvstore.process import Settings
from slipstream_kvstore.session import Timeouts
from tests.kvstore.support import (
    HOST,
    LONG_S,
    TENANT,
    contents,
    empty,
    eventually,
    greet,
    page_keys,
    raw,
    set_request,
)

pytestmark = pytest.mark.slow

_START_S = 60.0


@dataclass
class Started:
    process: subprocess.Popen[bytes]
    port: int
    url: str
    tokens: Tokens
    log: Path

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def document(folder: Path, **change: Any) -> dict[str, Any]:
    (folder / "current").write_text("process-token\n")
    return {
        "schemaVersion": 1,
        "port": 0,
        "healthPort": 0,
        "tokenDir": str(folder),
        "maxBytes": 64 * 1024 * 1024,
        **change,
    }


def write(folder: Path, body: Any) -> Path:
    path = folder / "cache.json"
    path.write_text(json.dumps(body))
    return path


@contextlib.contextmanager
def started(folder: Path, *wrapper: str, **change: Any) -> Iterator[Started]:
    """`slipstream cache serve` in a process of its own, asked where it listens by its log."""
    path, log = write(folder, document(folder, **change)), folder / "log"
    arguments = [sys.executable, "-m", "slipstream_cli", "cache", "serve", "--config", str(path)]
    with log.open("wb") as file:
        process = subprocess.Popen([*wrapper, *arguments], stdout=file, stderr=file)
    try:
        made = Started(process, 0, "", Tokens(folder, names.TOKEN_KEYS), log)
        until_s = time.monotonic() + _START_S
        while not (heard := [it for it in _whole(log) if it["message"] == "listening"]):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(0.02)
        made.port, made.url = heard[0]["port"], f"http://{HOST}:{heard[0]['health_port']}"
        yield made
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _whole(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]


@contextlib.contextmanager
def client(it: Started, policy: Policy | None = None) -> Iterator[Client]:
    made = Client(HOST, it.port, it.tokens.values, policy=policy)
    try:
        yield made
    finally:
        made.close()


async def until(
    http: httpx.AsyncClient, path: str, is_so: Callable[[httpx.Response], bool]
) -> None:
    async with asyncio.timeout(LONG_S):
        while not is_so(await http.get(path)):  # noqa: ASYNC110  (a remote state)
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_it_serves_is_ready_shows_its_metrics_and_ends_on_sigterm(tmp_path: Path) -> None:
    with started(tmp_path) as it:
        with client(it) as engine:
            assert all(await engine.set(TENANT, page_keys(5), contents(5), timeout_s=LONG_S))
            got = empty(6)
            answers = await engine.get(page_keys(6), got, timeout_s=LONG_S)
            assert answers == [True] * 5 + [False]
            assert got[:5] == contents(5)
        async with httpx.AsyncClient(base_url=it.url) as http:
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/readyz")).status_code == 200
            metrics = (await http.get("/metrics")).text
        assert 'slipstream_cache_get_pages_total{outcome="hit"} 5.0' in metrics
        assert 'slipstream_cache_get_pages_total{outcome="miss"} 1.0' in metrics
        assert 'slipstream_cache_get_pages_total{outcome="busy"} 0.0' in metrics
        assert "slipstream_cache_pages 5.0" in metrics
        assert it.end() == 0
        assert [line["message"] for line in it.lines()] == ["listening", "draining", "drained"]
        assert "process-token" not in it.log.read_text()


@pytest.mark.asyncio
async def test_while_it_drains_it_is_alive_but_not_ready(tmp_path: Path) -> None:
    with started(tmp_path, drainTimeoutS=30) as it:
        async with raw(it.port) as slow, httpx.AsyncClient(base_url=it.url) as http:
            await greet(slow, it.tokens.values()[0])
            request = set_request(0)
            await slow.send(request[:-1])
            await until(http, "/metrics", lambda it: "in_flight_bytes 4096.0" in it.text)
            it.process.send_signal(signal.SIGTERM)
            await until(http, "/readyz", lambda it: it.status_code == 503)
            assert (await http.get("/healthz")).status_code == 200
            await slow.send(request[-1:])
            assert await asyncio.to_thread(it.process.wait, 30) == 0


@pytest.mark.asyncio
async def test_killed_while_it_answers_and_started_again(tmp_path: Path) -> None:
    """Pages that had arrived are used, the rest are misses; the breaker opens and closes again."""
    size, policy = 1024 * 1024, Policy(failures_to_open=2, first_pause_s=0.1, longest_pause_s=0.1)
    names_, pages = page_keys(32), contents(32, num_bytes=size)
    with started(tmp_path) as it, client(it, policy) as engine:
        assert all(await engine.set(TENANT, names_, pages, timeout_s=LONG_S))
        got = empty(32, size)
        call = asyncio.create_task(engine.get(names_, got, timeout_s=LONG_S))
        while not call.done() and engine.counts.hits < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        it.process.kill()
        answers = await call
        assert answers == sorted(answers, reverse=True)
        assert answers.count(True) == engine.counts.hits >= 3
        assert all(got[i] == pages[i] for i in range(engine.counts.hits))
        it.process.wait()
        while not engine.is_open:
            assert not any(await engine.get(names_, got, timeout_s=LONG_S))
        with started(tmp_path, port=it.port):
            async with asyncio.timeout(LONG_S):
                while engine.is_open:
                    await engine.exists(names_[:1], timeout_s=LONG_S)
                    await asyncio.sleep(0.01)
            # It was memory: everything is a miss, and may be stored anew.
            assert not any(await engine.exists(names_, timeout_s=LONG_S))
            assert all(await engine.set(TENANT, names_, pages, timeout_s=LONG_S))


@pytest.mark.asyncio
async def test_without_descriptors_it_waits_for_some_and_goes_on(tmp_path: Path) -> None:
    few = ("sh", "-c", 'ulimit -n 24; exec "$@"', "sh")
    with started(tmp_path, *few) as it:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(30):
                await stack.enter_async_context(raw(it.port))
            await eventually(lambda: "cannot accept" in it.log.read_text())
        with client(it) as engine:
            assert await engine.exists(page_keys(1), timeout_s=LONG_S) == [False]
            assert engine.counts.failures[Failure.CONNECTION] == 0
        assert it.end() == 0


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        pytest.param({"schemaVersion": 2}, "schemaVersion", "1", id="another version"),
        pytest.param({"colour": "red"}, "colour", "not permitted", id="an unknown key"),
        pytest.param({"maxBytes": 0}, "maxBytes", "greater", id="no memory"),
        pytest.param({"maxBytes": None}, "maxBytes", "integer", id="null for a size"),
        pytest.param({"port": 65536}, "port", "less", id="a port beyond all ports"),
        pytest.param({"maxInFlightBytes": 1}, "", "maxPageBytes", id="no page could pass"),
        pytest.param({"tokenDir": "/nowhere"}, "tokenDir", "/nowhere/current", id="no token"),
        pytest.param({"host": "300.1.1.1"}, "port", "cannot listen", id="no address"),
    ],
)
def test_a_start_that_fails_says_why(
    tmp_path: Path, change: dict[str, Any], field: str, words: str
) -> None:
    path = write(tmp_path, document(tmp_path, **change))
    assert command.run(path, tmp_path / "termination") == 1
    told = failure.parse((tmp_path / "termination").read_text())
    assert told is not None
    assert told.reason == "ConfigInvalid"
    assert told.field == field
    assert words in told.message


@pytest.mark.parametrize("field", ["port", "healthPort"])
def test_a_port_that_is_taken_is_named(tmp_path: Path, field: str) -> None:
    with socket.create_server((HOST, 0)) as other:
        path = write(tmp_path, document(tmp_path, **{field: other.getsockname()[1]}))
        assert command.run(path, tmp_path / "termination") == 1
    told = failure.parse((tmp_path / "termination").read_text())
    assert told is not None
    assert told.field == field


def test_the_defaults_make_a_cache_that_strangers_do_not_reach() -> None:
    parsed = configs.parse(CacheConfig, '{"schemaVersion": 1, "maxBytes": 1}', origin="test")
    made = command.settings(parsed)
    assert made.host == "127.0.0.1"
    assert made.max_in_flight_bytes >= made.limits.max_page_bytes
    assert made.tenant_max_bytes is None


def test_every_key_of_the_file_reaches_the_cache() -> None:
    """Each value is another, so that none can be taken for its neighbour."""
    keys = {
        "host": "::1",
        "port": 1,
        "healthPort": 2,
        "tokenDir": "/token",
        "maxBytes": 3,
        "tenantMaxBytes": 4,
        "maxPageBytes": 5,
        "maxKeys": 6,
        "maxConnections": 7,
        "maxInFlightBytes": 8,
        "helloTimeoutS": 9,
        "ioTimeoutS": 10,
        "idleTimeoutS": 11,
        "drainTimeoutS": 12,
    }
    text = json.dumps({"schemaVersion": 1, **keys})
    parsed = configs.parse(CacheConfig, text, origin="test")
    assert set(CacheConfig.model_fields) == set(parsed.model_fields_set)
    assert command.settings(parsed) == Settings(
        host="::1",
        port=1,
        health_port=2,
        max_bytes=3,
        tenant_max_bytes=4,
        limits=Limits(max_keys=6, max_page_bytes=5),
        max_connections=7,
        max_in_flight_bytes=8,
        timeouts=Timeouts(hello_s=9, io_s=10, idle_s=11),
        drain_timeout_s=12,
    )
