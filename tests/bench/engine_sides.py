"""The two sides of a comparison as processes: started, asked, stopped while the other is asked."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from tests.bench.engine_job import Drafted, DraftedJob, Job, Timing

HOST = "127.0.0.1"
# vLLM compiles the model when it starts; on two busy cores that is minutes.
START_S = 1200.0
ASK_S = 1800.0
_END_S = 20.0
_LOG_CHARACTERS = 3000


class SideError(Exception):
    """A side that did not start or did not answer; the message has the end of its log."""


class Side:
    """A process and its children, in a process group of their own. A context manager.

    `pause` stops all of them, so that an idle side takes nothing from the one that is measured.
    A group whose parent dies is continued and hung up by the kernel: nothing stays behind.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
        descriptors: Collection[int] = (),
    ) -> None:
        """`folder`: where it runs; `descriptors`: those of ours that it may use too."""
        self._log = log
        self.versions: dict[str, str] = {}
        self.facts: dict[str, float] = {}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env={**os.environ, **environment},
                cwd=folder,
                pass_fds=descriptors,
                process_group=0,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._process:
            self._signal(signal.SIGCONT)
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            # Children that did not end with it.
            self._signal(signal.SIGKILL)

    @property
    def group(self) -> int:
        return self._process.pid

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def _failed(self, what: str) -> SideError:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return SideError(f"{what}; the end of {self._log}:\n{text[-_LOG_CHARACTERS:]}")


class Generator(Side):
    """A process that answers jobs (`engine_job.serve`): `-m module ANSWERS_FD arguments…`."""

    def __init__(
        self,
        python: Path,
        module: str,
        arguments: Sequence[str | Path],
        root: Path,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        reading, writing = os.pipe()
        super().__init__(
            [python, "-m", module, str(writing), *arguments],
            log,
            environment,
            folder=root,
            descriptors=(writing,),
        )
        os.close(writing)
        self._answers: TextIO = os.fdopen(reading, encoding="utf-8")
        self.versions = self._answer()

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Timing:
        """Raises SideError: it ended, or said less than it was asked for."""
        timing = Timing(**self._ask(Job(prompts, num_tokens)))
        if timing.num_tokens != num_tokens * len(prompts):
            raise self._failed(f"{timing.num_tokens} tokens of {num_tokens} × {len(prompts)}")
        return timing

    def draft(self, job: DraftedJob) -> Drafted:
        """Raises SideError: it ended, or its answers are not what they had to be."""
        drafted = Drafted(**self._ask(job))
        if job.answer and drafted.answers != [job.answer]:
            raise self._failed("the answer is not the one that was forced")
        if [len(answer) for answer in drafted.answers] != [job.num_tokens] * len(job.prompts):
            raise self._failed(f"answers that are not {job.num_tokens} tokens long")
        return drafted

    def _ask(self, job: Job | DraftedJob) -> dict[str, Any]:
        questions = self._process.stdin
        if questions is None:
            raise self._failed("no way to ask")
        questions.write(json.dumps(asdict(job)).encode() + b"\n")
        questions.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise self._failed(f"it ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


class Server(Side):
    """An OpenAI endpoint, asked by `slipstream bench serve` as any user would."""

    def __init__(
        self,
        command: Sequence[str | Path],
        port: int,
        ready_path: str,
        log: Path,
        environment: Mapping[str, str],
        versions: Mapping[str, str],
    ) -> None:
        super().__init__(command, log, environment)
        self.versions = dict(versions)
        self._url = f"http://{HOST}:{port}"
        try:
            self._wait_ready(ready_path)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def ask(self, *options: str, warmup: int = 1) -> dict[str, Any]:
        """The summary of one run of the load generator. Raises SideError."""
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder) / "run.json"
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "slipstream_cli", "bench", "serve"),
                    *("--url", f"{self._url}/v1", "--warmup", str(warmup), "--json", str(found)),
                    *("--deadline", "600", "--max-failures", "1", *options),
                ],
                capture_output=True,
                text=True,
                timeout=ASK_S,
                check=False,
            )
            if done.returncode != 0:
                raise self._failed(f"the load generator failed: {done.stdout}{done.stderr}")
            summary: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))["summary"]
        if summary["failed"]:
            raise self._failed(f"requests failed: {summary['failureExamples']}")
        return summary

    def _wait_ready(self, path: str) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._failed(f"it ended with {self._process.returncode}")
            try:
                with urllib.request.urlopen(f"{self._url}{path}", timeout=10):  # noqa: S310
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise self._failed(f"not ready after {START_S:g} s")


def unused_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
