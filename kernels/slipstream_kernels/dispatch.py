"""Which implementation each operation has: the reference, the device's own, or a bundle's.

A `Kernels` is made once and handed to the model; there is no global state.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from slipstream_kernels import bundle, cpu, native, reference
from slipstream_kernels.reference import Routing, Span
from slipstream_kernels.weights import Packed, Table, Weight


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


class Linear(Protocol):
    def __call__(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor: ...


class RopeWriteKv(Protocol):
    def __call__(
        self, qkv: Tensor, turns: Tensor, slots: Tensor, keys: Tensor, values: Tensor
    ) -> None: ...


class Attention(Protocol):
    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, spans: list[Span]
    ) -> Tensor: ...


class Decode(Protocol):
    def __call__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        tables: Tensor,
        lengths: Tensor,
        page_tokens: int,
    ) -> Tensor: ...


class Route(Protocol):
    def __call__(
        self, logits: Tensor, correction: Tensor | None, routing: Routing
    ) -> tuple[Tensor, Tensor]: ...


class Experts(Protocol):
    def __call__(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        gate_ups: list[Weight],
        downs: list[Weight],
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation per operation; `reference` says what each takes and gives."""

    rms_norm: RmsNorm = reference.rms_norm
    lookup: Callable[[Tensor | Table, Tensor], Tensor] = reference.lookup
    linear: Linear = reference.linear
    rope_write_kv: RopeWriteKv = reference.rope_write_kv
    silu_mul: Callable[[Tensor], Tensor] = reference.silu_mul
    paged_attention: Attention = reference.paged_attention
    paged_decode: Decode = reference.paged_decode
    route: Route = reference.route
    experts: Experts = reference.experts

    def sources(self) -> dict[str, str]:
        """Operation to what runs it, as `reference`, `cpu` or the bundle's name and digest."""
        return {field.name: source(getattr(self, field.name)) for field in fields(self)}


OPERATIONS = tuple(field.name for field in fields(Kernels))


def source(implementation: Any) -> str:
    owner = getattr(implementation, "__self__", implementation)
    named: str | None = getattr(owner, "__slipstream_source__", None)
    return named or implementation.__module__.rpartition(".")[2]


def for_device(device: torch.device) -> Kernels:
    """The best that needs no bundle."""
    if device.type != "cpu":
        return Kernels()
    library = native.best()
    if library is None:
        return Kernels(rms_norm=cpu.rms_norm, paged_attention=cpu.paged_attention)
    return Kernels(
        linear=library.linear,
        rms_norm=library.rms_norm,
        rope_write_kv=library.rope_write_kv,
        silu_mul=library.silu_mul,
        paged_attention=library.paged_attention,
        route=library.route,
        experts=library.experts,
    )


# The operations whose matrices may be in codes.
_TAKING_WEIGHTS = frozenset({"linear", "experts"})


def with_bundle(kernels: Kernels, folder: Path, sha256: str, device: torch.device) -> Kernels:
    """`kernels` with every operation that the bundle has, each checked against its reference.

    Raises bundle.BundleError: another digest, a damaged manifest, or an operation that fails.
    """
    implementations = bundle.load(folder, sha256, OPERATIONS, device)
    for name in _TAKING_WEIGHTS & implementations.keys():
        implementations[name] = _for_dense(implementations[name], getattr(kernels, name))
    return replace(kernels, **implementations)


def _for_dense(
    dense: Callable[..., Tensor], packed: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """A bundle is judged by dense matrices, so it gets no others."""

    def either(*arguments: Any) -> Tensor:
        matrices = [
            one for part in arguments for one in (part if isinstance(part, list) else [part])
        ]
        is_packed = any(isinstance(one, Packed) for one in matrices)
        return packed(*arguments) if is_packed else dense(*arguments)

    # Of a checkpoint in codes the bundle runs no product: who asks what runs is told both.
    either.__dict__["__slipstream_source__"] = f"{source(dense)}, packed by {source(packed)}"
    return either
