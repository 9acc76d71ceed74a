"""Finished requests as counts: a bounded ring that the judge reads by number.

Holds no text and no raw session. A field that this gateway has no source for is absent.
"""

from collections import deque
from collections.abc import Set
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counted them in its answer."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished request. `time_s` is when it ended, since the epoch; `session` is keyed."""

    time_s: float
    namespace: str
    model: str
    track: str
    revision: str
    session: str
    status: int
    duration_s: float
    streamed: bool
    disconnect: bool
    ttft_s: float | None = None
    error_class: str | None = None
    usage: Usage | None = None


class Ring:
    """The newest observations, numbered from 1 in the order they ended."""

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
        fresh = [(id_, it) for id_, it in self._items if id_ > last_seen]
        page = [(id_, it) for id_, it in fresh if namespaces is None or it.namespace in namespaces][
            :limit
        ]
        is_cut = len(page) == limit
        return {
            "instance": self._instance,
            "next": page[-1][0] if is_cut else self._last_id,
            "lost": max(0, oldest - last_seen - 1),
            "observations": [_document(id_, it) for id_, it in page],
        }


def _document(id_: int, observation: Observation) -> dict[str, Any]:
    fields = asdict(observation)
    usage = fields.pop("usage") or {}
    document = {"id": id_, **fields, **usage}
    return {key: value for key, value in document.items() if value is not None}
