"""Whether there are a slot and pages for one sequence more; nothing is changed here."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence as Seq
from operator import attrgetter

from slipstream_engine.pages import PagePool
from slipstream_engine.sequences import Sequence
from slipstream_engine.tables import PageTables

_rank = attrgetter("rank")


class Room:
    """Looks at the queue of running sequences and the pool, which are the scheduler's."""

    def __init__(
        self,
        pages: PagePool,
        tables: PageTables,
        running: Seq[Sequence],
        max_running_sequences: int,
    ) -> None:
        self._pages = pages
        self._tables = tables
        self._running = running
        self._max_running_sequences = max_running_sequences

    def has(self, sequence: Sequence, matched: list[int]) -> bool:
        has_slot = len(self._running) < self._max_running_sequences
        return has_slot and self._num_missing(sequence, matched) <= 0

    def could_have(self, sequence: Sequence, matched: list[int]) -> bool:
        """Whether there is room once every running one of a worse priority is gone."""
        worse = [one for one in self._running if one.rank[0] > sequence.rank[0]]
        num_missing = self._num_missing(sequence, matched)
        if num_missing > sum(len(one.pages) for one in worse):
            return False
        # Pages that others hold too do not come back; those that match are needed themselves.
        num_holders = self._pages.num_holders
        held = Counter(page for one in worse for page in one.pages)
        num_back = sum(num_holders(page) == count for page, count in held.items())
        num_back -= sum(0 < held[page] == num_holders(page) for page in matched)
        return num_missing <= num_back

    def _num_missing(self, sequence: Sequence, matched: list[int]) -> int:
        """Pages to be had before a sequence is admitted: its own, and a reserve.

        Every running one before it may take a page in a moment, and without those the newcomer
        would have to go again at once. (A larger reserve for one that was preempted already saved
        no preemption: whoever goes finds no room again before somebody else has finished.)
        """
        reserve = bisect_left(self._running, sequence.rank, key=_rank)
        return self._tables.num_needed(sequence, matched) + reserve - self._pages.num_available
