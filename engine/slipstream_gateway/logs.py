"""Logs as one JSON object a line. What a request said never comes here."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_FIELDS = "fields"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up() -> None:
    """Every log record of the process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Each renewal of the Lease would be a line.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def with_fields(**fields: Any) -> dict[str, Any]:
    """`extra` of a log call: these become keys of the line."""
    return {_FIELDS: {key: value for key, value in fields.items() if value is not None}}
