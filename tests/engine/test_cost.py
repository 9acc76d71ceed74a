"""What a token costs the serving process, whose cores the model needs too."""

import asyncio
import json
import subprocess
import sys
import time

import httpx
import pytest

from tests.engine import fakerank, side
from tests.engine.side import Side

_NUM_STREAMS = 8
_NUM_TOKENS = 400
_MAX_US = 150.0

# A process of its own: only the server's time is to be seen here.
_CLIENT = """
import asyncio, sys
host, port, count, body = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()
async def read():
    reader, writer = await asyncio.open_connection(host, port)
    head = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n"
    writer.write(head % len(body) + body)
    seen = b""
    while b"[DONE]" not in seen[-40:]:
        seen = seen[-20:] + await reader.read(65536)
    writer.close()
async def main():
    await asyncio.gather(*(read() for _ in range(count)))
asyncio.run(main())
"""


async def _run(running: Side, num_tokens: int) -> None:
    url = httpx.URL(running.url)
    body = side.chat("a function", max_tokens=num_tokens, stream=True, ignore_eos=True)
    arguments = [url.host, str(url.port), str(_NUM_STREAMS), json.dumps(body)]
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CLIENT, *arguments, stdout=subprocess.DEVNULL
    )
    assert await client.wait() == 0


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_token_of_eight_streams_costs_less_than_150_microseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """90 on two noisy cores, of which 40 are the system call that sends it."""
    monkeypatch.setenv(fakerank.STEP_S, "0.01")
    async with side.serving() as running:
        await _run(running, 50)
        began = time.process_time()
        await _run(running, _NUM_TOKENS)
        spent_s = time.process_time() - began
    cost_us = spent_s / (_NUM_STREAMS * _NUM_TOKENS) * 1e6
    print(f"{cost_us:.0f} µs of processor time a token")
    assert cost_us < _MAX_US
