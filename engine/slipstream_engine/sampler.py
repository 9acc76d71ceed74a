"""Logits to tokens; pure: the random numbers follow from seed and position alone."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream_engine.request import SamplingParams


def sample(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """One token per row of logits ([samples, vocabulary], float32).

    positions: where in its sequence each new token will stand.
    """
    tokens = logits.argmax(dim=-1).tolist()
    for row, (one, position) in enumerate(zip(params, positions, strict=True)):
        if one.temperature > 0:
            tokens[row] = _draw(logits[row], one, uniform(one.seed, position))
    return [int(token) for token in tokens]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that only seed and position decide."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    # 53 bits: every value is exact in a float, and 1.0 is never reached by rounding.
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _draw(logits: Tensor, params: SamplingParams, u: float) -> int:
    """Inverse of the cumulative distribution at u, most likely tokens first."""
    count = params.top_k if 0 < params.top_k < len(logits) else len(logits)
    # Double precision: a tiny temperature must not overflow.
    values, tokens = logits.double().topk(count)
    probabilities = ((values - values[0]) / params.temperature).softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    # The smallest set of tokens whose probability reaches top_p: at least one.
    kept = int((cumulative - probabilities < params.top_p).sum()) if params.top_p < 1 else count
    target = u * cumulative[kept - 1]
    index = int(torch.searchsorted(cumulative[:kept], target, right=True))
    return int(tokens[min(index, kept - 1)])
