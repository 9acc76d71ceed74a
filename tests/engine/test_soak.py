"""A minute (ten at full depth) of clients of every kind: nothing leaks, nothing breaks.

They ask properly, leave early, time out, send garbage, huge prompts and impossible fields, and do
not read. Afterwards all gauges are zero, every page is free or cached, and memory has not grown.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine import served, tiny
from tests.engine.served import Served

_CHAT = "/v1/chat/completions"
_PLAIN = "/v1/completions"
_NUM_CLIENTS = 12
# Deliberate ones: the queue is full, the deadline has passed.
_ALLOWED = {200, 400, 404, 405, 413, 429, 504}
# A cache fills at first, and Python keeps what it once had: two thirds of the time are warm-up.
_GROWTH_BYTES = 24 * 1024 * 1024


class _Client:
    """One client with a chance of its own; counts what it was answered."""

    def __init__(self, url: str, seed: int, statuses: Counter[Any]) -> None:
        self._random = random.Random(seed)
        self._http = httpx.AsyncClient(base_url=url, timeout=60)
        self._url = httpx.URL(url)
        self._statuses = statuses
        self._kinds: list[Callable[[], Awaitable[None]]] = [
            self._ask,
            self._ask,
            self._stream,
            self._stream,
            self._leave,
            self._time_out,
            self._garbage,
            self._impossible,
            self._huge,
            self._late,
            self._hang_up,
            self._never_read,
        ]

    async def run(self, until_s: float) -> None:
        async with self._http:
            while time.monotonic() < until_s:
                await self._random.choice(self._kinds)()

    def _body(self, **fields: Any) -> dict[str, Any]:
        chance = self._random
        words = ["def", "add", "für", "🙂", "return", "x" * 9]
        text = " ".join(chance.choices(words, k=chance.choice([1, 5, 40, 200])))
        fields = {"model": "tiny", "max_tokens": chance.choice([1, 8, 30]), **fields}
        if chance.random() < 0.5:
            fields |= {"temperature": chance.random() * 2, "seed": chance.randrange(99)}
            fields |= {"top_p": 0.9, "top_k": 20, "presence_penalty": 0.5, "stop": ["ab"]}
        if chance.random() < 0.2:
            fields |= {"n": chance.choice([2, 4]), "priority": chance.randrange(-2, 3)}
        return {**fields, "messages": [{"role": "user", "content": text}]}

    def _count(self, answer: httpx.Response) -> None:
        self._statuses[answer.status_code] += 1
        assert answer.status_code in _ALLOWED, answer.text
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    async def _ask(self) -> None:
        answer = await self._http.post(_CHAT, json=self._body())
        self._count(answer)
        if answer.status_code == 200:
            assert answer.json()["usage"]["completion_tokens"] >= 1

    async def _stream(self) -> None:
        body = self._body(stream=True)
        async with self._http.stream("POST", _CHAT, json=body) as response:
            raw = await response.aread()
            self._count(response)
        if response.status_code == 200:
            assert raw.endswith(b"data: [DONE]\n\n")

    async def _leave(self) -> None:
        body = self._body(stream=True, max_tokens=900)
        async with self._http.stream("POST", _CHAT, json=body) as response:
            self._statuses[response.status_code] += 1
            async for _ in response.aiter_raw():
                if self._random.random() < 0.5:
                    self._statuses["left"] += 1
                    return

    async def _time_out(self) -> None:
        wait_s = self._random.choice([0.001, 0.02, 0.2])
        try:
            body = self._body(max_tokens=900)
            self._count(await self._http.post(_CHAT, json=body, timeout=wait_s))
        except httpx.TimeoutException:
            self._statuses["timed out"] += 1

    async def _garbage(self) -> None:
        junk = self._random.randbytes(self._random.choice([0, 5, 5000]))
        content = self._random.choice([junk, b"{" + junk, b'{"model":"tiny"}', b"[" * 3000])
        path = self._random.choice([_CHAT, _PLAIN, "/v1/nothing", "/internal/v1/drain/"])
        self._count(await self._http.post(path, content=content))

    async def _impossible(self) -> None:
        bad: list[dict[str, Any]] = [
            {"n": 99},
            {"temperature": "hot"},
            {"tools": [1]},
            {"model": "other"},
            {"x": 1},
        ]
        self._count(await self._http.post(_CHAT, json=self._body(**self._random.choice(bad))))

    async def _huge(self) -> None:
        size = self._random.choice([20_000, 400_000, 3_000_000])
        prompt: Any = "word " * (size // 5)
        if self._random.random() < 0.3:
            prompt = [7] * (size // 10)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4}
        answer = await self._http.post(_PLAIN, json=body)
        self._count(answer)
        assert answer.status_code in (400, 413, 429)

    async def _late(self) -> None:
        body = self._body(deadline_ms=self._random.choice([1, 30, 200]), max_tokens=900)
        self._count(await self._http.post(_CHAT, json=body))

    async def _hang_up(self) -> None:
        """In the middle of its own request."""
        _, writer = await self._connect()
        writer.write(f"POST {_CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{{".encode())
        await self._close(writer)

    async def _never_read(self) -> None:
        body = json.dumps(self._body(stream=True, max_tokens=900, n=4, logprobs=True)).encode()
        _, writer = await self._connect()
        head = f"POST {_CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await asyncio.sleep(self._random.random())
        await self._close(writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._url.host, self._url.port, limit=1024)

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        self._statuses["hung up"] += 1


def _memory_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match
    return int(match[1]) * 1024


def _gauges(client: httpx.Client) -> dict[str, float]:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    found = {}
    for line in client.get("/metrics").text.splitlines():
        for name in names:
            if line.startswith(f"vllm:{name}{{"):
                found[name] = float(line.split()[-1])
    return found


async def _run_clients(engine: Served, until_s: float, seed: int) -> Counter[Any]:
    statuses: Counter[Any] = Counter()
    clients = [_Client(engine.url, seed + index, statuses) for index in range(_NUM_CLIENTS)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(until_s))
    return statuses


def _is_at_rest(engine: Served, client: httpx.Client) -> bool:
    load = engine.load()
    used = load["outstanding"] + load["running"] + load["waiting"] + load["pages_used"]
    return used == 0 and set(_gauges(client).values()) == {0.0}


@pytest.mark.slow
def test_clients_of_every_kind_leave_nothing_behind(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    total_s = 600 if request.config.getoption("--depth") == "full" else 60
    model = tiny.write(tmp_path / "model", tiny.config(max_position_embeddings=1024))
    document = served.config(
        model,
        limits={"maxRunningSequences": 6, "maxWaitingRequests": 10},
        # Bodies of 400,000 bytes are too large for the server, those of 3 MB for the context.
        server={"maxBodyBytes": 300_000},
        pages={"kvBytes": 2 * 1024 * 1024},
    )
    with served.serving(document, tmp_path) as engine, engine.client() as client:
        warm = asyncio.run(_run_clients(engine, time.monotonic() + total_s * 2 / 3, 1))
        served.wait_for(lambda: _is_at_rest(engine, client), "rest", 20)
        pids = [engine.process.pid, engine.rank_pid()]
        before = [_memory_bytes(pid) for pid in pids]
        later = asyncio.run(_run_clients(engine, time.monotonic() + total_s / 3, 1000))
        served.wait_for(lambda: _is_at_rest(engine, client), "rest", 20)
        after = [_memory_bytes(pid) for pid in pids]
        statuses = warm + later
        print(f"answers: {dict(statuses)}, memory: {before} and then {after}")
        # Every kind of end was seen.
        for status in (200, 400, 413, 429, 504, "left", "timed out", "hung up"):
            assert statuses[status] > 0, statuses
        for was, is_ in zip(before, after, strict=True):
            assert is_ - was < _GROWTH_BYTES
        load = engine.load()
        assert load["pages_cached"] <= load["pages"]
        text = client.get("/metrics").text
        assert 'finished_reason="abort"' in text
        answer = client.post(
            _CHAT,
            json={"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
        )
        assert answer.status_code == 200
        log = engine.log()
    assert "Traceback" not in log
    assert '"level": "error"' not in log
