"""What the scheduler asks of guides; knows no library, so that policy is tested without one."""

from collections.abc import Sequence
from typing import Protocol

from slipstream_engine.guides.spec import Guide
from slipstream_engine.spec.draft import Draft, Key


class Guides(Protocol):
    """Which tokens may follow, for every sequence whose request has a guide; nothing of others.

    Only `commit` moves a sequence's state. No method but `start` raises for what a guide does: a
    sequence whose guide fails is free from then on, and `take_failures` tells it once; whoever
    runs the steps ends its request before any more of it is told.
    """

    def start(
        self, request_id: str, guide: Guide, end_tokens: frozenset[int], min_tokens: int
    ) -> None:
        """Before anything else about the request; the rest is as in it. Raises GuideError."""
        ...

    def legal(self, key: Key, draft: Draft) -> Draft:
        """The draft without the tokens that may not stand there, and without what follows them."""
        ...

    def masks(self, key: Key, draft: Draft) -> tuple[bytes, ...]:
        """For each row what may be drawn from it, as in `Draw.allowed`.

        The first is for the token after the sequence's last one, then one for each of the draft's
        tokens, which are legal, for the one after it. They decide on end tokens too: nothing else
        needs to ban those from an answer that is still too short.
        """
        ...

    def commit(self, key: Key, tokens: Sequence[int]) -> None:
        """Exactly the tokens that became output."""
        ...

    def stop(self, request_id: str) -> None:
        """Nothing more is asked about any of its samples; one that is gone already is no error."""
        ...

    def take_failures(self) -> dict[str, str]:
        """Requests whose guide failed since this was last asked, and how."""
        ...
