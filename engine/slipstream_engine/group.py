"""What ranks say to each other: the one door to torch.distributed.

`Alone` is a replica of one rank. No wait is endless: gloo and NCCL raise at once when a peer dies,
and after a deadline when it only stands still.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch import Tensor, distributed

from slipstream_engine.split import Split

# Ranks load their parts first, at the speed of their disks.
_MEET = timedelta(minutes=10)
# Longer than any step; an idle replica says something every `HEARTBEAT_S`.
_STEP = timedelta(seconds=120)
HEARTBEAT_S = 30.0


class PeerLostError(Exception):
    """Another rank of the replica died or stands still."""


class Group(Protocol):
    """One rank's view of the others."""

    def sum_(self, x: Tensor) -> Tensor:
        """The sum over the tensor ranks of this stage, in place."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """x of every tensor rank side by side along the last dimension."""
        ...

    def receive_hidden(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> Tensor:
        """What the stage before sent: [tokens, hidden]."""
        ...

    def send_hidden(self, x: Tensor) -> None:
        """Hand a stage's output to the next one."""
        ...

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        """The bytes that rank `source` gave, on every rank."""
        ...


class Alone:
    """A replica of one rank has nobody to talk to."""

    def sum_(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor:
        return x

    def receive_hidden(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> Tensor:
        raise RuntimeError("one rank has no stage before it")

    def send_hidden(self, x: Tensor) -> None:
        raise RuntimeError("one rank has no stage after it")

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        if content is None:
            raise RuntimeError("one rank has nobody to hear from")
        return content


class TorchGroup:
    """Ranks joined by torch.distributed: gloo between CPUs, NCCL between GPUs.

    Every method raises PeerLostError.
    """

    def __init__(self, split: Split, rendezvous: str, device: torch.device) -> None:
        """Waits until all ranks have come."""
        self._split = split
        self._device = device
        if rendezvous.startswith("file:"):
            # Ranks of one machine: nothing of a replica is offered to the network.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with _losing_nobody():
            distributed.init_process_group(
                backend="nccl" if device.type == "cuda" else "gloo",
                init_method=rendezvous,
                rank=split.rank,
                world_size=split.num_ranks,
                timeout=_MEET,
            )
            everyone = range(split.num_ranks)
            self._bytes = _group(everyone, "gloo")
            self._stages = _group(everyone)
            groups = [
                _group(range(stage * split.tensor, (stage + 1) * split.tensor))
                for stage in range(split.pipeline)
            ]
        self._tensor_group = groups[split.stage]

    def sum_(self, x: Tensor) -> Tensor:
        if self._split.tensor > 1:
            with _losing_nobody():
                distributed.all_reduce(x, group=self._tensor_group)
        return x

    def gather(self, x: Tensor) -> Tensor:
        if self._split.tensor == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self._split.tensor)]
        with _losing_nobody():
            distributed.all_gather(parts, x.contiguous(), group=self._tensor_group)
        return torch.cat(parts, dim=-1)

    def receive_hidden(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> Tensor:
        x = torch.empty(num_tokens, hidden_size, dtype=dtype, device=self._device)
        with _losing_nobody():
            distributed.recv(x, src=self._split.rank - self._split.tensor, group=self._stages)
        return x

    def send_hidden(self, x: Tensor) -> None:
        with _losing_nobody():
            target = self._split.rank + self._split.tensor
            distributed.send(x.contiguous(), dst=target, group=self._stages)

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        size = torch.tensor([0 if content is None else len(content)])
        with _losing_nobody():
            distributed.broadcast(size, src=source, group=self._bytes)
            if int(size) == 0:
                return b""
            if content is None:
                body = torch.empty(int(size), dtype=torch.uint8)
            else:
                body = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            distributed.broadcast(body, src=source, group=self._bytes)
        return bytes(body.numpy())


def _group(members: range, backend: str | None = None) -> distributed.ProcessGroup:
    """Made on every rank, in one order, also on those that are no members."""
    made = distributed.new_group(members, timeout=_STEP, backend=backend)
    # A rank that is no member gets a number instead, and never uses it.
    return cast(distributed.ProcessGroup, made)


@contextmanager
def _losing_nobody() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(_words(error)) from error


def _words(error: RuntimeError) -> str:
    """Of gloo's: neither its own source's place nor its advice.

    >>> _words(RuntimeError("[/src/pair.cc:545] Read error: reset by peer. This is typically …"))
    'Read error: reset by peer.'
    """
    first = str(error).partition("\n")[0]
    return re.sub(r"^\[[^\]]*:\d+\] ", "", first).partition(" This is typically")[0][:300]
