"""Looks at an answer that passes by: where its events end, and its usage. Changes nothing."""

import json
from typing import Any

from slipstream_gateway.observations import Usage

# An answer's usage stands in its last event; of a whole document more is kept.
_STREAM_TAIL_BYTES = 8 * 1024
_DOCUMENT_BYTES = 1024 * 1024


class Tail:
    """The end of one answer."""

    def __init__(self, *, is_event_stream: bool) -> None:
        self._is_event_stream = is_event_stream
        self._kept = b""
        self._is_whole = True

    def feed(self, chunk: bytes) -> None:
        limit = _STREAM_TAIL_BYTES if self._is_event_stream else _DOCUMENT_BYTES
        kept = self._kept + chunk if self._is_whole or self._is_event_stream else b""
        if len(kept) > limit:
            self._is_whole = False
            kept = kept[-limit:] if self._is_event_stream else b""
        self._kept = kept

    @property
    def is_between_events(self) -> bool:
        """Whether an event could be added here without tearing another one."""
        return not self._kept or self._kept.endswith((b"\n\n", b"\r\n\r\n"))

    def usage(self) -> Usage | None:
        """The usage in the last event that has one, or in the document."""
        if not self._is_event_stream:
            return _usage(self._kept) if self._is_whole else None
        for line in reversed(self._kept.splitlines()):
            if line.startswith(b"data:") and b'"usage"' in line:
                return _usage(line.removeprefix(b"data:"))
        return None


def _usage(text: bytes) -> Usage | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    usage = document.get("usage") if isinstance(document, dict) else None
    if not isinstance(usage, dict):
        return None
    input_tokens, output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not isinstance(input_tokens, int) or not isinstance(output_tokens, int):
        return None
    return Usage(input_tokens, output_tokens, _cached(usage.get("prompt_tokens_details")))


def _cached(details: Any) -> int | None:
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else None
