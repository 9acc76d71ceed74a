"""What ranks say to each other: the one door to torch.distributed.

`Alone` is a replica of one rank. All waits end when a peer dies: gloo and NCCL then raise.
"""

from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor, distributed

from slipstream_engine.split import Split

# Loading differs between ranks by disk speed; a step never takes this long.
_TIMEOUT = timedelta(minutes=10)


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
    """Ranks joined by torch.distributed: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, split: Split, rendezvous: str, device: torch.device) -> None:
        """Waits until all ranks have come. Raises RuntimeError when they do not."""
        self._split = split
        self._device = device
        distributed.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            init_method=rendezvous,
            rank=split.rank,
            world_size=split.num_ranks,
            timeout=_TIMEOUT,
        )
        # Every rank must make every group, in one order.
        groups = [
            distributed.new_group(range(stage * split.tensor, (stage + 1) * split.tensor))
            for stage in range(split.pipeline)
        ]
        self._tensor_group = groups[split.stage]

    def sum_(self, x: Tensor) -> Tensor:
        if self._split.tensor > 1:
            distributed.all_reduce(x, group=self._tensor_group)
        return x

    def gather(self, x: Tensor) -> Tensor:
        if self._split.tensor == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self._split.tensor)]
        distributed.all_gather(parts, x.contiguous(), group=self._tensor_group)
        return torch.cat(parts, dim=-1)

    def receive_hidden(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> Tensor:
        x = torch.empty(num_tokens, hidden_size, dtype=dtype, device=self._device)
        distributed.recv(x, src=self._split.rank - self._split.tensor)
        return x

    def send_hidden(self, x: Tensor) -> None:
        distributed.send(x.contiguous(), dst=self._split.rank + self._split.tensor)

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        size = torch.tensor([0 if content is None else len(content)], device=self._device)
        distributed.broadcast(size, src=source)
        if content is None:
            body = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        else:
            body = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self._device)
        distributed.broadcast(body, src=source)
        return bytes(body.cpu().numpy())
