"""A whole engine as its users see it: real processes, a real socket, its exit code, its log."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from slipstream_api import failure
from slipstream_api.failure import StartupFailure

# A loaded machine takes tens of seconds to import torch.
START_S = 240.0
TOKEN = "the-current-key"
# Tokens of the model that `conftest.py` serves.
CONTEXT = 4096


@dataclass(slots=True)
class Served:
    process: subprocess.Popen[bytes]
    log_path: Path
    url: str

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def rank_pid(self) -> int:
        return self.rank_pids()[0]

    def rank_pids(self) -> list[int]:
        match = re.search(r"rank process ([\d ]+)", self.log())
        assert match, self.log()
        return [int(pid) for pid in match[1].split()]

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            with self.client() as client:
                return client.get("/ready").status_code == 200

        wait_for(is_ready, "readiness", START_S)

    def exit_code(self, timeout_s: float = 30) -> int:
        return self.process.wait(timeout_s)

    def last_failure(self) -> StartupFailure | None:
        return failure.parse(self.log().strip().splitlines()[-1])

    def load(self) -> dict[str, Any]:
        with self.client() as client:
            answer = client.get("/internal/v1/load", headers={"x-slipstream-token": TOKEN})
        document: dict[str, Any] = answer.json()
        return document


def wait_for(is_true: Any, what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
        time.sleep(0.05)


def config(path: Path, **sections: Any) -> dict[str, Any]:
    """engine.json for a checkpoint; `sections` are merged into its own."""
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "revision": "r1",
        "model": {"name": "tiny", "namespace": "agents", "path": str(path)},
        "server": {"host": "127.0.0.1", "port": 0, "tokenDir": None},
        "threads": 1,
    }
    for name, section in sections.items():
        document[name] = {**document.get(name, {}), **section}
    return document


def start(document: dict[str, Any], folder: Path) -> Served:
    """Start without waiting for anything but the process itself."""
    folder.mkdir(parents=True, exist_ok=True)
    path, log = folder / "engine.json", folder / "engine.log"
    path.write_text(json.dumps(document))
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "slipstream_cli", "engine", "serve", "--config", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return Served(process, log, "")


def wait_listening(served: Served) -> None:
    def is_listening() -> bool:
        assert served.process.poll() is None, served.log()
        match = re.search(r"listening on \[\('127\.0\.0\.1', (\d+)\)\]", served.log())
        if match:
            served.url = f"http://127.0.0.1:{match[1]}"
        return match is not None

    wait_for(is_listening, "open port", START_S)


@contextmanager
def serving(document: dict[str, Any], folder: Path) -> Iterator[Served]:
    """An engine that is ready; ended with the block, whatever state it is in then."""
    served = start(document, folder)
    try:
        wait_listening(served)
        served.wait_ready()
        yield served
    finally:
        end(served)


def end(served: Served) -> None:
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGTERM)
        try:
            served.process.wait(15)
        except subprocess.TimeoutExpired:
            served.process.kill()
            served.process.wait(15)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def events(response: httpx.Response) -> list[str]:
    """The data of a stream's events, as they stand."""
    return [
        line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")
    ]


def chat(**fields: Any) -> dict[str, Any]:
    """A valid chat; `fields` replace or add, `...` takes one away."""
    document = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Write a function."}],
        "temperature": 0,
        "max_tokens": 12,
    }
    return {key: value for key, value in {**document, **fields}.items() if value is not ...}


def ask(client: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    answer = client.post(path, json=chat(**fields))
    assert answer.status_code == 200, answer.text
    return answer.json()
