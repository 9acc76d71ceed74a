"""Which tokens stand for an answer's content, where some of its text is something else.

Knows places in the text alone: the k-th character of all that was generated.
"""

from collections import deque
from collections.abc import Iterable

from slipstream_engine.batch import Sampled


class ContentTokens:
    """`add` every token with the place at which its text ends; `take` those that are content.

    A token is content if any character of it is. One without a text of its own, a middle part of a
    character or a special token, belongs to the token before it.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[Sampled, int]] = deque()
        self._spans: deque[tuple[int, int]] = deque()
        self._start = 0
        self._was_content = True

    def add(self, sampled: Sampled, end: int) -> None:
        self._held.append((sampled, end))

    def take(
        self, spans: Iterable[tuple[int, int]], num_decided: int, *, is_last: bool = False
    ) -> tuple[Sampled, ...]:
        """What is certain by now: `spans` of content are new, in order.

        `is_last`: no text comes any more; tokens whose text was cut away are no content.
        """
        self._spans.extend(spans)
        taken = []
        while self._held and (is_last or self._held[0][1] <= num_decided):
            sampled, end = self._held.popleft()
            if end > self._start:
                self._was_content = self._touches(self._start, end)
            self._start = end
            if self._was_content:
                taken.append(sampled)
        return tuple(taken)

    def _touches(self, start: int, end: int) -> bool:
        while self._spans and self._spans[0][1] <= start:
            self._spans.popleft()
        return bool(self._spans) and self._spans[0][0] < end
