"""Packed matrices multiply as what they stand for, to the precision of bfloat16."""

import pytest
import torch
from torch import Tensor

from slipstream_kernels import reference, weights
from slipstream_kernels.weights import Packed, PackedPair, Table


def _codes(bits: int, rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (rows, cols), generator=rng).to(torch.uint8)
    scales = torch.rand(rows, cols // 32, generator=rng) * 0.02
    minimums = torch.randn(rows, cols // 32, generator=rng) * 0.1
    return codes, scales, minimums


def _dense(codes: Tensor, scales: Tensor, minimums: Tensor) -> Tensor:
    groups = codes.float().view(len(codes), -1, 32)
    dense: Tensor = groups * scales.unsqueeze(-1) + minimums.unsqueeze(-1)
    return dense.view(codes.shape)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [1, 3, 70])
@pytest.mark.parametrize("rows", [16, 48, 208])
def test_a_packed_product_is_near_the_dense_one(bits: int, tokens: int, rows: int) -> None:
    parts = _codes(bits, rows, 64)
    packed = weights.pack(*parts, bits)
    assert isinstance(packed, Packed if bits == 4 else PackedPair)
    assert (packed.rows, packed.cols) == (rows, 64)
    x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(9))
    expected = reference.linear(x, _dense(*parts), None)
    answer = reference.linear(x, packed, torch.ones(rows)) - 1
    assert answer.dtype is torch.float32
    # bfloat16 keeps 8 bits: of the product, and of each scale and zero.
    assert float((answer - expected).abs().max()) < 0.02 * float(expected.abs().max()) + 0.05


def test_lookups_in_codes_are_exact() -> None:
    parts = _codes(8, 50, 64)
    rows = torch.tensor([49, 0, 7, 7])
    assert torch.equal(reference.lookup(Table(*parts), rows), _dense(*parts)[rows])


def test_rows_that_the_kernel_cannot_take_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        weights.pack(*_codes(4, 17, 64), 4)
    with pytest.raises(ValueError, match="5 bits"):
        weights.pack(*_codes(4, 16, 64), 5)
