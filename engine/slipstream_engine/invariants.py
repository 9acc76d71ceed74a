"""What is always true of the queues and the pages between two steps; nothing is changed here."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import attrgetter

from slipstream_engine.pages import PagePool
from slipstream_engine.sequences import Sequence


@dataclass(frozen=True, slots=True)
class Queues:
    """Both queues are sorted by rank; `requests` holds each sequence under its request's id."""

    running: Seq[Sequence]
    waiting: Seq[Sequence]
    requests: Mapping[str, Seq[Sequence]]


def check(queues: Queues, pages: PagePool, page_tokens: int, *, prefix_cache: bool) -> None:
    """Raises AssertionError for a broken one."""
    held: Counter[int] = Counter()
    nodes = pages.nodes()
    for one in queues.running:
        held.update(one.pages)
        if not _has_its_pages(one, page_tokens):
            raise AssertionError(f"sequence {one.rank}: {one.num_computed} in {one.pages}")
        if not _is_indexed(one, nodes, page_tokens if prefix_cache else None):
            raise AssertionError(f"sequence {one.rank}: sealed are {one.num_sealed}")
    pages.check(held)
    for queue in (queues.running, queues.waiting):
        if queue != sorted(queue, key=attrgetter("rank")):
            raise AssertionError(f"out of order: {[one.rank for one in queue]}")
    if any(one.pages or one.num_computed or one.is_running for one in queues.waiting):
        raise AssertionError("a waiting sequence holds pages")
    known = sorted(one.rank for some in queues.requests.values() for one in some)
    if known != sorted(one.rank for one in (*queues.running, *queues.waiting)):
        raise AssertionError(f"sequences that are in no queue or in two: {known}")


def _has_its_pages(one: Sequence, page_tokens: int) -> bool:
    is_right = one.is_running and one.num_computed < len(one.tokens)
    return is_right and len(one.pages) * page_tokens >= one.num_computed


def _is_indexed(
    one: Sequence, nodes: Mapping[int, tuple[bytes, int | None]], page_tokens: int | None
) -> bool:
    """Whether its full pages are, and no others; None: none may be."""
    if page_tokens is None:
        return one.num_sealed == 0
    is_right = one.num_sealed == one.num_computed // page_tokens
    for index, page in enumerate(one.pages[: one.num_sealed]):
        parent = one.pages[index - 1] if index else None
        is_right &= nodes[page] == (one.key(index, page_tokens), parent)
    return is_right
