"""A step on every rank: the first one tells the others what to run; knows no sockets.

Each step is one broadcast of the batch and, with more than one stage, one of the tokens.
"""

import msgspec

from slipstream_engine.batch import Batch, Sampled
from slipstream_engine.group import Group
from slipstream_engine.runner import Runner
from slipstream_engine.split import Split

_encoder = msgspec.msgpack.Encoder()
_batch = msgspec.msgpack.Decoder(Batch)
_tokens = msgspec.msgpack.Decoder(list[Sampled])
_EMPTY = Batch(())


class LeadingRunner:
    """Rank 0 of several: has the scheduler's batches run everywhere."""

    def __init__(self, runner: Runner, group: Group, split: Split) -> None:
        self._runner = runner
        self._group = group
        self._split = split

    def run(self, batch: Batch) -> list[Sampled]:
        """A token for every draw. Raises PeerLostError."""
        self._group.broadcast(_encoder.encode(batch), 0)
        sampled = self._runner.run(batch)
        if self._split.is_last_stage:
            return sampled
        return _tokens.decode(self._group.broadcast(None, _last_stage_rank(self._split)))

    def beat(self) -> None:
        """Tell the others that there is nothing to do, so that silence means a fault."""
        self._group.broadcast(_encoder.encode(_EMPTY), 0)

    def end(self) -> None:
        self._group.broadcast(b"", 0)


def follow(runner: Runner, group: Group, split: Split) -> None:
    """Any other rank, until the first one ends. Raises PeerLostError."""
    is_telling = split.rank == _last_stage_rank(split)
    while content := group.broadcast(None, 0):
        batch = _batch.decode(content)
        if not batch.chunks:
            continue
        sampled = runner.run(batch)
        if split.pipeline > 1:
            told = _encoder.encode(sampled) if is_telling else None
            group.broadcast(told, _last_stage_rank(split))


def _last_stage_rank(split: Split) -> int:
    """The first rank of the last stage: the one that draws the tokens."""
    return split.tensor * (split.pipeline - 1)
