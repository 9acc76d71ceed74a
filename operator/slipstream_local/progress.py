"""Tell a waiting person what is going on: a live line on a terminal, plain lines elsewhere.

Uses the standard library alone, because the first build runs before any package is installed.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

PLAIN_INTERVAL_S = 15.0
LIVE_INTERVAL_S = 0.5
LINE_COLUMNS = 100


class Progress:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()

    def say(self, text: str) -> None:
        self._write("\r\x1b[K" + text + "\n" if self._live else text + "\n")

    @contextmanager
    def waiting(self, describe: Callable[[], str]) -> Iterator[None]:
        """Repeat `describe()` with the elapsed time until the block ends."""
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(describe, done), daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()
            if self._live:
                self._write("\r\x1b[K")

    def _tick(self, describe: Callable[[], str], done: threading.Event) -> None:
        started = time.monotonic()
        interval_s = LIVE_INTERVAL_S if self._live else PLAIN_INTERVAL_S
        while not done.wait(interval_s):
            line = f"{describe()} ({time.monotonic() - started:.0f} s)"
            if self._live:
                self._write("\r\x1b[K" + line[:LINE_COLUMNS])
            else:
                self._write(line + "\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
