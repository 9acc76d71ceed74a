"""A GGUF file as a checkpoint, under Hugging Face's names and in its order of rows."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream_weights import (
    gguf_blocks,
    gguf_description,
    gguf_header,
    gguf_names,
    gguf_tensors,
    gguf_tokenizer,
    parts,
    sizes,
)
from slipstream_weights.checkpoint import Array, TextModel
from slipstream_weights.grouped import Grouped


class GgufCheckpoint:
    """One opened GGUF file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._header = gguf_header.read(path)
        self.checkpoint = gguf_description.describe(self._header, self._path)
        sizes.check(self.checkpoint, self._path)
        stored = [
            (gguf_names.canonical(tensor.name, self.checkpoint.architecture), tensor)
            for tensor in self._header.tensors
            if tensor.name != gguf_names.ROPE_FACTORS
        ]
        self._parts = parts.find(self.checkpoint, stored, self._path)

    @property
    def has_codes(self) -> bool:
        return any(
            len(part.shape) > 1 and gguf_blocks.is_grouped(part.stored.kind)
            for part in self._parts.values()
        )

    def text_model(self) -> TextModel:
        return gguf_tokenizer.build(self._header.fields, self.checkpoint.vocab_size, self._path)

    def tensors(self) -> Iterator[tuple[str, Array]]:
        for name, values in self.packed_tensors():
            yield name, values.dequantise() if isinstance(values, Grouped) else values

    def packed_tensors(self) -> Iterator[tuple[str, Array | Grouped]]:
        for name in self._parts:
            yield name, self.read(name)

    def read(
        self, name: str, rows: slice | None = None, cols: slice | None = None
    ) -> Array | Grouped:
        part = self._parts[name]
        wanted: slice | NDArray[np.intp] = parts.rows(part, rows)
        columns = parts.columns(part, cols)
        order = self._row_order(name, part.shape[0])
        if order is not None:
            wanted = order[wanted]
        if len(part.shape) == 1:
            return gguf_tensors.vector(self._header.data, part.stored, self._path)[wanted]
        return gguf_tensors.matrix(self._header.data, part.stored, wanted, columns, self._path)

    def _row_order(self, name: str, num_rows: int) -> NDArray[np.intp] | None:
        """Where in the file the rows stand; llama.cpp interleaves Q and K of this family alone."""
        if self.checkpoint.architecture != "llama":
            return None
        if ".self_attn.q_proj." in name:
            return _halves(num_rows, self.checkpoint.num_heads)
        if ".self_attn.k_proj." in name:
            return _halves(num_rows, self.checkpoint.num_kv_heads)
        return None


def _halves(num_rows: int, num_heads: int) -> NDArray[np.intp]:
    """From rows [x0 y0 x1 y1 …] of each head to [x0 x1 … y0 y1 …].

    >>> _halves(8, 2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    pairs = np.arange(num_rows).reshape(num_heads, -1, 2)
    return pairs.swapaxes(1, 2).reshape(-1)
