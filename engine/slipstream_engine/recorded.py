"""Decode steps that a device records once for each number of sequences, and repeats.

A batch of fewer sequences is filled up with rows that read and write a spare page.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream_engine.batch import Batch
from slipstream_engine.device import Device
from slipstream_engine.kvpool import KvPool
from slipstream_engine.model import Decoder, ModelInput, Tables


@dataclass(frozen=True, slots=True)
class _Recording:
    """The input's fixed tensors, and the work on whatever they hold."""

    model_input: ModelInput
    tables: Tables
    repeat: Callable[[], Tensor]


class RecordedDecode:
    """For a replica of one rank; `max_pages` is the longest context's."""

    def __init__(
        self, decoder: Decoder, pool: KvPool, device: Device, *, max_sequences: int, max_pages: int
    ) -> None:
        """Records from the largest number down, so that smaller ones share its memory."""
        self._pool = pool
        self._decoder = decoder
        self._device = device
        self._max_pages = max_pages
        # 1, 2, 4, 8 … and the largest: at most half of a step is filling.
        sizes = {max_sequences} | {1 << k for k in range(max_sequences.bit_length())}
        self._sizes = sorted(size for size in sizes if size <= max_sequences)
        self._recordings = {size: self._record(size) for size in reversed(self._sizes)}

    def takes(self, batch: Batch) -> bool:
        """Whether it is one token and one draw of each of not too many sequences."""
        return 0 < len(batch.chunks) <= self._sizes[-1] and all(
            len(chunk.tokens) == 1 and len(chunk.draws) == 1 for chunk in batch.chunks
        )

    def run(self, batch: Batch) -> Tensor:
        """Logits, [sequences, vocabulary]."""
        count = len(batch.chunks)
        size = next(size for size in self._sizes if size >= count)
        recording = self._recordings[size]
        page_tokens, filler = self._pool.layout.page_tokens, [0] * (size - count)
        starts = [chunk.start for chunk in batch.chunks]
        slots = [
            chunk.pages[start // page_tokens] * page_tokens + start % page_tokens
            for chunk, start in zip(batch.chunks, starts, strict=True)
        ]
        spare = self._pool.spare_page
        pages = [
            [*chunk.pages, *([spare] * (self._max_pages - len(chunk.pages)))]
            for chunk in batch.chunks
        ]
        target = recording.model_input
        _fill(target.tokens, [chunk.tokens[0] for chunk in batch.chunks] + filler)
        _fill(target.positions, starts + filler)
        _fill(target.slots, slots + [spare * page_tokens] * len(filler))
        _fill(recording.tables.pages, pages + [[spare] * self._max_pages] * len(filler))
        _fill(recording.tables.lengths, [start + 1 for start in starts] + [1] * len(filler))
        return recording.repeat()[:count]

    def _record(self, size: int) -> _Recording:
        device = self._device.torch_device
        spare = self._pool.spare_page

        def new(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.long, device=device)

        page_tokens = self._pool.layout.page_tokens
        tables = Tables(new(size, self._max_pages, value=spare), new(size, value=1), page_tokens)
        model_input = ModelInput(
            tokens=new(size),
            positions=new(size),
            slots=new(size, value=spare * page_tokens),
            rows=torch.arange(size, device=device),
            reach=tables,
        )

        def work() -> Tensor:
            logits = self._decoder.forward(model_input, self._pool)
            if logits is None:
                raise RuntimeError("a stage without logits cannot be recorded alone")
            return logits

        return _Recording(model_input, tables, self._device.record(work))


def _fill(target: Tensor, values: list[int] | list[list[int]]) -> None:
    target.copy_(torch.tensor(values), non_blocking=True)
