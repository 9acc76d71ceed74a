"""Where in the file each expected tensor lies; knows no file format.

Some files stack the experts of a layer, or the gate and up matrices of each. A stack is a matrix
of all rows on top of each other, so every part of it is a range of rows.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from slipstream_weights.checkpoint import (
    Checkpoint,
    Shape,
    check_tensors,
    expected_tensors,
    known_left_overs,
)
from slipstream_weights.errors import ModelInvalid

_STACK = re.compile(r"(.+\.mlp\.experts)\.(gate_proj|up_proj|down_proj|gate_up_proj)")


class Stored(Protocol):
    """A tensor of a file."""

    @property
    def shape(self) -> Shape: ...


S = TypeVar("S", bound=Stored)


@dataclass(frozen=True, slots=True)
class Part(Generic[S]):
    """Rows [first_row, first_row + shape[0]) of a stored tensor, all its dimensions but the last
    seen as one; of a tensor with one dimension: all of it.
    """

    stored: S
    shape: Shape
    first_row: int


def find(checkpoint: Checkpoint, stored: Iterable[tuple[str, S]], path: str) -> dict[str, Part[S]]:
    """Each expected tensor's place, in the order of the file, by its Hugging Face name.

    `stored` names are Hugging Face's too; a stack has the name of its experts' matrix without
    number and suffix, as transformers 5 keeps them (`model.layers.3.mlp.experts.gate_up_proj`).
    Raises ModelInvalid: a tensor is missing, left over or mis-shaped.
    """
    known = known_left_overs(checkpoint)
    shapes = expected_tensors(checkpoint) | known
    found = [
        (name, part)
        for stored_name, tensor in stored
        for name, part in _split(checkpoint, stored_name, tensor, shapes, path)
        if name not in known
    ]
    check_tensors(checkpoint, ((name, part.shape) for name, part in found), path)
    return dict(found)


def rows(part: Part[S], wanted: slice | None) -> slice:
    """The rows of the stored tensor that are those of the part. Raises ValueError: a step."""
    start, stop = _bounds(wanted, part.shape[0])
    return slice(part.first_row + start, part.first_row + stop)


def columns(part: Part[S], wanted: slice | None) -> slice:
    """Raises ValueError: a step, or columns of a vector."""
    if len(part.shape) > 1:
        return slice(*_bounds(wanted, part.shape[1]))
    if wanted is not None:
        raise ValueError("a vector has no columns")
    return slice(None)


def _bounds(wanted: slice | None, size: int) -> tuple[int, int]:
    start, stop, step = (wanted or slice(None)).indices(size)
    if step != 1:
        raise ValueError(f"a slice with step {step}")
    return start, max(start, stop)


def _split(
    checkpoint: Checkpoint, name: str, tensor: S, shapes: dict[str, Shape], path: str
) -> Iterator[tuple[str, Part[S]]]:
    match = _STACK.fullmatch(name)
    if match is None or checkpoint.experts is None:
        yield name, Part(tensor, tensor.shape, 0)
        return
    prefix, kind = match[1], match[2]
    kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
    shape = shapes.get(f"{prefix}.0.{kinds[0]}.weight")
    if shape is None:
        raise ModelInvalid(
            "the checkpoint holds a tensor that the model has no use for", path, name
        )
    rows, cols = shape
    expected = (checkpoint.experts.num_experts, len(kinds) * rows, cols)
    if tensor.shape != expected:
        raise ModelInvalid(f"shape {list(tensor.shape)}, expected {list(expected)}", path, name)
    for expert in range(checkpoint.experts.num_experts):
        for index, part in enumerate(kinds):
            first_row = (expert * len(kinds) + index) * rows
            yield f"{prefix}.{expert}.{part}.weight", Part(tensor, shape, first_row)
