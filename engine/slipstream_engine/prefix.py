"""The prefix index: which page holds the tokens of which prefix; integers and keys only.

A radix tree whose edges are whole pages. A page's key is the hash of its tokens and of everything
before them (`slipstream_kvstore.keys`), so that one dictionary finds any node, and the tree itself
is just each page's parent.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Node:
    """An indexed page. `parent`: the page before it; None at the start of a chain."""

    key: bytes
    parent: int | None
    num_children: int = 0


class PrefixIndex:
    """Keys to pages, and in which order pages that nobody holds are given up.

    Whoever holds a page holds its parent too, and lets go of the page first. So a page never rests
    longer than its children do: taking the longest-resting page is least recently used and leaves
    first at once, without a search.
    """

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._nodes: dict[int, Node] = {}
        self._resting: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, page: int) -> bool:
        return page in self._nodes

    @property
    def num_resting(self) -> int:
        return len(self._resting)

    def resting(self) -> Iterator[int]:
        """The pages that nobody holds, the next victim first."""
        return iter(self._resting)

    def nodes(self) -> Iterator[tuple[int, Node]]:
        return iter(self._nodes.items())

    def find(self, key: bytes) -> int | None:
        return self._pages.get(key)

    def enter(self, page: int, key: bytes, parent: int | None) -> None:
        """Index a page that is held. Raises ValueError for a page or key that is there already."""
        if page in self._nodes or key in self._pages:
            raise ValueError(f"page {page} or its key is in the index already")
        if parent is not None:
            self._nodes[parent].num_children += 1
        self._nodes[page] = Node(key, parent)
        self._pages[key] = page

    def rest(self, page: int) -> None:
        """Nobody holds this page any more."""
        self._resting[page] = None

    def wake(self, page: int) -> None:
        """Somebody holds this page again."""
        del self._resting[page]

    def evict(self) -> int:
        """Forget the page that has rested longest.

        Raises KeyError when none rests, ValueError for a page that others build on.
        """
        page, _ = self._resting.popitem(last=False)
        node = self._nodes.pop(page)
        if node.num_children:
            raise ValueError(f"page {page} is given up before its {node.num_children} children")
        del self._pages[node.key]
        if node.parent is not None:
            self._nodes[node.parent].num_children -= 1
        return page
