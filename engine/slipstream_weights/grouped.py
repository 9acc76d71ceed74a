"""A matrix of 4- or 8-bit codes with a scale and a minimum per group; knows no file format."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Grouped:
    """value = code * scale + minimum, with one scale and minimum per `group` columns of a row.

    codes [rows, cols], one a byte, 0 … 2**bits - 1; scales and minimums [rows, cols / group].
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    minimums: NDArray[np.float32]
    bits: int
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def dequantise(self) -> NDArray[np.float32]:
        """The values, [rows, cols], in memory of their own.

        Product and sum are rounded apart, never fused: what ggml's own dequantisation does.
        """
        rows, cols = self.codes.shape
        groups = self.codes.reshape(rows, cols // self.group, self.group)
        values: NDArray[np.float32] = np.multiply(groups, self.scales[..., None], dtype=np.float32)
        values += self.minimums[..., None]
        return values.reshape(rows, cols)

    def columns(self, start: int, stop: int) -> "Grouped":
        """A view of some columns. Raises ValueError: they would cut a group."""
        if start % self.group or stop % self.group:
            raise ValueError(f"columns {start} to {stop} cut a group of {self.group}")
        groups = slice(start // self.group, stop // self.group)
        return Grouped(
            codes=self.codes[:, start:stop],
            scales=self.scales[:, groups],
            minimums=self.minimums[:, groups],
            bits=self.bits,
            group=self.group,
        )
