"""What one page of the key-value cache is made of; knows no tensors and no storage.

A page is a set of pools. It holds the same tokens in every pool and is complete only when every
pool's part is there.
"""

from dataclasses import dataclass
from typing import Literal

KvDtype = Literal["float32", "bfloat16"]
_ITEM_BYTES: dict[KvDtype, int] = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """One tensor's part of a page. `token_shape`: [layers, KV heads, head_dim] of one token."""

    name: str
    dtype: KvDtype
    token_shape: tuple[int, ...]

    @property
    def token_bytes(self) -> int:
        count = _ITEM_BYTES[self.dtype]
        for dimension in self.token_shape:
            count *= dimension
        return count


@dataclass(frozen=True, slots=True)
class PageLayout:
    """`page_tokens` tokens in each of the pools."""

    page_tokens: int
    pools: tuple[PoolLayout, ...]

    def __post_init__(self) -> None:
        if self.page_tokens < 1 or not self.pools:
            raise ValueError("a page holds one token or more in one pool or more")
        if len({pool.name for pool in self.pools}) != len(self.pools):
            raise ValueError("two pools have one name")
        if any(dimension < 1 for pool in self.pools for dimension in pool.token_shape):
            raise ValueError("a pool's token shape has an empty dimension")

    @property
    def page_bytes(self) -> int:
        """All pools together."""
        return self.page_tokens * sum(pool.token_bytes for pool in self.pools)

    def num_pages(self, budget_bytes: int) -> int:
        """Whole pages that fit into a budget."""
        return budget_bytes // self.page_bytes

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_tokens)
