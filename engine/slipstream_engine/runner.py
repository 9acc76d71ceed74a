"""A Batch of integers to sampled tokens: builds the tensors, runs the model, samples."""

import torch
from torch import Tensor

from slipstream_engine import sampler
from slipstream_engine.batch import Batch, Chunk, Draw, Sampled
from slipstream_engine.kvpool import KvPool
from slipstream_engine.model import Boundaries, Decoder, ModelInput
from slipstream_engine.recorded import RecordedDecode
from slipstream_engine.spec import verify
from slipstream_kernels.reference import Span


class Runner:
    """One rank's part of a step."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KvPool,
        *,
        is_drawing: bool = True,
        recorded: RecordedDecode | None = None,
        boundaries: tuple[int, ...] = (),
    ) -> None:
        """`is_drawing`: False on a rank whose logits another rank of the stage has too.

        `recorded`: where a device repeats decode steps faster than it is told them anew; not where
        drafters want residual `boundaries`.
        """
        self._boundaries = boundaries
        self._features: Tensor | None = None
        self._decoder = decoder
        self._is_drawing = is_drawing
        self._pool = pool
        self._recorded = recorded
        self._page_tokens = pool.layout.page_tokens

    def run(self, batch: Batch) -> list[Sampled]:
        """A token for every draw, in order; none on a rank that does not draw."""
        self._pool.move(batch.moves)
        self._pool.copy(batch.copies)
        logits: Tensor | None
        boundaries = Boundaries(self._boundaries) if self._boundaries else None
        if self._recorded is not None and boundaries is None and self._recorded.takes(batch):
            logits = self._recorded.run(batch)
            rows, draws = list(range(batch.num_draws)), [c.draws[0] for c in batch.chunks]
        else:
            model_input, rows, draws = self._input(batch)
            logits = self._decoder.forward(model_input, self._pool, boundaries)
        self._features = None if boundaries is None else boundaries.features()
        if logits is None or not self._is_drawing:
            return []
        return sampler.sample(logits, rows, draws)

    def logits(self, batch: Batch) -> Tensor:
        """Of every draw, whose rows are all different: [draws, vocabulary]. A model in one piece.

        Raises ValueError for a stage that has none.
        """
        model_input, _, _ = self._input(batch)
        logits = self._decoder.forward(model_input, self._pool)
        if logits is None:
            raise ValueError("this stage has no logits")
        return logits

    def take_features(self) -> Tensor | None:
        """What the model made of the last batch's tokens: [tokens, boundaries x hidden]."""
        features, self._features = self._features, None
        return features

    def _input(self, batch: Batch) -> tuple[ModelInput, list[int], list[Draw]]:
        """The model's input; for each draw its row of the logits; and all draws."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        wanted: list[int] = []
        rows: list[int] = []
        draws: list[Draw] = []
        for chunk in batch.chunks:
            start = len(tokens)
            tokens += chunk.tokens
            ancestors = verify.ancestors(chunk.parents)
            if ancestors:
                positions += [chunk.start - 1 + seen.bit_count() for seen in ancestors]
            else:
                positions += range(chunk.start, chunk.end)
            slots += self._slots(chunk)
            reach = runs(chunk.pages, chunk.end, self._page_tokens)
            spans.append(Span(start, len(tokens), reach, ancestors))
            for draw in chunk.draws:
                row = start + draw.row
                # Draws of one row stand together: `n` answers part at the prompt's last token.
                if not wanted or wanted[-1] != row:
                    wanted.append(row)
                rows.append(len(wanted) - 1)
            draws += chunk.draws
        device = self._decoder.device
        model_input = ModelInput(
            tokens=torch.tensor(tokens, device=device),
            positions=torch.tensor(positions, device=device),
            slots=torch.tensor(slots, device=device),
            rows=torch.tensor(wanted, dtype=torch.long, device=device),
            reach=spans,
        )
        return model_input, rows, draws

    def _slots(self, chunk: Chunk) -> list[int]:
        """Rows of the flattened pool that receive the chunk's keys and values."""
        size, pages = self._page_tokens, chunk.pages
        if len(chunk.tokens) == 1:
            return [pages[chunk.start // size] * size + chunk.start % size]
        return [pages[at // size] * size + at % size for at in range(chunk.start, chunk.end)]


def runs(pages: tuple[int, ...], num_tokens: int, page_tokens: int) -> tuple[tuple[int, int], ...]:
    """The first `num_tokens` rows as (first row, number of rows), neighbours joined.

    >>> runs((4, 5, 9), 10, 4)
    ((16, 8), (36, 2))
    """
    found: list[tuple[int, int]] = []
    first = previous = pages[0]
    for page in pages[1:]:
        if page != previous + 1:
            found.append((first * page_tokens, (previous - first + 1) * page_tokens))
            first = page
        previous = page
    found.append((first * page_tokens, (previous - first + 1) * page_tokens))
    surplus = len(pages) * page_tokens - num_tokens
    found[-1] = (found[-1][0], found[-1][1] - surplus)
    return tuple(found)
