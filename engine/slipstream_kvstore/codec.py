"""What an engine and the cache say to each other, as bytes. Knows no socket and allocates nothing.

    message  = header, then what its kind says; little-endian
    HELLO    → token (`count` bytes)                  ← max keys u32, max page bytes u32
    EXISTS   → `count` keys                           ← `count` bytes, 0 or 1
    GET      → `count` keys                           ← `count` × (found head, page)
    SET      → tenant, `count` × (page head, page)    ← `count` bytes, a `Stored` each

Each side knows from a checked header how many bytes come next, so a limit is checked before
anything is allocated. A reply repeats kind, request id and count; one whose status is not OK
repeats nothing, has nothing behind it and ends the connection. The header's 16 bytes are the same
in every version.

Errors: WireError ─ VersionError
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import xxhash

from slipstream_kvstore.keys import KEY_BYTES, TENANT_BYTES

VERSION = 1
MAX_TOKEN_BYTES = 1024
_MAGIC = b"SLKV"

# magic, version, kind, status, request id, count
_HEADER = struct.Struct("<4sHBBII")
_HELLO = struct.Struct("<II")
# state, three bytes of nothing, page length, checksum
_FOUND_HEAD = struct.Struct("<B3xIQ")
# key, page length, checksum
_PAGE_HEAD = struct.Struct(f"<{KEY_BYTES}sIQ")

HEADER_BYTES = _HEADER.size
HELLO_BYTES = _HELLO.size
FOUND_HEAD_BYTES = _FOUND_HEAD.size
PAGE_HEAD_BYTES = _PAGE_HEAD.size

Member = TypeVar("Member", bound=IntEnum)


class WireError(Exception):
    """The peer said something that the protocol does not allow."""


class VersionError(WireError):
    """The peer speaks another version."""


class Kind(IntEnum):
    HELLO = 1
    EXISTS = 2
    GET = 3
    SET = 4


class Status(IntEnum):
    """Of a whole reply. A request carries OK."""

    OK = 0
    UNAUTHORIZED = 1
    UNSUPPORTED_VERSION = 2
    INVALID = 3


class Found(IntEnum):
    """What became of one key of a GET."""

    MISS = 0
    HIT = 1
    # There, but too many bytes are on their way already.
    BUSY = 2


class Stored(IntEnum):
    """What became of one page of a SET."""

    STORED = 0
    # Larger than the whole store or than its tenant's share.
    TOO_LARGE = 1
    # Too many bytes are on their way already.
    BUSY = 2
    # What arrived does not have the checksum that was sent.
    CORRUPT = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one server; it tells them in its reply to HELLO."""

    max_keys: int
    max_page_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    kind: Kind
    request_id: int
    count: int
    status: Status = Status.OK


@dataclass(frozen=True, slots=True)
class FoundHead:
    """`length`: bytes of the page that follows; 0 unless `state` is HIT."""

    state: Found
    length: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class PageHead:
    key: bytes
    length: int
    checksum: int


def checksum(key: bytes, page: bytes | bytearray | memoryview) -> int:
    """Of a page's bytes under its key: a whole page that stands under another's key fails too.

    Against damage, not against attackers: xxh3 of 64 bits.
    """
    return xxhash.xxh3_64_intdigest(page, int.from_bytes(key[:8], "little"))


def pack_header(header: Header) -> bytes:
    return _HEADER.pack(
        _MAGIC, VERSION, header.kind, header.status, header.request_id, header.count
    )


def parse_header(data: bytes) -> Header:
    """From HEADER_BYTES bytes. Raises WireError, VersionError."""
    magic, version, kind, status, request_id, count = _unpack(_HEADER, data)
    if magic != _MAGIC:
        raise WireError("not this protocol")
    if version != VERSION:
        raise VersionError(f"version {version}, not {VERSION}")
    return Header(_member(Kind, kind), request_id, count, _member(Status, status))


def request_bytes(header: Header, limits: Limits) -> int:
    """How many bytes of a request follow its header, up to the first page. Raises WireError."""
    if header.status is not Status.OK:
        raise WireError("a request with the status of a refusal")
    most = MAX_TOKEN_BYTES if header.kind is Kind.HELLO else limits.max_keys
    if not 1 <= header.count <= most:
        raise WireError(f"{header.kind.name} with a count of {header.count}, not 1 to {most}")
    if header.kind is Kind.HELLO:
        return header.count
    return TENANT_BYTES if header.kind is Kind.SET else header.count * KEY_BYTES


def check_reply(reply: Header, request: Header) -> None:
    """Raises WireError when the reply belongs to another request."""
    told = (reply.kind, reply.request_id, reply.count)
    if told != (request.kind, request.request_id, request.count):
        raise WireError(f"a reply to {told}, not to {request}")


def pack_limits(limits: Limits) -> bytes:
    return _HELLO.pack(limits.max_keys, limits.max_page_bytes)


def parse_limits(data: bytes) -> Limits:
    """Raises WireError."""
    max_keys, max_page_bytes = _unpack(_HELLO, data)
    if not max_keys or not max_page_bytes:
        raise WireError("a server that takes nothing")
    return Limits(max_keys, max_page_bytes)


def pack_keys(keys: Sequence[bytes]) -> bytes:
    return b"".join(keys)


def parse_keys(data: bytes) -> list[bytes]:
    """Raises WireError."""
    if len(data) % KEY_BYTES:
        raise WireError(f"{len(data)} bytes of keys")
    return [data[at : at + KEY_BYTES] for at in range(0, len(data), KEY_BYTES)]


def pack_found_head(head: FoundHead) -> bytes:
    return _FOUND_HEAD.pack(head.state, head.length, head.checksum)


def parse_found_head(data: bytes, limits: Limits) -> FoundHead:
    """Raises WireError, also for a page beyond the limit."""
    state, length, check = _unpack(_FOUND_HEAD, data)
    head = FoundHead(_member(Found, state), length, check)
    least, most = (1, limits.max_page_bytes) if head.state is Found.HIT else (0, 0)
    if not least <= length <= most:
        raise WireError(f"{head.state.name} with {length} bytes, not {least} to {most}")
    return head


def pack_page_head(head: PageHead) -> bytes:
    return _PAGE_HEAD.pack(head.key, head.length, head.checksum)


def parse_page_head(data: bytes, limits: Limits) -> PageHead:
    """Raises WireError, also for a page beyond the limit."""
    head = PageHead(*_unpack(_PAGE_HEAD, data))
    if not 1 <= head.length <= limits.max_page_bytes:
        raise WireError(f"a page of {head.length} bytes, not 1 to {limits.max_page_bytes}")
    return head


def pack_bits(are_there: Sequence[bool]) -> bytes:
    return bytes(are_there)


def parse_bits(data: bytes) -> list[bool]:
    """Raises WireError."""
    if any(byte > 1 for byte in data):
        raise WireError("an answer that is neither yes nor no")
    return [byte == 1 for byte in data]


def pack_stored(results: Sequence[Stored]) -> bytes:
    return bytes(results)


def parse_stored(data: bytes) -> list[Stored]:
    """Raises WireError."""
    return [_member(Stored, byte) for byte in data]


def _unpack(form: struct.Struct, data: bytes) -> tuple[Any, ...]:
    if len(data) != form.size:
        raise WireError(f"{len(data)} bytes, not {form.size}")
    return form.unpack(data)


def _member(kind: type[Member], value: int) -> Member:
    try:
        return kind(value)
    except ValueError:
        raise WireError(f"no {kind.__name__} {value}") from None
