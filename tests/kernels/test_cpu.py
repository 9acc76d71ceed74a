"""What the CPU does faster answers as the references do, on every kind of shape."""

import pytest
import torch

from slipstream_kernels import cpu, reference
from slipstream_kernels.reference import Span
from slipstream_kernels.verify import verify

_CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize("size", [8, 576, 1000])
def test_norms_are_those_of_the_reference(tokens: int, size: int, dtype: torch.dtype) -> None:
    verify("rms_norm", cpu.rms_norm, {"tokens": tokens, "size": size}, dtype, _CPU)


def test_the_norm_of_a_tiny_row_is_ruled_by_epsilon() -> None:
    x, weight = torch.full((2, 16), 1e-4), torch.ones(16)
    assert torch.allclose(cpu.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    assert not cpu.rms_norm(torch.zeros(2, 16), weight, 1e-5).any()


@pytest.mark.parametrize(
    ("tokens", "context"), [(1, 1), (1, 40), (1, 700), (5, 5), (7, 30), (64, 700), (300, 300)]
)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (9, 3)])
def test_attention_is_that_of_the_reference(
    tokens: int, context: int, heads: int, kv_heads: int
) -> None:
    shape = {
        "tokens": tokens,
        "context": context,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": 16,
    }
    verify("paged_attention", cpu.paged_attention, shape, torch.float32, _CPU)


@pytest.mark.parametrize(
    "runs",
    [
        ((0, 600),),
        ((0, 300), (700, 300)),
        ((700, 300), (0, 20), (100, 280)),
        ((0, 5), (50, 590), (700, 1), (720, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("tokens", [1, 4, 40])
def test_attention_over_any_runs_is_that_of_the_reference(
    tokens: int, runs: tuple[tuple[int, int], ...]
) -> None:
    rng = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(1024, 2, 8, generator=rng) for _ in range(2))
    query = torch.randn(tokens + 1, 4, 8, generator=rng)
    spans = [Span(0, tokens, runs), Span(tokens, tokens + 1, ((9, 3),))]
    expected = reference.paged_attention(query, keys, values, spans)
    answer = cpu.paged_attention(query, keys, values, spans)
    assert torch.allclose(answer, expected, atol=1e-5)
