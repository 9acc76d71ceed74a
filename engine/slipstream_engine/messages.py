"""What crosses the border between the serving process and the rank process, and its framing.

A frame is four bytes of length and one JSON document. Both ends check every message against its
type; nothing is ever unpickled.
"""

import struct
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from slipstream_engine.request import Request
from slipstream_engine.scheduler import Load, Progress

LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: the engine's whole configuration file."""

    config: str
    kind: Literal["start"] = "start"


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request
    kind: Literal["submit"] = "submit"


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str
    kind: Literal["abort"] = "abort"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model can be asked now."""

    architecture: str
    max_context: int
    num_pages: int
    page_bytes: int
    load_s: float
    threads: int
    kind: Literal["loaded"] = "loaded"


@dataclass(frozen=True, slots=True)
class Step:
    """What one step brought, and where the queues stand after it."""

    progress: tuple[Progress, ...]
    load: Load
    kind: Literal["step"] = "step"


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank's last words: `reason` and `field` as in a startup failure."""

    reason: str
    message: str
    field: str = ""
    kind: Literal["failed"] = "failed"


ToRank = Annotated[Start | Submit | Abort, Field(discriminator="kind")]
FromRank = Annotated[Loaded | Step | Failed, Field(discriminator="kind")]
_to_rank: TypeAdapter[ToRank] = TypeAdapter(ToRank)
_from_rank: TypeAdapter[FromRank] = TypeAdapter(FromRank)


def encode_to_rank(message: ToRank) -> bytes:
    return _frame(_to_rank.dump_json(message))


def decode_to_rank(body: bytes) -> ToRank:
    return _to_rank.validate_json(body)


def encode_from_rank(message: FromRank) -> bytes:
    return _frame(_from_rank.dump_json(message))


def decode_from_rank(body: bytes) -> FromRank:
    return _from_rank.validate_json(body)


def _frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body
