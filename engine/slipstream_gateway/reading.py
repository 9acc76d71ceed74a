"""Looks at an answer that passes by: its first token, its end, what it counted. Changes nothing.

Of a stream only the last events are read as JSON, and those that name an error or a tool; text is
kept no longer than the answer lasts.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from slipstream_api.observation import ErrorClass, ToolCallClass, known_finish_reason
from slipstream_gateway.toolcalls import ToolCalls

# Usage and finish reason stand in the last events; with several choices each has one of its own.
_LAST_EVENTS = 8
_MAX_EVENT_BYTES = 1024 * 1024
_MAX_DOCUMENT_BYTES = 1024 * 1024
_DATA = b"data:"
_DONE = b"[DONE]"
# JSON inside a text is escaped, so these bytes are keys, or a whole string of just this word.
_ERROR_KEY = b'"error"'
_TOOLS_KEY = b'"tool_calls"'
_EMPTY_LINES = (b"\n\n", b"\r\n\r\n")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the engine counted in its answer. None: it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    tool_call_class: ToolCallClass | None = None


class Reading:
    """One answer: `feed` it every chunk in order. Times are monotonic seconds.

    `offered_tools`: names of the request's tools; None: it offered none.
    """

    def __init__(
        self, *, is_event_stream: bool, offered_tools: frozenset[str] | None = None
    ) -> None:
        self.is_event_stream = is_event_stream
        self.first_token_s: float | None = None
        self.began_with_call = False
        self.last_event_s: float | None = None
        self.is_done = False
        self.has_failed = False
        # Whether the client was told in OpenAI's shape already.
        self.has_told_error = False
        self._offered_tools = offered_tools
        self._tools = None if offered_tools is None else ToolCalls(offered_tools)
        self._rest = b""
        self._end = b""
        self._last_events: deque[bytes] = deque(maxlen=_LAST_EVENTS)
        self._document: list[bytes] | None = None if is_event_stream else []
        self._document_bytes = 0

    def feed(self, chunk: bytes, now_s: float) -> None:
        if not self.is_event_stream:
            self._keep(chunk)
            return
        self._end = (self._end + chunk)[-4:] if len(chunk) < 4 else chunk[-4:]
        text = self._rest + chunk if self._rest else chunk
        num_whole = text.rfind(b"\n") + 1
        self._rest = text[num_whole:]
        if num_whole:
            self._read_lines(text[:num_whole], now_s)
        if len(self._rest) > _MAX_EVENT_BYTES:
            self._rest = b""  # too long for any event that counts something: passed on, not read

    @property
    def is_between_events(self) -> bool:
        """Whether an event could be added here without tearing another one."""
        return not self._end or self._end.endswith(_EMPTY_LINES)

    @property
    def flaw(self) -> ErrorClass | None:
        """What is wrong with a stream that ended here."""
        if self.has_failed:
            return ErrorClass.ENGINE_FAILED
        # Some engines leave the last line without its end.
        is_last_line = self._rest.startswith(_DATA) and self._rest[len(_DATA) :].strip() == _DONE
        is_done = self.is_done or is_last_line
        return ErrorClass.ENGINE_BROKE if self.is_event_stream and not is_done else None

    def facts(self) -> Facts:
        """What the answer said by now."""
        documents = [self._whole()] if self._document is not None else self._tail()
        usage = _first(_usage(document) for document in documents) or {}
        reason = _first(_finish_reason(document) for document in documents)
        return Facts(
            input_tokens=_count(usage, "prompt_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
            cached_tokens=_count(usage.get("prompt_tokens_details"), "cached_tokens"),
            finish_reason=None if reason is None else known_finish_reason(reason),
            # Of a call that was cut off nobody can say what it would have been.
            tool_call_class=None if self._tools is None or reason is None else self._tools.verdict,
        )

    def _keep(self, chunk: bytes) -> None:
        self._document_bytes += len(chunk)
        if self._document_bytes > _MAX_DOCUMENT_BYTES:
            self._document = []
        elif self._document is not None:
            self._document.append(chunk)

    def _read_lines(self, lines: bytes, now_s: float) -> None:
        for line in lines.split(b"\n"):
            if not line.startswith(_DATA):
                continue  # a comment that keeps the connection alive, or the line between events
            event = line[len(_DATA) :].strip()
            if event == _DONE:
                self.is_done = True
            else:
                self.last_event_s = now_s
                self._last_events.append(event)
                self._read_event(event, now_s)

    def _read_event(self, event: bytes, now_s: float) -> None:
        if self.first_token_s is None and _has_token(document := _parsed(event)):
            self.first_token_s = now_s
            self.began_with_call = _is_call(document)
        if _ERROR_KEY in event:
            self._note_error(_parsed(event).get("error"))
        if self._tools is not None and _TOOLS_KEY in event:
            self._tools.add_deltas(_choices(_parsed(event)))

    def _note_error(self, error: Any) -> None:
        if not error:
            return
        self.has_failed = True
        self.has_told_error |= isinstance(error, dict) and isinstance(error.get("message"), str)

    def _tail(self) -> list[dict[str, Any]]:
        """The last events, newest first."""
        return [_parsed(event) for event in reversed(self._last_events)]

    def _whole(self) -> dict[str, Any]:
        document = _parsed(b"".join(self._document or ()))
        if self._offered_tools is not None:
            self._tools = ToolCalls(self._offered_tools)
            self._tools.add_messages(_choices(document))
        return document


def _parsed(text: bytes) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        document = from_json(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _choices(document: dict[str, Any]) -> list[dict[str, Any]]:
    choices = document.get("choices")
    return [it for it in choices if isinstance(it, dict)] if isinstance(choices, list) else []


def _has_token(document: dict[str, Any]) -> bool:
    """Whether an event holds something that was generated: an engine may send the role before."""
    for choice in _choices(document):
        delta = choice.get("delta")
        parts = delta.items() if isinstance(delta, dict) else ()
        if choice.get("text") or choice.get("finish_reason"):
            return True
        if any(value for key, value in parts if key != "role"):
            return True
    return False


def _is_call(document: dict[str, Any]) -> bool:
    """Whether an event holds a part of a tool call."""
    deltas = (choice.get("delta") for choice in _choices(document))
    return any(isinstance(delta, dict) and delta.get("tool_calls") for delta in deltas)


def _usage(document: dict[str, Any]) -> dict[str, Any] | None:
    usage = document.get("usage")
    return usage if isinstance(usage, dict) else None


def _finish_reason(document: dict[str, Any]) -> str | None:
    reasons = (choice.get("finish_reason") for choice in _choices(document))
    return next((it for it in reasons if isinstance(it, str)), None)


def _count(holder: Any, name: str) -> int | None:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and value >= 0 else None


def _first(values: Iterator[Any]) -> Any:
    return next((value for value in values if value is not None), None)
