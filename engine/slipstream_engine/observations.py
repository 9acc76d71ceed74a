"""Finished requests as counts only, newest few thousand: never a word of text, never a tenant."""

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

_CAPACITY = 4096


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished request. `session` is the gateway's hash; None where no gateway sent one."""

    finished_at_unix_s: float
    session: str | None
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    finish_reason: str | None
    error_class: str | None
    is_disconnect: bool


class ObservationRing:
    """Numbered from 1; a reader that comes too late learns how many it missed."""

    def __init__(self) -> None:
        self._ring: deque[tuple[int, Observation]] = deque(maxlen=_CAPACITY)
        self._last = 0

    def add(self, observation: Observation) -> None:
        self._last += 1
        self._ring.append((self._last, observation))

    def after(self, number: int) -> dict[str, Any]:
        oldest = self._ring[0][0] if self._ring else self._last + 1
        return {
            "last": self._last,
            "missed": max(0, oldest - 1 - number),
            "observations": [
                {"number": index, **asdict(observation)}
                for index, observation in self._ring
                if index > number
            ],
        }
