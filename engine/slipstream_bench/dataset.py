"""Own requests: a JSON Lines file, one chat request a line. Pure but for reading the file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream_bench.errors import WorkloadError
from slipstream_bench.session import Session, Sessions

_MAX_LINES = 100_000
_MAX_BYTES = 256 * 1024 * 1024
# The load generator's own.
_REPLACED = ("model", "stream", "stream_options", "session", "prompt")


def load(path: Path) -> tuple[Session, ...]:
    """Raises WorkloadError that names the line."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise WorkloadError(f"{path} is larger than {_MAX_BYTES} bytes")
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} cannot be read: {error}") from error
    if len(lines) > _MAX_LINES + 1:
        raise WorkloadError(f"{path} has more than {_MAX_LINES} lines")
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(parse(line))
            except ValueError as error:
                raise WorkloadError(f"{path}, line {number}: {error}") from error
    if not found:
        raise WorkloadError(f"{path} has no request")
    return tuple(found)


def parse(line: str) -> Session:
    """`{"messages": […]}` or `{"prompt": "…"}`, any other field of a chat request, and `session`,
    the name under which lines belong together. Raises ValueError."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    key = document.get("session")
    if key is not None and (not isinstance(key, str) or not key):
        raise ValueError("session must be a text that is not empty")
    fields = {name: value for name, value in document.items() if name not in _REPLACED}
    messages = _messages(fields.pop("messages", None), document.get("prompt"))
    if "max_completion_tokens" in fields:
        fields["max_tokens"] = None  # the two exclude each other
    return Session(opening=tuple(messages), key=key, fields=fields)


def _messages(messages: Any, prompt: Any) -> list[dict[str, Any]]:
    if (messages is None) == (prompt is None):
        raise ValueError("needs either messages or prompt")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt:
            raise ValueError("prompt must be a text that is not empty")
        return [{"role": "user", "content": prompt}]
    is_list = isinstance(messages, list) and all(isinstance(it, dict) for it in messages)
    if not is_list or not messages:
        raise ValueError("messages must be a list of objects that is not empty")
    return list(messages)


def sessions(rows: Sequence[Session]) -> Sessions:
    """In the file's order, and from its beginning again."""
    while True:
        yield from rows
