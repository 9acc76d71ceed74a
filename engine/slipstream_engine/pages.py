"""Which page is free, used or cached, and how many hold it: integers only, no tensors."""

from collections.abc import Iterable, Mapping, Sequence

from slipstream_engine.prefix import PrefixIndex
from slipstream_engine.runs import FreeRuns

# Attention reads a run of consecutive pages in one piece. Pages a sequence on average and in how
# many runs, 5,000 steps of chats and agents (half of them behind one shared prefix), pages of 16
# tokens: 118 in 7.0 with 4,096 pages for 16 sequences, 118 in 13 with 2,048; always the first free
# page instead: 48 and 59. The prefix hit rate pays with 0 and 3 points of 82 and 67.
#
# A sequence that starts behind one that grows leaves it so much of the gap.
_ROOM_PAGES = 32
# What a sequence starts in is so long, where giving up a few more cached pages makes it so; that
# many more are free then: a thirty-second of the pool, and no more than take 0.2 ms.
_RUN_PAGES = 16
_MAX_SPARE_PAGES = 128


class PagePool:
    """A fixed number of pages.

    free: nobody's, its content is nothing. used: held by one sequence or several.
    cached: held by nobody, but in the prefix index; it can be held again or be given up.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"{num_pages} pages")
        self.num_pages = num_pages
        self._holders = [0] * num_pages
        self._free = FreeRuns(num_pages)
        self._index = PrefixIndex()

    @property
    def num_free(self) -> int:
        return self._free.num_free

    @property
    def num_cached(self) -> int:
        return self._index.num_resting

    @property
    def num_used(self) -> int:
        return self.num_pages - self._free.num_free - self._index.num_resting

    @property
    def num_available(self) -> int:
        """Pages that can be allocated: every cached one can be given up."""
        return self._free.num_free + self._index.num_resting

    def num_holders(self, page: int) -> int:
        return self._holders[page]

    def find(self, key: bytes) -> int | None:
        """The page that holds the tokens of a key."""
        return self._index.find(key)

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` pages for one holder, or None and no change when fewer are available.

        As few runs of consecutive numbers as possible: attention reads a run in one piece.
        `after`: the page that they follow in their sequence; its successors are best.
        """
        if count > self.num_available:
            return None
        free, pages = self._free, list[int]()
        if after is not None:
            length = min(free.length_at(after + 1), count)
            if length:
                free.take(after + 1, 0, length)
                pages.extend(range(after + 1, after + 1 + length))
        while len(pages) < count:
            self._take_run(count - len(pages), pages)
        for page in pages:
            self._holders[page] = 1
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """One holder more for each, which are used or cached."""
        for page in pages:
            if not self._holders[page]:
                self._index.wake(page)
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each page of a chain, the last one first.

        Raises ValueError for a page that nobody holds.
        """
        for page in reversed(pages):
            holders = self._holders[page] - 1
            if holders < 0:
                raise ValueError(f"page {page} is not in use")
            self._holders[page] = holders
            if holders:
                continue
            if page in self._index:
                self._index.rest(page)
            else:
                self._free.put(page)

    def seal(self, page: int, key: bytes, parent: int | None) -> int:
        """A page is full and computed: from now on it is found by its key.

        When another page with the same tokens is indexed already, the holder gets that one, and
        its own is free. (So whoever holds a page holds the indexed pages before it.)
        """
        known = self._index.find(key)
        if known is None:
            self._index.enter(page, key, parent)
            return page
        self.hold((known,))
        self.release((page,))
        return known

    def check(self, held: Mapping[int, int]) -> None:
        """Raises AssertionError for a broken invariant. `held`: holders of each page, counted."""
        free, index = self._free.pages(), self._index
        resting = list(index.resting())
        used = [page for page, holders in enumerate(self._holders) if holders]
        _require(len(free) == self._free.num_free, "free pages are miscounted", free)
        everything = sorted(free + resting + used)
        _require(everything == list(range(self.num_pages)), "free + used + cached", everything)
        counted = {page: self._holders[page] for page in used}
        _require(counted == dict(held), "holders", (counted, held))
        children = dict.fromkeys((page for page, _ in index.nodes()), 0)
        since = {page: number for number, page in enumerate(resting)}
        for page, node in index.nodes():
            _require(index.find(node.key) == page, "a key leads elsewhere", page)
            _require(page in since or self._holders[page] > 0, "indexed and free", page)
            if node.parent is None:
                continue
            _require(node.parent in children, "an orphan", page)
            children[node.parent] += 1
            is_right = self._holders[node.parent] >= self._holders[page]
            _require(is_right, "a page is held without its parent", page)
            # Where both rest, the parent goes later.
            is_right = since.get(node.parent, self.num_pages) > since.get(page, -1)
            _require(is_right, "a parent would go before its child", (node.parent, page))
        for page, node in index.nodes():
            _require(children[page] == node.num_children, "children", (page, node))

    def nodes(self) -> dict[int, tuple[bytes, int | None]]:
        """Key and parent of every indexed page."""
        return {page: (node.key, node.parent) for page, node in self._index.nodes()}

    def _take_run(self, count: int, pages: list[int]) -> None:
        """Up to `count` pages in one run, appended to `pages`."""
        free = self._free
        self._reclaim(count)
        first, length = free.long_run()
        if length <= count:
            offset, count = 0, length
        else:
            offset = min((length - count) // 2, _ROOM_PAGES) if self._grows_into(first) else 0
        free.take(first, offset, count)
        pages.extend(range(first + offset, first + offset + count))

    def _grows_into(self, page: int) -> bool:
        """Whether the page before is somebody's and not full yet, as far as that is known here."""
        return page > 0 and self._holders[page - 1] > 0 and page - 1 not in self._index

    def _reclaim(self, count: int) -> None:
        """Give up cached pages until `count` are free, and a few more for a longer run of them."""
        free, index = self._free, self._index
        spare = min(self.num_pages // 32, _MAX_SPARE_PAGES)
        length = min(max(count, _RUN_PAGES), spare)
        while free.num_free < count or (
            free.num_free < count + spare and index.num_resting and free.long_run()[1] < length
        ):
            free.put(index.evict())


def _require(is_true: bool, what: str, values: object) -> None:
    if not is_true:
        raise AssertionError(f"{what}: {values}")
