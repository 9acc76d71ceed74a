"""A matrix as the operations take it: a dense tensor, or 4-bit or 8-bit codes in groups.

Packed forms exist on CPUs only, where torch multiplies by 4-bit codes without unpacking them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """[rows, cols] in 4-bit codes: value = (code - 8) * scale + zero, per `group` columns of a row.

    codes: torch's own order for its CPU kernel; scales_and_zeros: [cols / group, rows, 2], bfloat16
    (the kernel's only vectorised form: float32 takes 30 times as long, AVX-512, torch 2.15).
    """

    codes: Tensor
    scales_and_zeros: Tensor
    group: int
    rows: int
    cols: int


@dataclass(frozen=True, slots=True)
class PackedPair:
    """8-bit codes as two 4-bit matrices whose products add up: code = 16 * high + low."""

    high: Packed
    low: Packed

    @property
    def rows(self) -> int:
        return self.high.rows

    @property
    def cols(self) -> int:
        return self.high.cols


@dataclass(frozen=True, slots=True)
class Table:
    """Rows to be looked up, value = code * scale + minimum: codes [rows, cols], uint8; scales and
    minimums [rows, cols / group], float32.
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor


Weight = Tensor | Packed | PackedPair

# Rows that the kernel works on at once; matrices with another number of rows stay dense.
ROW_MULTIPLE = 16


def pack(codes: Tensor, scales: Tensor, minimums: Tensor, bits: int) -> Packed | PackedPair:
    """Codes ([rows, cols], uint8) with value = code * scale + minimum, in the kernel's order.

    scales, minimums: [rows, cols / group], float32. Raises ValueError: rows that the kernel cannot
    take (a multiple of 16), or another number of bits than 4 and 8.
    """
    if codes.shape[0] % ROW_MULTIPLE:
        raise ValueError(f"{codes.shape[0]} rows are not a multiple of {ROW_MULTIPLE}")
    if bits == 4:
        return _pack(codes, scales, minimums + 8 * scales)
    if bits == 8:
        # code * s + m = (high - 8) * 16 s + (low - 8) * s + (128 + 8) * s + m
        high = _pack(codes >> 4, 16 * scales, torch.zeros_like(scales))
        return PackedPair(high, _pack(codes & 15, scales, minimums + 136 * scales))
    raise ValueError(f"{bits} bits")


def _pack(codes: Tensor, scales: Tensor, zeros: Tensor) -> Packed:
    rows, cols = codes.shape
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
    pairs = torch.stack((scales.T, zeros.T), dim=-1).to(torch.bfloat16).contiguous()
    return Packed(packed, pairs, cols // scales.shape[1], rows, cols)
