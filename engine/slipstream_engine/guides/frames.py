"""What the serving process and the trial of guides say to each other."""

import struct
from typing import IO, TypeVar

import msgspec

_LENGTH = struct.Struct(">I")
_Document = TypeVar("_Document")


class Outcome(msgspec.Struct, frozen=True):
    """Of one trial: the guide's text as the rank takes it, or an error."""

    text: str = ""
    error: str = ""


def write(stream: IO[bytes], document: object) -> None:
    body = msgspec.msgpack.encode(document)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    """The next frame's body; None where the other side is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size: int = _LENGTH.unpack(head)[0]
    body = stream.read(size)
    return body if len(body) == size else None


def decode(body: bytes, kind: type[_Document]) -> _Document:
    """Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(body, type=kind)
