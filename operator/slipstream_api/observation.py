"""A finished request as counts: the record that gateways and engines keep, and the ring of them.

`GET /internal/v1/observations?after=&limit=` answers with `Ring.after`. Nothing here holds text, a
tenant or a raw session. A field that has no source is absent from the answer: not null, not 0.
"""

from collections import deque
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final

PAGE_LIMIT: Final = 1000
_OTHER: Final = "other"
_FINISH_REASONS: Final = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter", "abort"}
)
# Ten to the eighteenth: no request number is longer, and Python reads no endless ones.
_MAX_DIGITS: Final = 18
_FLOAT_DIGITS: Final = 6


class ErrorClass(StrEnum):
    """Why a request did not end as it should. `ENGINE_*` count against the revision that answered;
    `ENGINE_REFUSED` says only that it was full, loading or draining."""

    ENGINE_UNREACHABLE = "engine_unreachable"  # no connection
    ENGINE_DROPPED = "engine_dropped"  # its connection ended before an answer
    ENGINE_TIMEOUT = "engine_timeout"  # silent for too long, before or in an answer
    ENGINE_BROKE = "engine_broke"  # the answer ended without its end
    ENGINE_FAILED = "engine_failed"  # it said so itself: an error event, or a status from 500
    ENGINE_REFUSED = "engine_refused"  # 429 or 503
    CLIENT_DISCONNECT = "client_disconnect"
    GATEWAY_SHUTDOWN = "gateway_shutdown"  # cut by the gateway's drain deadline
    GATEWAY_FAILED = "gateway_failed"  # a fault of the gateway itself


class ToolCallClass(StrEnum):
    """What became of the tools that a request offered; the worst of several calls counts."""

    NONE = "none"  # offered, not called
    VALID = "valid"  # every call names an offered tool, with a JSON object
    UNKNOWN_NAME = "unknown_name"
    INVALID_JSON = "invalid_json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One finished request as its writer saw it. None: no source, absent from the answer.

    `session` is keyed by the namespace's internal token. `status` is what the request came to: the
    answer's own code, 499 where the client left, the code of its error where an answer broke off.
    `tpot_ms` is the mean time between two output tokens. `script` is the share of characters in
    a script that nothing in the request used, `repetition` of tokens inside a loop: 0 to 1.
    """

    time_unix_s: float
    disconnect: bool
    namespace: str | None = None
    model: str | None = None
    track: str | None = None
    revision: str | None = None
    session: str | None = None
    status: int | None = None
    streamed: bool | None = None
    duration_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    tool_call_class: ToolCallClass | None = None
    drafts: int | None = None
    accepted: int | None = None
    repetition: float | None = None
    script: float | None = None
    error_class: ErrorClass | None = None

    def document(self) -> dict[str, Any]:
        """As it is sent: what is known, floats to six digits."""
        return {
            name: round(value, _FLOAT_DIGITS) if isinstance(value, float) else value
            for name, value in asdict(self).items()
            if value is not None
        }


def known_finish_reason(reason: str) -> str:
    """One of OpenAI's finish reasons, or `other`: whatever an engine says, few values are kept."""
    return reason if reason in _FINISH_REASONS else _OTHER


class Ring:
    """The newest observations, numbered from 1 in the order they ended. One thread owns it."""

    def __init__(self, size: int, instance: str) -> None:
        self._items: deque[tuple[int, Observation]] = deque(maxlen=size)
        self._last_id = 0
        # Numbers start anew with the process: a reader sees by this that they did.
        self._instance = instance

    def append(self, observation: Observation) -> None:
        self._last_id += 1
        self._items.append((self._last_id, observation))

    def after(
        self, last_seen: int, limit: int, namespaces: Set[str] | None = None
    ) -> dict[str, Any]:
        """Up to `limit` observations with larger numbers, of some namespaces or (None) of all.

        `next` is what to ask with next time; `lost` counts those that the ring no longer has.
        """
        if last_seen > self._last_id:
            last_seen = 0  # a number of the process before this one
        oldest = self._items[0][0] if self._items else self._last_id + 1
        fresh = islice(self._items, max(0, last_seen + 1 - oldest), None)
        wanted = (
            (id_, it) for id_, it in fresh if namespaces is None or it.namespace in namespaces
        )
        page = list(islice(wanted, limit))
        is_cut = len(page) == limit
        return {
            "instance": self._instance,
            "next": page[-1][0] if is_cut else self._last_id,
            "lost": max(0, oldest - last_seen - 1),
            "observations": [{"id": id_, **it.document()} for id_, it in page],
        }


def read_query(query: Mapping[str, str]) -> tuple[int, int]:
    """`after` and `limit` of a request. Raises ValueError that says what they may be."""
    after = _number("after", query.get("after", "0"), at_least=0)
    limit = _number("limit", query.get("limit", str(PAGE_LIMIT)), at_least=1)
    if limit > PAGE_LIMIT:
        raise ValueError(f"limit: a whole number, 1 to {PAGE_LIMIT}")
    return after, limit


def _number(name: str, text: str, *, at_least: int) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not is_number or int(text) < at_least:
        raise ValueError(f"{name}: a whole number, {at_least} or more")
    return int(text)
