"""Bytes per second of the prefix cache over loopback, against a plain copy through a socket.

    python tests/bench/cache_throughput.py [--page-kib 1024] [--pages 256] [--batch 32] [--rounds 5]

Server and client are a process each, as in a cluster; so are the two ends of the plain copy, which
sends and receives as many bytes in pieces of one page and does nothing with them. Both are measured
in turns, because the machine is shared, and the median of the ratios counts.
"""

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from slipstream_kvstore import keys, process
from slipstream_kvstore.client import Client
from slipstream_kvstore.codec import Limits
from slipstream_kvstore.credentials import Tokens
from slipstream_kvstore.process import Settings
from slipstream_kvstore.session import Timeouts
from slipstream_kvstore.store import cost_bytes

HOST = "127.0.0.1"
TENANT = keys.tenant_id("bench")
FILES = ("current",)
TIMEOUT_S = 120.0
SPAWN = multiprocessing.get_context("spawn")


def wait_listening(port: int) -> None:
    while True:
        try:
            socket.create_connection((HOST, port)).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return


def unused_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def serve_cache(port: int, folder: str, max_bytes: int, page_bytes: int) -> None:
    settings = Settings(
        host=HOST,
        port=port,
        health_port=0,
        max_bytes=max_bytes,
        tenant_max_bytes=None,
        limits=Limits(max_keys=1024, max_page_bytes=page_bytes),
        max_in_flight_bytes=64 * page_bytes,
        max_connections=64,
        timeouts=Timeouts(hello_s=10, io_s=60, idle_s=600),
        drain_timeout_s=0,
    )
    process.run(settings, Tokens(Path(folder), FILES).accepts)


def serve_copy(told: Connection, page_bytes: int) -> None:
    """Sends as many pages as it is asked for, for ever."""
    page = memoryview(bytes(page_bytes))
    with socket.create_server((HOST, 0)) as listener:
        told.send(listener.getsockname()[1])
        sock, _ = listener.accept()
        with sock:
            while count := int.from_bytes(sock.recv(4), "big"):
                for _ in range(count):
                    sock.sendall(page)


def copy(sock: socket.socket, num_pages: int, target: memoryview) -> float:
    """Seconds."""
    begun_s = time.perf_counter()
    sock.sendall(num_pages.to_bytes(4, "big"))
    for _ in range(num_pages):
        filled = 0
        while filled < len(target):
            filled += sock.recv_into(target[filled:])
    return time.perf_counter() - begun_s


class Work:
    """All pages once through the cache, `batch` pages a call, `parallel` calls at once."""

    def __init__(self, client: Client, num_pages: int, page_bytes: int, batch: int) -> None:
        self._client = client
        root = bytes(keys.KEY_BYTES)
        names = [keys.next_key(root, [number]) for number in range(num_pages)]
        self._batches = [names[at : at + batch] for at in range(0, num_pages, batch)]
        self._sources = [memoryview(bytes((i,)) * page_bytes) for i in range(batch)]
        # Each call under way at once fills pages of its own.
        self._targets = [
            [memoryview(bytearray(page_bytes)) for _ in range(batch)] for _ in range(4)
        ]

    async def set(self, names: list[bytes], _: int) -> list[bool]:
        pages = self._sources[: len(names)]
        return await self._client.set(TENANT, names, pages, timeout_s=TIMEOUT_S)

    async def get(self, names: list[bytes], lane: int) -> list[bool]:
        pages = self._targets[lane][: len(names)]
        return await self._client.get(names, pages, timeout_s=TIMEOUT_S)

    async def take_s(self, is_get: bool, parallel: int) -> float:
        call = self.get if is_get else self.set
        queue = iter(self._batches)

        async def lane(number: int) -> None:
            for names in queue:
                if not all(await call(names, number)):
                    raise SystemExit(f"pages were lost: {self._client.counts}")

        begun_s = time.perf_counter()
        await asyncio.gather(*(lane(number) for number in range(parallel)))
        return time.perf_counter() - begun_s


async def measure(options: argparse.Namespace, port: int, raw: socket.socket) -> None:
    page_bytes, num_pages = options.page_kib * 1024, options.pages
    client = Client(HOST, port, lambda: [b"bench-token"], max_connections=4)
    work = Work(client, num_pages, page_bytes, options.batch)
    target = memoryview(bytearray(page_bytes))
    total = num_pages * page_bytes
    print(f"{num_pages} pages of {options.page_kib} KiB, {options.batch} a call")
    print(f"{'work':<22}{'GB/s':>8}{'plain copy':>12}{'ratio':>8}")
    await work.take_s(False, 1)
    copy(raw, num_pages, target)
    for name, is_get, parallel in (
        ("set, 1 connection", False, 1),
        ("get, 1 connection", True, 1),
        ("set, 4 connections", False, 4),
        ("get, 4 connections", True, 4),
    ):
        taken, plain = [], []
        for _ in range(options.rounds):
            taken.append(await work.take_s(is_get, parallel))
            plain.append(copy(raw, num_pages, target))
        ratio = statistics.median(p / t for p, t in zip(plain, taken, strict=True))
        ours, copied = (total / statistics.median(row) / 1e9 for row in (taken, plain))
        print(f"{name:<22}{ours:>8.2f}{copied:>12.2f}{ratio:>8.2f}", flush=True)
    client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--page-kib", type=int, default=1024)
    parser.add_argument("--pages", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    page_bytes = options.page_kib * 1024
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILES[0]).write_text("bench-token")
        here, there = SPAWN.Pipe()
        port, room = unused_port(), (options.pages + 1) * cost_bytes(page_bytes)
        ends = [
            SPAWN.Process(target=serve_cache, args=(port, folder, room, page_bytes)),
            SPAWN.Process(target=serve_copy, args=(there, page_bytes)),
        ]
        for end in ends:
            end.start()
        try:
            wait_listening(port)
            with socket.create_connection((HOST, here.recv())) as raw:
                asyncio.run(measure(options, port, raw))
                raw.sendall(bytes(4))
        finally:
            for end in ends:
                end.terminate()
                end.join()


if __name__ == "__main__":
    main()
