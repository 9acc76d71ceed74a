"""The operations in plain torch: the truth that faster kernels are judged by.

Knows no model and no scheduler. Shapes are in the docstrings; accumulations are float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a ragged batch.

    Its queries are rows `start:end` of the batch and the last `end - start` of `context_len`
    tokens; its keys lie in `slots` ([context_len] rows of the flattened pool, in token order).
    """

    start: int
    end: int
    context_len: int
    slots: Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension of x ([..., size]); weight is [size]."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x ([tokens, heads, head_dim]), halves rotated against each other.

    cos, sin: [tokens, head_dim / 2].
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up = [tokens, 2 * size], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def write_kv(pool: Tensor, slots: Tensor, values: Tensor) -> None:
    """Store values ([tokens, KV heads, head_dim]) at rows `slots` of the pool.

    pool: [pages, page_tokens, KV heads, head_dim] of one layer, changed in place.
    """
    pool.view(-1, *pool.shape[2:]).index_copy_(0, slots, values)


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, spans: list[Span]) -> Tensor:
    """Causal attention of a ragged batch over paged keys and values.

    query: [tokens, heads, head_dim]; keys, values: [pages, page_tokens, KV heads, head_dim] of
    one layer; the result has query's shape. Heads share KV heads in consecutive groups.
    """
    flat_keys = keys.view(-1, *keys.shape[2:])
    flat_values = values.view(-1, *values.shape[2:])
    output = torch.empty_like(query)
    is_grouped = query.shape[1] != keys.shape[2]
    for span in spans:
        # [1, heads, tokens, head_dim]: the layout that the library's attention takes.
        q = query[span.start : span.end].transpose(0, 1).unsqueeze(0)
        k = flat_keys.index_select(0, span.slots).transpose(0, 1).unsqueeze(0)
        v = flat_values.index_select(0, span.slots).transpose(0, 1).unsqueeze(0)
        count = span.end - span.start
        mask = None
        if count > 1:
            mask = torch.ones(count, span.context_len, dtype=torch.bool, device=q.device)
            mask = mask.tril(span.context_len - count)
        attended = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=is_grouped
        )
        output[span.start : span.end] = attended.squeeze(0).transpose(0, 1)
    return output
