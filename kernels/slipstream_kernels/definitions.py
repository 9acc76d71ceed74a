"""How to try each operation: inputs of a given shape, and how close an answer must be.

A shape is a mapping of the names below to numbers; a bundle's manifest lists those that it is
made for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from slipstream_kernels import reference
from slipstream_kernels.reference import Routing, Span

Shape = Mapping[str, int]
Make = Callable[[Shape, torch.dtype, Generator], tuple[Any, ...]]

# Largest allowed difference, relative to the largest magnitude of the reference's answer: a few
# roundings of the type, so that a wrong element is never hidden and another order of sums passes.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@dataclass(frozen=True, slots=True)
class Definition:
    """An operation's truth, the names of its dimensions and its trial inputs."""

    reference: Callable[..., Any]
    dimensions: tuple[str, ...]
    make: Make


def _normal(generator: Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


def _rms_norm(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    size = shape["size"]
    return _normal(g, dtype, shape["tokens"], size), _normal(g, dtype, size), 1e-5


def _lookup(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    rows = torch.randint(shape["rows"], (shape["tokens"],), generator=g)
    return _normal(g, dtype, shape["rows"], shape["cols"]), rows


def _linear(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    x = _normal(g, dtype, shape["tokens"], shape["cols"])
    return x, _normal(g, dtype, shape["rows"], shape["cols"]), _normal(g, dtype, shape["rows"])


def _rope_write_kv(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    """Half of each head is turned: a part that is not must stay as it is."""
    heads, kv_heads, size = shape["heads"], shape["kv_heads"], shape["head_dim"]
    tokens, rows = shape["tokens"], 4 * (shape["tokens"] + 3)
    angles = torch.rand(tokens, max(1, size // 4), generator=g) * 100
    return (
        _normal(g, dtype, tokens, heads + 2 * kv_heads, size),
        torch.polar(torch.ones_like(angles), angles),
        torch.randperm(rows, generator=g)[:tokens],
        _normal(g, dtype, rows, kv_heads, size),
        _normal(g, dtype, rows, kv_heads, size),
    )


def _silu_mul(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    return (_normal(g, dtype, shape["tokens"], 2 * shape["size"]),)


def _attention(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    """Three sequences: one in a single run of rows; one in scattered pages; and a tree of tokens,
    in the scattered pages again.
    """
    kv_heads, size = shape["kv_heads"], shape["head_dim"]
    tokens, context = shape["tokens"], shape["context"]
    page = 4
    num_pages = 2 * (-(-context // page)) + 2
    shuffled = (torch.randperm(num_pages, generator=g) * page).tolist()
    runs, left = [], context
    for first in shuffled:
        if left > 0:
            runs.append((first, min(page, left)))
            left -= page
    spans = [
        Span(0, tokens, ((2, context),)),
        Span(tokens, 2 * tokens, tuple(runs)),
        Span(2 * tokens, 3 * tokens, tuple(runs), _tree(tokens, g)),
    ]
    pool = (num_pages * page, kv_heads, size)
    return (
        _normal(g, dtype, 3 * tokens, shape["heads"], size),
        _normal(g, dtype, *pool),
        _normal(g, dtype, *pool),
        spans,
    )


def _tree(tokens: int, g: Generator) -> tuple[int, ...]:
    """`Span.ancestors` of a tree in which every token but the first has any of those before it
    as its parent.
    """
    masks = [1]
    for token in range(1, tokens):
        parent = int(torch.randint(token, (1,), generator=g))
        masks.append(masks[parent] | 1 << token)
    return tuple(masks)


def _decode(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    """Sequences of every length up to `context`, their pages scattered."""
    page, count = 4, shape["tokens"]
    num_pages = -(-shape["context"] // page)
    tables = torch.randperm(count * num_pages, generator=g).view(count, num_pages)
    lengths = torch.randint(1, shape["context"] + 1, (count,), generator=g)
    pool = (count * num_pages * page, shape["kv_heads"], shape["head_dim"])
    query = _normal(g, dtype, count, shape["heads"], shape["head_dim"])
    return query, _normal(g, dtype, *pool), _normal(g, dtype, *pool), tables, lengths, page


def _route(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    num_experts = shape["experts"]
    routing = Routing(num_active=shape["active"], is_sigmoid=True, is_normalised=True, scale=1.5)
    return (
        _normal(g, torch.float32, shape["tokens"], num_experts),
        _normal(g, torch.float32, num_experts),
        routing,
    )


def _experts(shape: Shape, dtype: torch.dtype, g: Generator) -> tuple[Any, ...]:
    tokens, hidden, size = shape["tokens"], shape["hidden"], shape["size"]
    num_experts, active = shape["experts"], shape["active"]
    chosen = torch.rand(tokens, num_experts, generator=g).topk(active, dim=-1).indices
    return (
        _normal(g, dtype, tokens, hidden),
        chosen,
        torch.rand(tokens, active, generator=g),
        [_normal(g, dtype, 2 * size, hidden) for _ in range(num_experts)],
        [_normal(g, dtype, hidden, size) for _ in range(num_experts)],
    )


DEFINITIONS: Mapping[str, Definition] = {
    "rms_norm": Definition(reference.rms_norm, ("tokens", "size"), _rms_norm),
    "lookup": Definition(reference.lookup, ("tokens", "rows", "cols"), _lookup),
    "linear": Definition(reference.linear, ("tokens", "rows", "cols"), _linear),
    "rope_write_kv": Definition(
        reference.rope_write_kv, ("tokens", "heads", "kv_heads", "head_dim"), _rope_write_kv
    ),
    "silu_mul": Definition(reference.silu_mul, ("tokens", "size"), _silu_mul),
    "paged_attention": Definition(
        reference.paged_attention,
        ("tokens", "context", "heads", "kv_heads", "head_dim"),
        _attention,
    ),
    "paged_decode": Definition(
        reference.paged_decode,
        ("tokens", "context", "heads", "kv_heads", "head_dim"),
        _decode,
    ),
    "route": Definition(reference.route, ("tokens", "experts", "active"), _route),
    "experts": Definition(
        reference.experts, ("tokens", "hidden", "size", "experts", "active"), _experts
    ),
}
