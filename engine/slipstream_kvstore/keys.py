"""Names of pages: a hash chain over tokens that starts from everything a page's bytes depend on.

Pure: no clock, no network, no process-random seed. Two processes give one page one key, and two
pages whose bytes may differ never share one.
"""

import dataclasses
import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from slipstream_kvstore.layout import PageLayout

KEY_BYTES = 32
TENANT_BYTES = 16

# blake2b's `person` keeps the three uses apart, so that no root is ever also a page's key.
_ROOT = b"slipstream/root1"
_PAGE = b"slipstream/page1"
_TENANT = b"slipstream/owner"


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """Which part of the model's KV this rank holds; ranks of one replica share no page."""

    tensor_size: int = 1
    tensor_rank: int = 0
    pipeline_size: int = 1
    pipeline_rank: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.tensor_rank < self.tensor_size:
            raise ValueError(f"tensor rank {self.tensor_rank} of {self.tensor_size}")
        if not 0 <= self.pipeline_rank < self.pipeline_size:
            raise ValueError(f"pipeline rank {self.pipeline_rank} of {self.pipeline_size}")


@dataclasses.dataclass(frozen=True, slots=True)
class Namespace:
    """Everything but the tokens that the bytes of a page depend on, and whose page it is.

    Every field, and every field of what it holds, enters the key by its name: one added here or in
    `PageLayout` cannot be forgotten. KV dtype and page size stand in `layout`.
    """

    # Of everything in the checkpoint that the KV depends on: tensors and configuration.
    weights_digest: str
    layout: PageLayout
    split: Split
    # None: the reference operations, without a bundle.
    kernel_bundle: str | None
    engine_build: str
    # Of the adapter's content, not its name. None: the base model.
    adapter: str | None = None
    # Set by the gateway from the tenant, never by a client. None: pages that all may share.
    tenant_salt: str | None = None

    def __post_init__(self) -> None:
        if not self.weights_digest or not self.engine_build:
            raise ValueError("a namespace needs a weights digest and an engine build")


def root_key(namespace: Namespace) -> bytes:
    """The parent of every first page of a namespace. Compute it once a namespace, not a request."""
    return blake2b(encode(namespace), digest_size=KEY_BYTES, person=_ROOT).digest()


def next_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of the page that holds `token_ids` after the page (or root) `parent`.

    The parent has a fixed length and a token four bytes, so no two inputs have one encoding.
    Raises ValueError for a parent that is no key or a page without tokens, OverflowError for a
    token id outside 0 … 2³²-1, TypeError for one that is no integer.
    """
    if len(parent) != KEY_BYTES or not token_ids:
        raise ValueError(f"a parent of {len(parent)} bytes and a page of {len(token_ids)} tokens")
    # In bulk: 2.2 µs for 64 tokens, 1.4 µs for 16 (2 noisy cores); token by token it is 25 µs.
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return blake2b(parent + packed.tobytes(), digest_size=KEY_BYTES, person=_PAGE).digest()


def tenant_id(tenant_salt: str | None) -> bytes:
    """Whose bytes a stored page counts as; it does not tell the salt to the store."""
    return blake2b(_frame(tenant_salt), digest_size=TENANT_BYTES, person=_TENANT).digest()


def encode(namespace: Namespace) -> bytes:
    """Different namespaces have different encodings: typed, tagged and length-prefixed."""
    return _frame(_named(namespace))


def _named(value: Any) -> Any:
    """A dataclass as (type, (field, value) …), sorted: the order of definition has no meaning."""
    if isinstance(value, tuple):
        return tuple(_named(item) for item in value)
    if not dataclasses.is_dataclass(value):
        return value
    names = sorted(field.name for field in dataclasses.fields(value))
    return (type(value).__name__, *((name, _named(getattr(value, name))) for name in names))


def _frame(value: Any) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, tuple):
        return b"t" + _length(len(value)) + b"".join(_frame(item) for item in value)
    if isinstance(value, str):
        # A salt that is no Unicode text is still a salt; it must not end the engine.
        text = value.encode("utf-8", "surrogatepass")
        return b"s" + _length(len(text)) + text
    if isinstance(value, int):
        digits = b"%d" % value
        return b"i" + _length(len(digits)) + digits
    raise TypeError(f"{type(value).__name__} has no encoding in a key")


def _length(count: int) -> bytes:
    return count.to_bytes(4, "big")
