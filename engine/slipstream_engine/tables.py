"""Which pages the tokens of each sequence stand in: matching, growing, copy on write, sealing."""

from slipstream_engine.batch import Chunk
from slipstream_engine.pages import PagePool
from slipstream_engine.sequences import Sequence


class PageTables:
    """Moves pages between the pool and sequences; decides nothing about who may have them.

    Of two sequences that hold a page, none writes to it: full pages are never written again, and
    a partly filled one is copied before its first further token, save by its last holder.
    """

    def __init__(self, pool: PagePool, page_tokens: int, prefix_cache: bool) -> None:
        self._pool = pool
        self._page_tokens = page_tokens
        self._prefix_cache = prefix_cache
        self._copies: list[tuple[int, int]] = []

    def match(self, sequence: Sequence) -> list[int]:
        """The indexed pages of its longest cached prefix.

        Never of all its tokens: the last one must be computed, for its logits.
        """
        found: list[int] = []
        if not self._prefix_cache:
            return found
        for index in range((len(sequence.tokens) - 1) // self._page_tokens):
            page = self._pool.find(sequence.key(index, self._page_tokens))
            if page is None:
                break
            found.append(page)
        return found

    def num_needed(self, sequence: Sequence, matched: list[int]) -> int:
        """Available pages that `place` would take: new ones, and cached ones that it holds."""
        num_new = -(-len(sequence.tokens) // self._page_tokens) - len(matched)
        return num_new + sum(not self._pool.num_holders(page) for page in matched)

    def place(self, sequence: Sequence, matched: list[int]) -> None:
        """Pages for all its tokens, of which the matched ones are computed.

        Raises ValueError where fewer than `num_needed` are available.
        """
        # Held first: what is held is not given up for the new ones.
        self._pool.hold(matched)
        num_new = -(-len(sequence.tokens) // self._page_tokens) - len(matched)
        taken = self._pool.allocate(num_new, matched[-1] if matched else None)
        if taken is None:
            raise ValueError(f"{num_new} pages, but {self._pool.num_available} are available")
        sequence.pages = matched + taken
        sequence.num_sealed = len(matched)
        sequence.num_computed = len(matched) * self._page_tokens

    def grow(self, sequence: Sequence) -> bool:
        """A page for its newest token that is its own to write to; or no change."""
        pages = sequence.pages
        if len(pages) * self._page_tokens < len(sequence.tokens):
            taken = self._pool.allocate(1, pages[-1])
            if taken is None:
                return False
            pages.append(taken[0])
            return True
        return not sequence.is_tail_shared or self._part(sequence)

    def grow_for(self, sequence: Sequence, num_drafted: int) -> int:
        """Pages for a draft behind its newest token, which has its own: how much of it fits.

        Nobody gives anything up for it but pages that are cached.
        """
        size, pages = self._page_tokens, sequence.pages
        room = len(pages) * size - len(sequence.tokens)
        wanted = -(-(num_drafted - room) // size)
        if wanted > 0:
            taken = self._pool.allocate(min(wanted, self._pool.num_available), pages[-1])
            pages += taken or ()
        return min(num_drafted, len(pages) * size - len(sequence.tokens))

    def moves(self, chunk: Chunk, rows: list[int]) -> list[tuple[int, int]]:
        """How the accepted path of a tree draws together: (source, target) rows of the pool.

        rows: of the chunk, in the order in which they belong; nothing for those of a chain.
        """
        size, pages = self._page_tokens, chunk.pages
        pairs = [
            (chunk.start + row, chunk.start + place)
            for place, row in enumerate(rows)
            if row != place
        ]
        return [
            (pages[one // size] * size + one % size, pages[two // size] * size + two % size)
            for one, two in pairs
        ]

    def shrink(self, sequence: Sequence) -> None:
        """Pages behind its last token go back: what they hold of a draft was not accepted."""
        num_kept = -(-len(sequence.tokens) // self._page_tokens)
        if len(sequence.pages) > num_kept:
            self._pool.release(sequence.pages[num_kept:])
            del sequence.pages[num_kept:]

    def share(self, sequence: Sequence, fork: Sequence) -> None:
        """A fork holds the pages of all computed tokens too."""
        self._pool.hold(sequence.pages)
        fork.pages = sequence.pages.copy()
        fork.num_computed = sequence.num_computed
        fork.num_sealed = sequence.num_sealed
        if sequence.num_computed % self._page_tokens:
            sequence.is_tail_shared = fork.is_tail_shared = True

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """The copies that the next forward pass needs, as (source, target).

        Until here a source has kept the hold of whoever left it, so it was not given to anyone:
        no page is a source and a target, and their order means nothing.
        """
        copies = tuple(self._copies)
        self._copies.clear()
        self._pool.release([source for source, _ in copies])
        return copies

    def seal(self, sequence: Sequence) -> None:
        """Index its pages that are full and computed; the same page of another is taken over."""
        if not self._prefix_cache:
            return
        pages = sequence.pages
        for index in range(sequence.num_sealed, sequence.num_computed // self._page_tokens):
            key = sequence.key(index, self._page_tokens)
            parent = pages[index - 1] if index else None
            pages[index] = self._pool.seal(pages[index], key, parent)
            sequence.num_sealed = index + 1

    def release(self, sequence: Sequence) -> None:
        """Its pages go back; the sealed ones stay cached, and it needs no copy any more."""
        for copy in [one for one in self._copies if one[1] in sequence.pages]:
            self._copies.remove(copy)
            self._pool.release(copy[:1])
        self._pool.release(sequence.pages)
        sequence.pages = []
        sequence.num_sealed = sequence.num_computed = 0
        sequence.is_tail_shared = False

    def _part(self, sequence: Sequence) -> bool:
        page = sequence.pages[-1]
        num_left = sum(source == page for source, _ in self._copies)
        if self._pool.num_holders(page) - num_left > 1:
            taken = self._pool.allocate(1, sequence.pages[-2] if len(sequence.pages) > 1 else None)
            if taken is None:
                return False
            self._copies.append((page, taken[0]))
            sequence.pages[-1] = taken[0]
        sequence.is_tail_shared = False
        return True
