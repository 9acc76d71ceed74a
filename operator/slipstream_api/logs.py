"""Logs of every process: one JSON object a line on standard error.

What a request said never comes here: `extra` of a log call holds counts and names only, and of
what a library has to say of a connection its own words alone.
"""

import json
import logging
import sys
import time
import traceback
from datetime import UTC, datetime
from typing import Any

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
# They log every request, every retry or every object; what matters of it we say ourselves.
_NOISY = ("kopf", "httpx", "httpx2", "httpcore", "httpcore2", "asyncio", "aiohttp")
# They quote what they were sent where they cannot read it.
_QUOTING = ("aiohttp", "asyncio")
# A library that cannot go on says so for every connection: without descriptors asyncio wrote
# 260 kB/s. So long are the same words of one kept back.
_SAME_WORDS_S = 10.0
_MAX_WORDS = 1000


class Seldom(logging.Filter):
    """Lets the same words of a library through once in `_SAME_WORDS_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._latest_s: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not _is_of(record, _QUOTING):
            return True
        key, now_s = (record.name, _words(record)), time.monotonic()
        if now_s - self._latest_s.get(key, -_SAME_WORDS_S) < _SAME_WORDS_S:
            return False
        if len(self._latest_s) >= _MAX_WORDS:
            self._latest_s.clear()
        self._latest_s[key] = now_s
        return True


def _is_of(record: logging.LogRecord, names: tuple[str, ...]) -> bool:
    return record.name.partition(".")[0] in names


def _words(record: logging.LogRecord) -> str:
    """Of a library's message what is its own: no arguments, and no objects in the lines below."""
    return str(record.msg).partition("\n")[0]


def _places(error: BaseException | None) -> str:
    """The kind of an exception and where it was raised, without its words."""
    if error is None:
        return ""
    frames = "".join(traceback.format_tb(error.__traceback__))
    cause = _places(error.__cause__ or error.__context__)
    return f"{cause}{frames}{type(error).__name__}\n"


class JsonFormatter(logging.Formatter):
    """A record and what its `extra` held, without what is None."""

    def format(self, record: logging.LogRecord) -> str:
        is_quoting = _is_of(record, _QUOTING)
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _words(record) if is_quoting else record.getMessage(),
        }
        entry |= {
            key: value
            for key, value in record.__dict__.items()
            if key not in _PLAIN and not key.startswith("_") and value is not None
        }
        if record.exc_info:
            entry["exception"] = (
                _places(record.exc_info[1]) if is_quoting else self.formatException(record.exc_info)
            )
        return json.dumps(entry, default=str, ensure_ascii=False)


def set_up() -> None:
    """Call once, when a process starts. `extra={...}` of a log call becomes keys of the line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(Seldom())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
