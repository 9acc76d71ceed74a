"""What the gateway adds to the first byte of a stream and to each of its events, against asking
the engine directly.

    python tests/bench/gateway_latency.py [--requests 500] [--parallel 1]

The engine answers at once, so the difference is the gateway's own. All three share one event loop
and one core: the figures are an upper bound. Events are compared by CPU time, which a busy machine
changes less.
"""

import argparse
import asyncio
import io
import json
import statistics
import sys
import time
from pathlib import Path

import aiohttp
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gateway.support import (
    DONE,
    begin_stream,
    engine,
    event,
    front,
    route,
    service_slice,
)

_WARM_UP = 50
_EVENTS = 1000
_STREAMS = 20


async def at_once(request: web.Request) -> web.StreamResponse:
    response = await begin_stream(request)
    await response.write(event("one"))
    await response.write(DONE)
    return response


async def event_by_event(request: web.Request) -> web.StreamResponse:
    response = await begin_stream(request)
    for _ in range(_EVENTS):
        await response.write(event("one"))
        await asyncio.sleep(0)  # each in a packet of its own, as tokens are
    await response.write(event("", finish="stop") + DONE)
    return response


async def first_byte_ms(client: aiohttp.ClientSession, url: str, body: bytes) -> float:
    headers = {"content-type": "application/json"}
    begun_s = time.perf_counter()
    async with client.post(url, data=io.BytesIO(body), headers=headers) as answer:
        await answer.content.readany()
        took_s = time.perf_counter() - begun_s
        await answer.read()
    return took_s * 1000


async def measure(url: str, body: bytes, num_requests: int, parallel: int) -> list[float]:
    async with aiohttp.ClientSession() as client:
        for _ in range(_WARM_UP):
            await first_byte_ms(client, url, body)
        taken: list[float] = []
        for _ in range(num_requests // parallel):
            batch = (first_byte_ms(client, url, body) for _ in range(parallel))
            taken += await asyncio.gather(*batch)
        return taken


async def compare(num_requests: int, parallel: int) -> None:
    print(
        f"{'body':>10} {'direct p50':>11} {'gateway p50':>12} {'added p50':>10} {'added p99':>10}"
    )
    for size_bytes in (1_000, 100_000, 1_000_000):
        message = {"role": "user", "content": "x" * size_bytes}
        body = json.dumps({"model": "coder", "stream": True, "messages": [message]}).encode()
        async with (
            engine("a", at_once) as a,
            front([route()], [service_slice({"a": a.port})], observations=1) as gateway,
        ):
            path = "/v1/chat/completions"
            direct = await measure(f"http://127.0.0.1:{a.port}{path}", body, num_requests, parallel)
            through = await measure(gateway.url + path, body, num_requests, parallel)
        direct_ms, through_ms = (statistics.quantiles(row, n=100) for row in (direct, through))
        print(
            f"{size_bytes:>10} {direct_ms[49]:>8.2f} ms {through_ms[49]:>9.2f} ms"
            f" {through_ms[49] - direct_ms[49]:>7.2f} ms {through_ms[98] - direct_ms[98]:>7.2f} ms"
        )


async def compare_events() -> None:
    body = json.dumps({"model": "coder", "stream": True, "messages": []}).encode()
    async with (
        engine("a", event_by_event) as a,
        front([route()], [service_slice({"a": a.port})], observations=1) as gateway,
    ):
        path = "/v1/chat/completions"
        direct_us = await event_us(f"http://127.0.0.1:{a.port}{path}", body)
        through_us = await event_us(gateway.url + path, body)
    print(
        f"each of {_EVENTS} events: {direct_us:.1f} µs of CPU directly, {through_us:.1f} through"
        f" the gateway, {through_us - direct_us:.1f} added"
    )


async def event_us(url: str, body: bytes) -> float:
    """CPU time of one event, of the quickest stream."""
    async with aiohttp.ClientSession() as client:
        taken: list[float] = []
        for _ in range(_STREAMS):
            begun_s = time.process_time()
            await first_byte_ms(client, url, body)
            taken.append(time.process_time() - begun_s)
    return min(taken) / _EVENTS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--parallel", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(compare(options.requests, options.parallel))
    asyncio.run(compare_events())


if __name__ == "__main__":
    main()
