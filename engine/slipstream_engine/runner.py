"""A Batch of integers to sampled tokens: builds the tensors, runs the model, samples."""

import torch

from slipstream_engine import sampler
from slipstream_engine.kvpool import KvPool
from slipstream_engine.model import Decoder, ModelInput
from slipstream_engine.scheduler import Batch, Chunk
from slipstream_kernels.reference import Span


class Runner:
    def __init__(self, decoder: Decoder, pool: KvPool) -> None:
        self._decoder = decoder
        self._pool = pool

    def run(self, batch: Batch) -> list[int]:
        """A token for every chunk with sampling, in the order of the chunks."""
        logits = self._decoder.forward(self._input(batch), self._pool)
        sampled = [chunk for chunk in batch.chunks if chunk.sampling is not None]
        if not sampled:
            return []
        return sampler.sample(
            logits,
            [chunk.sampling for chunk in sampled if chunk.sampling is not None],
            [chunk.start + len(chunk.tokens) for chunk in sampled],
        )

    def _input(self, batch: Batch) -> ModelInput:
        tokens: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        last_rows: list[int] = []
        for chunk in batch.chunks:
            start = len(tokens)
            tokens.extend(chunk.tokens)
            end_position = chunk.start + len(chunk.tokens)
            positions.extend(range(chunk.start, end_position))
            spans.append(Span(start, len(tokens), end_position, self._slots(chunk, end_position)))
            if chunk.sampling is not None:
                last_rows.append(len(tokens) - 1)
        return ModelInput(
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            slots=torch.cat([s.slots[s.context_len - (s.end - s.start) :] for s in spans]),
            spans=spans,
            last_rows=torch.tensor(last_rows, dtype=torch.long),
        )

    def _slots(self, chunk: Chunk, context_len: int) -> torch.Tensor:
        """Rows of the flattened pool that hold the sequence's first tokens: [context_len]."""
        size = self._pool.layout.page_tokens
        pages = torch.tensor(chunk.pages).unsqueeze(1)
        return (pages * size + torch.arange(size)).reshape(-1)[:context_len]
