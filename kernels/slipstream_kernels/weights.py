"""A matrix as the operations take it: a dense tensor, or 4-bit or 8-bit codes in groups.

Packed forms are for the kernels in C, on CPUs; the references unpack them.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

# Columns that share a scale, and rows that the kernel works on at once (a vector's lanes).
GROUP = 32
TILE_ROWS = 16
_PARTS = GROUP // 4
_SCALE_BYTES = 2 * TILE_ROWS * 2


@dataclass(frozen=True, slots=True)
class Packed:
    """[rows, cols] of codes: value = code * scale + minimum, per 32 columns of a row.

    data, uint8: [rows / 16, cols / 32, bytes], in the order in which the kernel reads. The bytes of
    a tile of rows and a group of columns: codes [8, 16, 4], four columns of each row after another
    (of 4 bits the first four of the eight, with the last four in the high halves of the bytes),
    then scales [16] and minimums [16] in float16, which is how the GGUF formats with one scale a
    group store them. Raises ValueError: data of another size, type or order.
    """

    data: Tensor
    bits: int
    rows: int
    cols: int
    # The address: to ask a tensor each time costs as much as the call.
    data_at: int = field(init=False)

    def __post_init__(self) -> None:
        group_bytes = GROUP * TILE_ROWS * self.bits // 8 + _SCALE_BYTES
        shape = (self.rows // TILE_ROWS, self.cols // GROUP, group_bytes)
        is_whole = self.rows % TILE_ROWS == 0 and self.cols % GROUP == 0 and self.bits in (4, 8)
        if not is_whole or self.data.shape != shape or self.data.dtype is not torch.uint8:
            raise ValueError(
                f"{list(self.data.shape)} {self.data.dtype} for {self.rows} rows and {self.cols}"
                f" columns of {self.bits} bits"
            )
        if not self.data.is_contiguous() or self.data.device.type != "cpu":
            raise ValueError("codes that do not lie one after another in the CPU's memory")
        object.__setattr__(self, "data_at", self.data.data_ptr())

    def __reduce__(self) -> tuple[type["Packed"], tuple[Tensor, int, int, int]]:
        """A copy has an address of its own."""
        return Packed, (self.data, self.bits, self.rows, self.cols)

    def unpacked(self) -> Tensor:
        """The values: [rows, cols], float32."""
        tiles, groups = self.rows // TILE_ROWS, self.cols // GROUP
        codes, ends = self.data[..., :-_SCALE_BYTES], self.data[..., -_SCALE_BYTES:]
        codes = codes.reshape(tiles, groups, -1, TILE_ROWS, 4)
        if self.bits == 4:
            codes = torch.cat((codes & 15, codes >> 4), dim=2)
        codes = codes.permute(0, 3, 1, 2, 4).reshape(tiles, TILE_ROWS, groups, GROUP)
        pairs = ends.contiguous().view(torch.float16).float().view(tiles, groups, 2, TILE_ROWS)
        scales, minimums = pairs.permute(2, 0, 3, 1).unsqueeze(-1)
        values: Tensor = codes * scales + minimums
        return values.view(self.rows, self.cols)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows to be looked up, value = code * scale + minimum: codes [rows, cols], uint8; scales and
    minimums [rows, cols / group], float32.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor


Weight = Tensor | Packed


def pack(codes: Tensor, scales: Tensor, minimums: Tensor, bits: int) -> Packed:
    """Codes ([rows, cols], uint8) with value = code * scale + minimum, in the kernel's order.

    scales, minimums: [rows, cols / group], float32; a group is a multiple of 32. Raises
    ValueError: rows that are no multiple of 16, another group, other bits than 4 and 8, or
    scales beyond float16.
    """
    rows, cols = codes.shape
    if rows % TILE_ROWS:
        raise ValueError(f"{rows} rows are not a multiple of {TILE_ROWS}")
    if bits not in (4, 8):
        raise ValueError(f"{bits} bits")
    num_groups = scales.shape[1]
    if cols % num_groups or cols // num_groups % GROUP:
        raise ValueError(f"{cols} columns in {num_groups} groups, not of a multiple of {GROUP}")
    repeats = cols // num_groups // GROUP
    tiled = [
        part.to(torch.float16).repeat_interleave(repeats, dim=1).view(-1, TILE_ROWS, cols // GROUP)
        for part in (scales, minimums)
    ]
    pairs = torch.stack(tiled).permute(1, 3, 0, 2).contiguous()
    if not bool(pairs.isfinite().all()):
        raise ValueError("scales beyond float16")
    parts = codes.view(-1, TILE_ROWS, cols // GROUP, _PARTS, 4).permute(0, 2, 3, 1, 4)
    if bits == 4:
        parts = parts[:, :, : _PARTS // 2] | (parts[:, :, _PARTS // 2 :] << 4)
    data = torch.cat((parts.flatten(2), pairs.view(torch.uint8).flatten(2)), dim=-1)
    return Packed(data, bits, rows, cols)
