"""What the load generator itself costs: processor time per chunk and per request, and so the
number of chunks a second that one core can take. The endpoint runs in a process of its own.

    python tests/bench/generator_ceiling.py
"""

import argparse
import asyncio
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from slipstream_bench.client import Endpoint, clock_s
from tests.bench_serve.endpoint import Script, stand

_TOKENS = 128
DOCUMENT = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}


def answer_until_told(pipe: Connection, between_s: float) -> None:
    """The other process: serve, tell the address, end with the pipe."""
    with stand(Script(text=(" token",) * _TOKENS, between_s=between_s)) as made:
        pipe.send(made.url)
        pipe.recv()


async def load(url: str, num_streams: int, num_rounds: int) -> tuple[int, int, float, float]:
    """Chunks, requests, processor seconds and seconds of all streams to their ends."""
    chunks = requests = 0
    async with Endpoint(url, api_key=None, deadline_s=120) as endpoint:
        await endpoint.send(DOCUMENT, {}, clock_s(), 0)
        begun_s, cpu_s = clock_s(), time.process_time()
        for _ in range(num_rounds):
            asked = (endpoint.send(DOCUMENT, {}, clock_s(), 0) for _ in range(num_streams))
            for reply in await asyncio.gather(*asked):
                if reply.record.failure is not None:
                    raise RuntimeError(reply.record.failure.message)
                chunks += reply.record.num_chunks
                requests += 1
        return chunks, requests, time.process_time() - cpu_s, clock_s() - begun_s


def measure(between_s: float, num_streams: int, num_rounds: int) -> None:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=answer_until_told, args=(theirs, between_s))
    process.start()
    try:
        chunks, requests, cpu_s, took_s = asyncio.run(load(ours.recv(), num_streams, num_rounds))
    finally:
        ours.send(None)
        process.join(10)
    pace = f"every {between_s * 1000:g} ms" if between_s else "at once"
    print(
        f"{num_streams:>8} {pace:>14} {chunks / took_s:>10.0f} {cpu_s / took_s:>10.0%}"
        f" {cpu_s / chunks * 1e6:>12.1f} {chunks / cpu_s:>22.0f} {requests / cpu_s:>12.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print(
        f"{'streams':>8} {'a chunk':>14} {'chunks/s':>10} {'of a core':>10}"
        f" {'CPU µs/chunk':>12} {'chunks/s per core':>22} {'requests/s':>12}"
    )
    for between_s, num_streams in ((0.02, 1), (0.02, 8), (0.02, 64), (0.0, 8)):
        measure(between_s, num_streams, options.rounds if between_s else 4 * options.rounds)


if __name__ == "__main__":
    main()
