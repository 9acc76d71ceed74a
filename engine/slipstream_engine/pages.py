"""Which page is free, used or cached, and how many hold it: integers only, no tensors."""

from collections.abc import Iterable, Mapping, Sequence

from slipstream_engine.prefix import PrefixIndex
from slipstream_engine.runs import FreeRuns

# A sequence that starts in a gap leaves this much of it to the one before, which grows there.
_ROOM_PAGES = 32
# Evicting a little more than is needed gives the next pages in one piece.
_RECLAIM_PAGES = 32


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
            # Whoever holds a page holds its parent; where both rest, the parent goes later.
            _require(
                since.get(node.parent, self.num_pages) > since.get(page, self.num_pages - 1),
                "a parent would go before its child",
                (node.parent, page),
            )
            held_by = self._holders[node.parent], self._holders[page]
            _require(held_by[0] >= held_by[1], "a page is held without its parent", page)
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
            # Nothing grows into the pool's first page.
            offset = min((length - count) // 2, _ROOM_PAGES) if first else 0
        free.take(first, offset, count)
        pages.extend(range(first + offset, first + offset + count))

    def _reclaim(self, count: int) -> None:
        """Give up cached pages until `count` are free."""
        if self._free.num_free >= count:
            return
        extra = min(_RECLAIM_PAGES, self.num_pages // 32)
        count = min(count + extra, self.num_available)
        while self._free.num_free < count:
            self._free.put(self._index.evict())


def _require(is_true: bool, what: str, values: object) -> None:
    if not is_true:
        raise AssertionError(f"{what}: {values}")
