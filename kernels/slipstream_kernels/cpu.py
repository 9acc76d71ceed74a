"""What the CPU does faster than the references, op by op, in plain torch; same signatures."""

import functools
import math

import torch
from torch import Tensor

from slipstream_kernels import reference
from slipstream_kernels.reference import Span

Runs = tuple[tuple[int, int], ...]

# A call of attention costs as much as copying some hundred rows of keys: shorter runs are copied
# together, longer ones are read where they lie.
_COPY_ROWS = 256


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) as x * (weight * √size / hypot(|x|, √(size * eps))).

    6 µs a row of 576 where the library's operation takes 11 (one AVX-512 core, torch 2.15).
    """
    if x.dtype is not torch.float32:
        return reference.rms_norm(x, weight, eps)
    size = x.shape[-1]
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    root, offset = _constants(size, eps, x.device)
    normed: Tensor = x / norm.hypot_(offset)
    return normed.mul_(weight).mul_(root)


@functools.cache
def _constants(size: int, eps: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """√size and √(size * eps): as tensors they cost half of what Python's numbers do."""
    roots = (math.sqrt(size), math.sqrt(size * eps))
    return torch.tensor(roots[0], device=device), torch.tensor(roots[1], device=device)


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, spans: list[Span]) -> Tensor:
    """As the reference; pages that follow each other are read where they lie.

    The reference copies every key: 46 MB a token at a context of 1,000 tokens of SmolLM2-135M.
    """
    if len(spans) == 1:
        return attend(query, keys, values, spans[0])
    return torch.cat([attend(query[span.start : span.end], keys, values, span) for span in spans])


def attend(query: Tensor, keys: Tensor, values: Tensor, span: Span) -> Tensor:
    """One sequence. query and the result: [tokens, heads, size]; keys, values: the whole pool."""
    num_tokens = len(query)
    q = query.transpose(0, 1).unsqueeze(0)
    attention = torch._scaled_dot_product_flash_attention_for_cpu
    past: Runs = span.runs
    own: Runs = ()
    if num_tokens > 1:
        # Keys before the chunk need no mask, those of the chunk itself a square one.
        past, own = _split(span.runs, span.past_len)
    parts: list[tuple[Tensor, Tensor]] = [
        attention(q, _rows(keys, group, q.dtype), _rows(values, group, q.dtype))
        for group in _reading_groups(past)
    ]
    if own:
        own_keys, own_values = (_rows(pool, own, q.dtype) for pool in (keys, values))
        if span.ancestors:
            mask = torch.zeros(num_tokens, num_tokens, dtype=q.dtype)
            mask.masked_fill_(~reference.own_mask(span), float("-inf"))
            parts.append(attention(q, own_keys, own_values, attn_mask=mask))
        else:
            parts.append(attention(q, own_keys, own_values, 0.0, True))
    result = parts[0][0] if len(parts) == 1 else _join(parts)
    return result.squeeze(0).transpose(0, 1)


def _split(runs: Runs, count: int) -> tuple[Runs, Runs]:
    """The first `count` rows, and the rest.

    >>> _split(((16, 4), (32, 4)), 5)
    (((16, 4), (32, 1)), ((33, 3),))
    """
    first: list[tuple[int, int]] = []
    second: list[tuple[int, int]] = []
    for start, length in runs:
        taken = min(length, count)
        if taken:
            first.append((start, taken))
        if taken < length:
            second.append((start + taken, length - taken))
        count -= taken
    return tuple(first), tuple(second)


def _reading_groups(runs: Runs) -> list[Runs]:
    """Which runs are attended together: long ones alone, short neighbours copied into one."""
    groups: list[Runs] = []
    short: list[tuple[int, int]] = []
    for run in runs:
        if run[1] > _COPY_ROWS:
            groups.append((run,))
        else:
            short.append(run)
    # The order of keys does not matter where there is no mask.
    return [*groups, tuple(short)] if short else groups


def _rows(pool: Tensor, runs: Runs, dtype: torch.dtype) -> Tensor:
    """[1, KV heads, rows of the runs, size]: a view of one run of that type, else a copy."""
    views = [pool[start : start + length] for start, length in runs]
    rows = views[0] if len(views) == 1 else torch.cat(views)
    return rows.to(dtype).transpose(0, 1).unsqueeze(0)


def _join(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention over all keys from attention over some each, and their log-sum-exps.

    Each part: [1, heads, tokens, size] and [1, heads, tokens] (FlashAttention, Dao et al. 2022).
    """
    sums = torch.stack([part[1] for part in parts])
    shares = torch.softmax(sums, dim=0).unsqueeze(-1)
    joined = parts[0][0] * shares[0]
    for part, share in zip(parts[1:], shares[1:], strict=True):
        joined.addcmul_(part[0], share)
    return joined
