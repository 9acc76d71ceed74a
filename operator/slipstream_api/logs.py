"""Logs of every process: one JSON object a line on standard error.

What a request said never comes here: `extra` of a log call holds counts and names only.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
# They log every request, every retry or every object; what matters of it we say ourselves.
_NOISY = ("kopf", "httpx", "httpx2", "httpcore", "httpcore2", "asyncio", "aiohttp")


class JsonFormatter(logging.Formatter):
    """A record and what its `extra` held, without what is None."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {
            key: value
            for key, value in record.__dict__.items()
            if key not in _PLAIN and not key.startswith("_") and value is not None
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def set_up() -> None:
    """Call once, when a process starts. `extra={...}` of a log call becomes keys of the line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
