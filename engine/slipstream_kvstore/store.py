"""Pages in memory, least recently used out first, bounded in bytes for all and for each tenant.

Decides and holds; knows no clock and no network. Pages are immutable: who is sending one keeps it
alive after it was evicted or replaced.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

# What a page costs beside its bytes: 840 measured for one-byte pages of a tenant each (a test
# measures again). The store's limit holds for its memory, not only for what was sent.
PAGE_OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Page:
    """`body` belongs to the page: nobody writes to it any more."""

    body: bytes | bytearray
    checksum: int
    tenant: bytes

    @property
    def cost_bytes(self) -> int:
        return cost_bytes(len(self.body))


@dataclass(frozen=True, slots=True)
class Evicted:
    """Pages that went, by the reason why."""

    by_capacity: int = 0
    by_quota: int = 0


@dataclass(slots=True)
class _Share:
    """One tenant's keys, least recently used first."""

    keys: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    used_bytes: int = 0


def cost_bytes(num_bytes: int) -> int:
    """What a page of so many bytes counts."""
    return num_bytes + PAGE_OVERHEAD_BYTES


class Store:
    """`tenant_max_bytes`: a tenant over it loses pages of its own, never another's."""

    def __init__(self, max_bytes: int, tenant_max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self._tenant_max_bytes = tenant_max_bytes
        self._pages: OrderedDict[bytes, Page] = OrderedDict()
        self._shares: dict[bytes, _Share] = {}
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, key: bytes) -> Page | None:
        """Does not count as a use: `touch` does."""
        return self._pages.get(key)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Those that are there were used now, the first of them last.

        Keys come in the order of the chain, and a page is worth nothing without those before it:
        the end of a prefix must go before its beginning.
        """
        for key in reversed(keys):
            page = self._pages.get(key)
            if page is not None:
                self._pages.move_to_end(key)
                self._shares[page.tenant].keys.move_to_end(key)

    def admits(self, num_bytes: int) -> bool:
        """Whether a page of so many bytes can be stored at all."""
        share_bytes = self._tenant_max_bytes
        return cost_bytes(num_bytes) <= self.max_bytes and (
            share_bytes is None or cost_bytes(num_bytes) <= share_bytes
        )

    def put(self, key: bytes, page: Page) -> Evicted:
        """Store a page that `admits` allows; the last one under a key wins.

        (So a page that was damaged here is healed by the engine that had to compute it again.)
        """
        if not self.admits(len(page.body)):
            raise ValueError(f"a page of {len(page.body)} bytes in a store that does not admit it")
        if key in self._pages:
            self._remove(key)
        share = self._shares.setdefault(page.tenant, _Share())
        by_quota = by_capacity = 0
        share_bytes = self._tenant_max_bytes
        while share_bytes is not None and share.used_bytes + page.cost_bytes > share_bytes:
            self._remove(next(iter(share.keys)))
            by_quota += 1
        while self.used_bytes + page.cost_bytes > self.max_bytes:
            self._remove(next(iter(self._pages)))
            by_capacity += 1
        # Evicting may have emptied the share, and an empty one is not kept.
        share = self._shares.setdefault(page.tenant, share)
        self._pages[key] = page
        share.keys[key] = None
        share.used_bytes += page.cost_bytes
        self.used_bytes += page.cost_bytes
        return Evicted(by_capacity, by_quota)

    def tenant_used_bytes(self, tenant: bytes) -> int:
        share = self._shares.get(tenant)
        return 0 if share is None else share.used_bytes

    @property
    def num_tenants(self) -> int:
        return len(self._shares)

    def _remove(self, key: bytes) -> None:
        page = self._pages.pop(key)
        share = self._shares[page.tenant]
        del share.keys[key]
        share.used_bytes -= page.cost_bytes
        self.used_bytes -= page.cost_bytes
        if not share.keys:
            del self._shares[page.tenant]
