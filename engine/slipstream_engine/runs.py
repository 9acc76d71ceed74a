"""Free pages as runs of consecutive numbers: integers only, every operation of constant cost."""


class FreeRuns:
    """Which pages are free.

    Runs are known by both of their ends, so that a page that comes back joins its neighbours
    without a search (boundary tags, Knuth, The Art of Computer Programming 1, 2.5), and by the
    power of two of their length, so that a long one is found without a search.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_free = num_pages
        self._length: dict[int, int] = {}  # by a run's first page
        self._first: dict[int, int] = {}  # by a run's last page
        # Index k holds the first pages of runs of 2ᵏ⁻¹ ≤ length < 2ᵏ; a dict keeps an order.
        self._classes: list[dict[int, None]] = [{} for _ in range(num_pages.bit_length() + 1)]
        self._filled = 0  # bit k: class k is not empty
        self._add(0, num_pages)

    def length_at(self, page: int) -> int:
        """The length of the run that begins with a page; 0 where none does."""
        return self._length.get(page, 0)

    def long_run(self) -> tuple[int, int]:
        """First page and length of a run more than half as long as the longest.

        Raises ValueError when no page is free.
        """
        if not self._filled:
            raise ValueError("no page is free")
        first = next(iter(self._classes[self._filled.bit_length() - 1]))
        return first, self._length[first]

    def take(self, first: int, offset: int, count: int) -> None:
        """Take `count` pages, `offset` pages into the run that begins with `first`."""
        rest = self._remove(first) - offset - count
        if offset:
            self._add(first, offset)
        if rest:
            self._add(first + offset + count, rest)
        self.num_free -= count

    def put(self, page: int) -> None:
        """A page is free again; the caller knows that it was not."""
        first, length = page, 1
        before = self._first.get(page - 1)
        if before is not None:
            first = before
            length += self._remove(before)
        if page + 1 in self._length:
            length += self._remove(page + 1)
        self._add(first, length)
        self.num_free += 1

    def pages(self) -> list[int]:
        """All of them, in ascending order."""
        runs = sorted(self._length.items())
        return [page for first, length in runs for page in range(first, first + length)]

    def _add(self, first: int, length: int) -> None:
        self._length[first] = length
        self._first[first + length - 1] = first
        size = length.bit_length()
        self._classes[size][first] = None
        self._filled |= 1 << size

    def _remove(self, first: int) -> int:
        length = self._length.pop(first)
        del self._first[first + length - 1]
        size = length.bit_length()
        runs = self._classes[size]
        del runs[first]
        if not runs:
            self._filled ^= 1 << size
        return length
