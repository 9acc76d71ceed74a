"""Where tensors live and how a device repeats work: the one door to CUDA.

Only the CPU could be run where this was written; what is for GPUs alone is marked so.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from slipstream_engine.split import Split


class Device(Protocol):
    @property
    def torch_device(self) -> torch.device: ...

    @property
    def has_graphs(self) -> bool:
        """Whether repeating recorded work is faster than telling it anew."""
        ...

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run `work` once; the answer repeats it on whatever its tensors hold then."""
        ...


class Cpu:
    """Nothing is recorded: telling costs what repeating would."""

    torch_device = torch.device("cpu")
    has_graphs = False

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        work()
        return work


class Cuda:
    """One GPU, with CUDA graphs. Not run yet: there was no GPU."""

    has_graphs = True

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)

    def record(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # Once outside: libraries allocate their workspaces at first use, which no graph may hold.
        stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream(self.torch_device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = work()

        def repeat() -> Tensor:
            graph.replay()
            return output

        return repeat


def find(split: Split) -> Device:
    """This rank's GPU where the process sees any, else the CPU."""
    if torch.cuda.is_available():
        return Cuda(split.rank % torch.cuda.device_count())
    return Cpu()
