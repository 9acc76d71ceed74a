"""The weights of one rank, put together from a checkpoint's tensors; no arithmetic of the model.

Q, K and V (gate and up) are stacked so that one product does. Rows of Q and K are reordered so
that the two numbers which the rotary embedding turns stand side by side.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream_engine.split import Split
from slipstream_kernels import weights
from slipstream_kernels.reference import Routing
from slipstream_kernels.weights import Table, Weight
from slipstream_weights.checkpoint import Array, Checkpoint, expected_tensors
from slipstream_weights.grouped import Grouped

Stored = Array | Grouped
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Attention:
    """`output_bias` only on the first tensor rank: the ranks' products are added up."""

    qkv: Weight
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Weight
    output_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Mlp:
    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts, of which a router chooses some for each token; the shared one answers always."""

    routing: Routing
    router: Tensor
    correction: Tensor | None
    gate_ups: list[Weight]
    downs: list[Weight]
    shared: Mlp | None


@dataclass(frozen=True, slots=True)
class Layer:
    input_norm: Tensor
    attention: Attention
    post_norm: Tensor
    mlp: Mlp | Mixture


@dataclass(frozen=True, slots=True)
class Ending:
    """From the last layer to logits.

    `head` may have rows of zeros at its end: every tensor rank has the same number of rows.
    """

    norm: Tensor
    head: Weight


@dataclass(frozen=True, slots=True)
class Weights:
    """What a rank holds: `embedding` only on the first stage, `ending` only on the last."""

    layers: list[Layer]
    embedding: Tensor | Table | None
    ending: Ending | None


class Builder:
    """Takes tensors in any order; a layer is built, and its parts forgotten, once it is whole."""

    def __init__(
        self, checkpoint: Checkpoint, split: Split, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._checkpoint = checkpoint
        self._split = split
        self._dtype = dtype
        self._device = device
        self._pairs = _pair_order(checkpoint.head_dim, checkpoint.rotary_dim)

    def build(self, tensors: Iterable[tuple[str, Stored]]) -> Weights:
        """The checkpoint was checked to hold every tensor once and no other."""
        own = self._split.layers(self._checkpoint.num_layers)
        parts: dict[int, dict[str, Stored]] = {index: {} for index in own}
        layers: dict[int, Layer] = {}
        top: dict[str, Stored] = {}
        names = map(_LAYER.fullmatch, expected_tensors(self._checkpoint))
        wanted = Counter(int(name[1]) for name in names if name is not None)
        for name, value in tensors:
            match = _LAYER.fullmatch(name)
            if match is None:
                top[name] = value
                continue
            index = int(match[1])
            if index not in own:
                continue
            parts[index][match[2]] = value
            if len(parts[index]) == wanted[index]:
                layers[index] = self._layer(index, parts.pop(index))
        return Weights([layers[index] for index in own], *self._ends(top))

    def _ends(self, top: dict[str, Stored]) -> tuple[Tensor | Table | None, Ending | None]:
        stored = top["model.embed_tokens.weight"]
        is_tied = self._checkpoint.has_tied_embeddings
        embedding = self._table(stored) if self._split.is_first_stage else None
        if not self._split.is_last_stage:
            return embedding, None
        norm = self._tensor(top["model.norm.weight"])
        if is_tied and self._split.tensor == 1 and isinstance(embedding, Tensor):
            return embedding, Ending(norm, embedding)
        rows, padded = self._split.vocabulary(self._checkpoint.vocab_size, weights.TILE_ROWS)
        head = _rows(stored if is_tied else top["lm_head.weight"], rows)
        return embedding, Ending(norm, self._matrix(_padded(head, padded)))

    def _layer(self, index: int, parts: dict[str, Stored]) -> Layer:
        experts = self._checkpoint.experts
        is_mixture = experts is not None and index not in experts.dense_layers
        return Layer(
            input_norm=self._tensor(parts["input_layernorm.weight"]),
            attention=self._attention(parts),
            post_norm=self._tensor(parts["post_attention_layernorm.weight"]),
            mlp=self._mixture(parts) if is_mixture else self._mlp(parts, "mlp"),
        )

    def _attention(self, parts: dict[str, Stored]) -> Attention:
        shape, split = self._checkpoint, self._split
        size = shape.head_dim

        def heads(kind: str) -> list[Stored]:
            found = []
            for name, count in (("q", shape.num_heads), ("k", shape.num_kv_heads)):
                order = _head_order(self._pairs, count, split.part(count))
                found.append(_rows(parts[f"self_attn.{name}_proj.{kind}"], order))
            part = split.part(shape.num_kv_heads)
            own = slice(part.start * size, part.stop * size)
            return [*found, _rows(parts[f"self_attn.v_proj.{kind}"], own)]

        norms = [
            self._tensor(_rows(parts[name], self._pairs)) if name in parts else None
            for name in ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
        ]
        queries = split.part(shape.num_heads * size)
        has_output_bias = shape.has_output_bias and split.tensor_rank == 0
        return Attention(
            qkv=self._matrix(*heads("weight")),
            qkv_bias=self._stacked(heads("bias")) if shape.has_qkv_bias else None,
            q_norm=norms[0],
            k_norm=norms[1],
            output=self._matrix(_cols(parts["self_attn.o_proj.weight"], queries)),
            output_bias=self._tensor(parts["self_attn.o_proj.bias"]) if has_output_bias else None,
        )

    def _mlp(self, parts: dict[str, Stored], prefix: str) -> Mlp:
        gate, up, down = (parts[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        inner = self._split.part(_num_rows(gate))
        return Mlp(
            gate_up=self._matrix(_rows(gate, inner), _rows(up, inner)),
            down=self._matrix(_cols(down, inner)),
        )

    def _mixture(self, parts: dict[str, Stored]) -> Mixture:
        experts = self._checkpoint.experts
        if experts is None:
            raise ValueError("the checkpoint has no experts")
        each = [self._mlp(parts, f"mlp.experts.{i}") for i in range(experts.num_experts)]
        correction = parts.get("mlp.gate.e_score_correction_bias")
        return Mixture(
            routing=Routing(
                num_active=experts.num_active,
                is_sigmoid=experts.scoring == "sigmoid",
                is_normalised=experts.has_normalised_weights,
                scale=experts.routed_scale,
                num_groups=experts.num_groups,
                num_active_groups=experts.num_active_groups,
            ),
            # The choice is made in float32, whatever the rest is.
            router=self._dense(parts["mlp.gate.weight"], torch.float32),
            correction=None if correction is None else self._dense(correction, torch.float32),
            gate_ups=[mlp.gate_up for mlp in each],
            downs=[mlp.down for mlp in each],
            shared=self._mlp(parts, "mlp.shared_experts") if experts.num_shared else None,
        )

    def _matrix(self, *stored: Stored) -> Weight:
        """Matrices on top of each other: packed where all are stored alike, else dense."""
        groups = [one for one in stored if isinstance(one, Grouped)]
        kinds = {(one.bits, one.group) for one in groups}
        if len(groups) == len(stored) and len(kinds) == 1 and self._device.type == "cpu":
            # What cannot be packed is dense: another group, an odd number of rows.
            with suppress(ValueError):
                return weights.pack(
                    codes=torch.from_numpy(np.concatenate([one.codes for one in groups])),
                    scales=torch.from_numpy(np.concatenate([one.scales for one in groups])),
                    minimums=torch.from_numpy(np.concatenate([one.minimums for one in groups])),
                    bits=groups[0].bits,
                )
        return self._stacked(stored)

    def _stacked(self, stored: Iterable[Stored]) -> Tensor:
        dense = [self._tensor(one) for one in stored]
        return dense[0] if len(dense) == 1 else torch.cat(dense)

    def _table(self, stored: Stored) -> Tensor | Table:
        if isinstance(stored, Grouped) and self._device.type == "cpu":
            return Table(*map(torch.from_numpy, (stored.codes, stored.scales, stored.minimums)))
        return self._tensor(stored)

    def _tensor(self, stored: Stored) -> Tensor:
        return self._dense(stored, self._dtype)

    def _dense(self, stored: Stored, dtype: torch.dtype) -> Tensor:
        values = stored.dequantise() if isinstance(stored, Grouped) else stored
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, dtype)


def _pair_order(head_dim: int, rotary_dim: int) -> Array:
    """Rows of a head so that what is turned together stands together.

    >>> _pair_order(6, 4).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    turned = np.arange(rotary_dim).reshape(2, -1).T.reshape(-1)
    return np.concatenate([turned, np.arange(rotary_dim, head_dim)])


def _head_order(pairs: Array, num_heads: int, part: slice) -> Array:
    """Rows of the heads in `part`, each in the order `pairs`."""
    heads = np.arange(num_heads)[part]
    order: Array = (heads[:, None] * len(pairs) + pairs).reshape(-1)
    return order


def _each(stored: Stored, change: Callable[[Array], Array], cols: slice | None = None) -> Stored:
    if isinstance(stored, Grouped):
        narrow = change
        if cols is not None:
            of_groups = slice(cols.start // stored.group, cols.stop // stored.group)

            def narrow(values: Array) -> Array:
                return values[:, of_groups]

        return Grouped(
            codes=change(stored.codes),
            scales=narrow(stored.scales),
            minimums=narrow(stored.minimums),
            bits=stored.bits,
            group=stored.group,
        )
    return change(stored)


def _num_rows(stored: Stored) -> int:
    return len(stored.codes if isinstance(stored, Grouped) else stored)


def _rows(stored: Stored, rows: slice | Array) -> Stored:
    return _each(stored, lambda values: values[rows])


def _cols(stored: Stored, cols: slice) -> Stored:
    """Columns; codes whose groups would be cut become dense first."""
    if isinstance(stored, Grouped) and (cols.start % stored.group or cols.stop % stored.group):
        stored = stored.dequantise()
    return _each(stored, lambda values: values[:, cols], cols)


def _padded(stored: Stored, rows: int) -> Stored:
    def pad(values: Array) -> Array:
        return np.pad(values, ((0, rows - len(values)), (0, 0)))

    return _each(stored, pad)
