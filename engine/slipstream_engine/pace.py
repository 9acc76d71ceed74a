"""How fast the engine works, by what it has done lately; knows no clock of its own."""

import math
from collections import deque

# Places in the queue that became free, and how long one of them says something about the next.
_NUM_REMEMBERED = 64
_WINDOW_S = 60.0
_MAX_RETRY_AFTER_S = 30
_UNMEASURED_RETRY_AFTER_S = 5
# What a step counts a step later: the last dozen decide.
_DECAY = 0.9


class Pace:
    def __init__(self) -> None:
        self._freed_s: deque[float] = deque(maxlen=_NUM_REMEMBERED)
        self._prefill_tokens = 0.0
        self._prefill_s = 0.0

    def free(self, now_s: float, count: int) -> None:
        """`count` answers have ended, and so many others can begin."""
        self._freed_s.extend([now_s] * count)

    def retry_after_s(self, now_s: float, num_waiting: int) -> int:
        """When half of a full queue will have begun: earlier, most would come in vain."""
        freed = [moment for moment in self._freed_s if now_s - moment <= _WINDOW_S]
        if not freed:
            return _MAX_RETRY_AFTER_S if self._freed_s else _UNMEASURED_RETRY_AFTER_S
        per_s = len(freed) / max(now_s - freed[0], 0.1)
        return max(1, min(_MAX_RETRY_AFTER_S, math.ceil(num_waiting / 2 / per_s)))

    def prefill(self, num_prefill_tokens: int, num_sampled: int, run_s: float) -> None:
        """One step. One that was mostly decoding says nothing about prompts."""
        if num_prefill_tokens <= num_sampled:
            return
        self._prefill_tokens = self._prefill_tokens * _DECAY + num_prefill_tokens
        self._prefill_s = self._prefill_s * _DECAY + run_s

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """None until it was measured."""
        return self._prefill_tokens / self._prefill_s if self._prefill_s > 0 else None
