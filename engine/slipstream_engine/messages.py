"""What crosses the border between the serving process and the rank process, and its framing.

A frame is four bytes of length and one MessagePack document. Both ends check every message
against its type; nothing is ever unpickled.
"""

import struct

import msgspec

from slipstream_engine.batch import Failure, Load, Progress
from slipstream_engine.guides.spec import Vocabulary
from slipstream_engine.request import Request
from slipstream_engine.spec.speculation import Outcome
from slipstream_kvstore.keys import Namespace

LENGTH = struct.Struct(">I")


class _Message(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class Start(_Message, frozen=True, tag="start"):
    """The first message to each rank: the engine's whole configuration file and its place in it.

    `rendezvous`: where the ranks of one replica find each other, as torch.distributed's
    `init_method`; empty for a single rank. Only rank 0 gets requests and answers.
    """

    config: str
    rank: int = 0
    rendezvous: str = ""


class Submit(_Message, frozen=True, tag="submit"):
    request: Request


class Words(_Message, frozen=True, tag="words"):
    """What the tokens are, to rank 0, before the first request that has a guide."""

    vocabulary: Vocabulary


class Abort(_Message, frozen=True, tag="abort"):
    """End a request, all of its samples; one that is gone already is no error."""

    request_id: str


class AbortSample(_Message, frozen=True, tag="abort_sample"):
    """End one sample of a request: its text met a stop string."""

    request_id: str
    sample: int


class Forget(_Message, frozen=True, tag="forget"):
    """Drop what drafts have learnt from a tenant's answers; `root_key` as in `Request`."""

    root_key: bytes


class Loaded(_Message, frozen=True, tag="loaded"):
    """The model can be asked now.

    `kernels`: the implementation that runs, by operation. `namespace`: what page keys start from,
    as the JSON of a `slipstream_kvstore.keys.Namespace` without a tenant (`encode_namespace`).
    """

    architecture: str
    max_context: int
    num_pages: int
    page_bytes: int
    load_s: float
    threads: int
    namespace: str
    kernels: dict[str, str]


class Step(_Message, frozen=True, tag="step"):
    """What one step brought, and where the queues stand after it.

    `num_prefill_tokens` of it were prompts, and the model ran for `run_s`. `admitted`: ids of the
    requests that ran for the first time, which ends their time in the queue. `failures` come
    after the progress. `outcomes` are those of the step's drafts, which took `draft_s` to make.
    `num_draft_failures`: of each drafter that failed, since the start.
    """

    progress: tuple[Progress, ...]
    load: Load
    num_prefill_tokens: int = 0
    run_s: float = 0.0
    admitted: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    draft_s: float = 0.0
    num_draft_failures: dict[str, int] = {}


class Failed(_Message, frozen=True, tag="failed"):
    """The rank's last words: `reason` and `field` as in a startup failure.

    `is_consequence`: another rank is gone, and nothing is wrong with this one.
    """

    reason: str
    message: str
    field: str = ""
    is_consequence: bool = False


ToRank = Start | Words | Submit | Abort | AbortSample | Forget
FromRank = Loaded | Step | Failed
_encoder = msgspec.msgpack.Encoder()
_to_rank = msgspec.msgpack.Decoder(ToRank)
_from_rank = msgspec.msgpack.Decoder(FromRank)


def encode(message: ToRank | FromRank) -> bytes:
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def encode_namespace(namespace: Namespace) -> str:
    return msgspec.json.encode(namespace).decode()


def decode_namespace(text: str) -> Namespace:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=Namespace)


def decode_to_rank(body: bytes) -> ToRank:
    """Raises msgspec.DecodeError."""
    return _to_rank.decode(body)


def decode_from_rank(body: bytes) -> FromRank:
    """Raises msgspec.DecodeError."""
    return _from_rank.decode(body)
