"""Shows how far a run is: a bar on a terminal, a line now and then elsewhere (on stderr)."""

import time
from types import TracebackType

import rich.progress
from rich.console import Console

from slipstream_bench.options import MAX_REQUESTS
from slipstream_bench.record import Record
from slipstream_bench.shapes import Limits

_LINE_EVERY_S = 10.0


class Progress:
    """A context manager; `seen` is called with every record."""

    def __init__(self, limits: Limits, console: Console) -> None:
        self._limits = limits
        self._console = console
        self._done = self._failed = self._tokens = 0
        self._bar: rich.progress.Progress | None = None
        if console.is_terminal:
            self._bar = rich.progress.Progress(
                rich.progress.BarColumn(),
                rich.progress.TaskProgressColumn(),
                rich.progress.TextColumn("{task.description}"),
                rich.progress.TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> "Progress":
        self._begun_s = self._line_s = time.monotonic()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._words(0.0), total=1.0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def seen(self, record: Record) -> None:
        self._done += 1
        self._failed += not record.is_success
        self._tokens += record.num_output_tokens
        now_s = time.monotonic()
        elapsed_s = now_s - self._begun_s
        if self._bar is not None:
            self._bar.update(
                self._task,
                completed=_share(self._limits, self._done, elapsed_s),
                description=self._words(elapsed_s),
            )
        elif now_s - self._line_s >= _LINE_EVERY_S:
            self._line_s = now_s
            words = f"{elapsed_s:.0f} s: {self._words(elapsed_s)}"
            self._console.print(words, highlight=False, soft_wrap=True)

    def _words(self, elapsed_s: float) -> str:
        of = "" if self._limits.requests == MAX_REQUESTS else f"/{self._limits.requests}"
        rate = self._tokens / elapsed_s if elapsed_s > 0 else 0.0
        return f"{self._done}{of} requests, {self._failed} failed, {rate:.0f} tokens/s"


def _share(limits: Limits, done: int, elapsed_s: float) -> float:
    """How far the nearer of the two limits is reached."""
    by_time = 0.0 if limits.duration_s is None else elapsed_s / limits.duration_s
    return min(1.0, max(done / limits.requests, by_time))
