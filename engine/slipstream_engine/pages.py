"""Which page belongs to whom: integers only, no tensors."""

from collections.abc import Iterable


class PageAllocator:
    """A fixed number of pages; each is free or has exactly one owner."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"{num_pages} pages")
        self.num_pages = num_pages
        # Last freed, first used: pages that were never used cost no memory of the host.
        self._free = list(range(num_pages - 1, -1, -1))
        self._used: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._used)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages, or None and no change when fewer are free."""
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        self._used.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back. Raises ValueError for one that is not owned."""
        for page in pages:
            if page not in self._used:
                raise ValueError(f"page {page} is not in use")
            self._used.remove(page)
            self._free.append(page)
