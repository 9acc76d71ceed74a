"""Packed matrices multiply as what they stand for."""

import pytest
import torch
from torch import Tensor

from slipstream_kernels import reference, weights
from slipstream_kernels.weights import Table


def codes_of(bits: int, rows: int, cols: int, group: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (rows, cols), generator=rng).to(torch.uint8)
    scales = torch.rand(rows, cols // group, generator=rng) * 0.02
    minimums = torch.randn(rows, cols // group, generator=rng) * 0.1
    # Formats store them in 16 bits.
    return codes, scales.half().float(), minimums.half().float()


def dense_of(codes: Tensor, scales: Tensor, minimums: Tensor) -> Tensor:
    groups = codes.float().view(*scales.shape, -1)
    dense: Tensor = groups * scales.unsqueeze(-1) + minimums.unsqueeze(-1)
    return dense.view(codes.shape)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("rows", [16, 48, 208])
def test_packing_loses_nothing(bits: int, rows: int, group: int) -> None:
    parts = codes_of(bits, rows, 128, group)
    packed = weights.pack(*parts, bits)
    assert (packed.rows, packed.cols) == (rows, 128)
    # Two bytes each for the scale and the minimum of 32 codes.
    assert packed.data.nbytes == rows * 128 * bits // 8 + rows * 4 * 4
    assert torch.equal(packed.unpacked(), dense_of(*parts))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [1, 3, 70])
@pytest.mark.parametrize("rows", [16, 48, 208])
def test_a_packed_product_is_near_the_dense_one(bits: int, tokens: int, rows: int) -> None:
    parts = codes_of(bits, rows, 64)
    packed = weights.pack(*parts, bits)
    x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(9))
    expected = reference.linear(x, dense_of(*parts), None)
    answer = reference.linear(x, packed, torch.ones(rows)) - 1
    assert answer.dtype is torch.float32
    # Each number of x is off by half a step at the most, a 254th of its group's largest.
    bound = reference.linear(_half_steps(x), dense_of(*parts).abs(), None)
    assert bool(((answer - expected).abs() <= bound + 1e-5).all())
    assert float((answer - expected).abs().max()) < 0.01 * float(expected.abs().max()) + 0.02


def _half_steps(x: Tensor) -> Tensor:
    groups = x.view(len(x), -1, 32)
    return (groups.abs().amax(-1, keepdim=True) / 254).expand_as(groups).reshape(x.shape)


def test_lookups_in_codes_are_exact() -> None:
    parts = codes_of(8, 50, 64)
    rows = torch.tensor([49, 0, 7, 7])
    assert torch.equal(reference.lookup(Table(*parts), rows), dense_of(*parts)[rows])


def test_what_the_kernel_cannot_take_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        weights.pack(*codes_of(4, 17, 64), 4)
    with pytest.raises(ValueError, match="5 bits"):
        weights.pack(*codes_of(4, 16, 64), 5)
    with pytest.raises(ValueError, match="64 columns in 4 groups"):
        weights.pack(*codes_of(4, 16, 64, group=16), 4)
    codes, scales, minimums = codes_of(8, 16, 64)
    with pytest.raises(ValueError, match="beyond float16"):
        weights.pack(codes, scales * 1e7, minimums, 8)
