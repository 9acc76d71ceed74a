"""The operations in plain torch: the truth that faster kernels are judged by.

Knows no model and no scheduler. Shapes are in the docstrings; accumulations are float32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from slipstream_kernels.weights import GROUP, Packed, Table, Weight


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a ragged batch.

    Its queries are rows `start:end` of the batch and the last `end - start` of its tokens. Its
    keys lie in `runs`, in token order: (first row, number of rows) of the flattened pool.

    All of them see the tokens before the span. Of the span each sees itself and those before it,
    or, where `ancestors` are given, those whose bits its mask has: bit j of `ancestors[i]` is the
    span's token j. The masks are those of a tree (or of several) in topological order: of a root
    its own bit, of any other its parent's and its own. Raises ValueError: they are not.

    A tree of a root with two children, the second of which has one:

    >>> Span(0, 4, ((0, 9),), (0b1, 0b11, 0b101, 0b1101)).context_len
    9
    """

    start: int
    end: int
    runs: tuple[tuple[int, int], ...]
    ancestors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.ancestors:
            return
        if len(self.ancestors) != self.end - self.start:
            raise ValueError(f"{len(self.ancestors)} masks of {self.end - self.start} tokens")
        for token, mask in enumerate(self.ancestors):
            others = mask ^ (1 << token)
            # The last of its ancestors is its parent, which has all the others.
            if others and not (
                0 < others < 1 << token and self.ancestors[others.bit_length() - 1] == others
            ):
                raise ValueError(f"{mask:b} is not the mask of token {token} of a tree")

    @property
    def context_len(self) -> int:
        return sum(length for _, length in self.runs)

    @property
    def past_len(self) -> int:
        """How many tokens stand before the span."""
        return self.context_len - (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token chooses its experts; the meaning of each field is transformers' for GLM-4 MoE.

    Groups: the experts stand in `num_groups` groups, and only those of the best
    `num_active_groups` (by the sum of their two best scores) can be chosen.
    """

    num_active: int
    is_sigmoid: bool
    is_normalised: bool
    scale: float = 1.0
    num_groups: int = 1
    num_active_groups: int = 1


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last dimension of x ([..., size]); weight is [size]."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def lookup(table: Tensor | Table, rows: Tensor) -> Tensor:
    """Rows of a table: [rows, cols], float32 where the table is in codes."""
    if isinstance(table, Tensor):
        return functional.embedding(rows, table)
    codes = table.codes[rows].float()
    groups = codes.view(*table.scales[rows].shape, -1)
    scaled = groups * table.scales[rows].unsqueeze(-1) + table.minimums[rows].unsqueeze(-1)
    return scaled.view(codes.shape)


def linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """x ([tokens, cols]) times the transposed weight ([rows, cols]): [tokens, rows], x's dtype."""
    if not isinstance(weight, Packed):
        return functional.linear(x, weight, bias)
    y = functional.linear(rounded(x.float()), weight.unpacked(), bias)
    return y.to(x.dtype)


def rounded(x: Tensor) -> Tensor:
    """x ([tokens, cols]) to 8 bits in groups of 32 columns, as products with codes take it."""
    groups = x.view(len(x), -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    # 127 divided by less is infinite: so small numbers count as zeros.
    inverse = torch.where(largest > 2.0**-119, 127.0 / largest, 0.0)
    return ((groups * inverse).round() * (largest / 127.0)).view(x.shape)


def rope_(x: Tensor, turns: Tensor) -> None:
    """Rotary embedding in place: x ([tokens, heads, rotary_dim]) in adjacent pairs.

    turns: [tokens, rotary_dim / 2], complex64: how far each pair is turned. One complex product
    instead of the six operations that rotated halves take. Computed in float32.
    """
    wide = x.float()
    pairs = torch.view_as_complex(wide.view(*x.shape[:-1], -1, 2))
    pairs.mul_(turns.unsqueeze(1))
    if wide is not x:
        x.copy_(wide)


def rope_write_kv(qkv: Tensor, turns: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Turn queries and keys in place, then store keys and values: what every layer does at once.

    qkv: [tokens, heads + 2 * KV heads, head_dim]: queries, keys, values; the rest as `rope_` and
    `write_kv` have it. The first 2 * turns.shape[1] numbers of a head are turned.
    """
    kv_heads = keys.shape[1]
    rope_(qkv[:, :-kv_heads, : 2 * turns.shape[1]], turns)
    write_kv(keys, slots, qkv[:, -2 * kv_heads : -kv_heads])
    write_kv(values, slots, qkv[:, -kv_heads:])


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up = [tokens, 2 * size], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def write_kv(pool: Tensor, slots: Tensor, values: Tensor) -> None:
    """Store values ([tokens, KV heads, head_dim]) at rows `slots` of the pool.

    pool: [rows, KV heads, head_dim] of one layer, changed in place; it may have another type.
    """
    pool.index_copy_(0, slots, values.to(pool.dtype))


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, spans: list[Span]) -> Tensor:
    """Attention of a ragged batch over paged keys and values: causal, or of trees (`Span`).

    query: [tokens, heads, head_dim]; keys, values: [rows, KV heads, head_dim] of one layer's
    pool, which may have another type; the result has query's shape and type. Heads share KV
    heads in consecutive groups.
    """
    output = torch.empty_like(query)
    is_grouped = query.shape[1] != keys.shape[1]
    for span in spans:
        rows = torch.cat([torch.arange(first, first + length) for first, length in span.runs])
        # [1, heads, tokens, head_dim]: the layout that the library's attention takes.
        q = query[span.start : span.end].transpose(0, 1).unsqueeze(0)
        k, v = (
            pool.index_select(0, rows).to(query.dtype).transpose(0, 1).unsqueeze(0)
            for pool in (keys, values)
        )
        past = torch.ones(span.end - span.start, span.past_len, dtype=torch.bool)
        mask = torch.cat((past, own_mask(span)), dim=1).to(q.device)
        attended = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, enable_gqa=is_grouped
        )
        output[span.start : span.end] = attended.squeeze(0).transpose(0, 1)
    return output


def own_mask(span: Span) -> Tensor:
    """Which of the span's tokens each of them sees: [tokens, tokens], bool.

    >>> own_mask(Span(0, 3, ((0, 3),), (0b1, 0b11, 0b101))).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    count = span.end - span.start
    if not span.ancestors:
        return torch.ones(count, count, dtype=torch.bool).tril()
    rows = [[mask >> token & 1 for token in range(count)] for mask in span.ancestors]
    return torch.tensor(rows, dtype=torch.bool)


def paged_decode(
    query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, page_tokens: int
) -> Tensor:
    """Attention of one token each of several sequences, by tensors of fixed shapes alone.

    query: [sequences, heads, head_dim]; keys, values: [rows, KV heads, head_dim] of one layer's
    pool; tables: [sequences, pages], whose first pages hold the first `lengths` ([sequences])
    tokens. Nothing here depends on a value, so that a device can record it once and repeat it.
    """
    offsets = torch.arange(page_tokens, device=tables.device)
    rows = (tables.unsqueeze(-1) * page_tokens + offsets).flatten(1)
    mask = torch.arange(rows.shape[1], device=tables.device) < lengths.unsqueeze(1)
    return functional.scaled_dot_product_attention(
        query.unsqueeze(2),
        # Rows that are not the sequence's may hold anything, also what is not a number.
        keys[rows].masked_fill(~mask[:, :, None, None], 0.0).transpose(1, 2),
        values[rows].masked_fill(~mask[:, :, None, None], 0.0).transpose(1, 2),
        attn_mask=mask[:, None, None, :],
        enable_gqa=query.shape[1] != keys.shape[1],
    ).squeeze(2)


def route(
    logits: Tensor,
    correction: Tensor | None,
    routing: Routing,
    sigmoid: Callable[[Tensor], Tensor] = torch.sigmoid,
) -> tuple[Tensor, Tensor]:
    """The experts of each token and their weights: two [tokens, num_active], the second float32.

    logits: [tokens, experts]; correction: [experts], added to the scores for the choice only.
    """
    wide = logits.float()
    scores = sigmoid(wide) if routing.is_sigmoid else wide.softmax(dim=-1)
    choice = scores if correction is None else scores + correction
    if routing.num_groups > 1:
        groups = choice.view(len(choice), routing.num_groups, -1)
        best = groups.topk(2, dim=-1).values.sum(-1).topk(routing.num_active_groups, dim=-1).indices
        is_open = torch.zeros_like(groups[..., 0], dtype=torch.bool).scatter_(-1, best, True)
        choice = groups.masked_fill(~is_open.unsqueeze(-1), float("-inf")).flatten(-2)
    experts = choice.topk(routing.num_active, dim=-1, sorted=False).indices
    weights = scores.gather(-1, experts)
    if routing.is_normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return experts, weights * routing.scale


def experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_ups: list[Weight],
    downs: list[Weight],
    product: Callable[[Tensor, Weight, Tensor | None], Tensor] = linear,
    gate: Callable[[Tensor], Tensor] = silu_mul,
) -> Tensor:
    """Weighted sum of the chosen experts' answers: [tokens, hidden] in x's dtype.

    x: [tokens, hidden]; chosen, weights: [tokens, active]; gate_ups, downs: one matrix an expert,
    [2 * size, hidden] (gate first) and [hidden, size]. `product` multiplies by them; `gate` is what
    stands between the two, as `silu_mul`.
    """
    output = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in sorted(set(chosen.flatten().tolist())):
        tokens, places = (chosen == expert).nonzero(as_tuple=True)
        inner = gate(product(x[tokens], gate_ups[expert], None))
        answer = product(inner, downs[expert], None)
        output.index_add_(0, tokens, answer.float() * weights[tokens, places].unsqueeze(1))
    return output.to(x.dtype)
