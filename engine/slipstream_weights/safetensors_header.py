"""Tensors of one safetensors file as float32 arrays; knows no model.

The library's numpy reader has no bfloat16, which most published checkpoints use, and its torch
reader would bring torch here. Format: the safetensors README.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np

from slipstream_weights.checkpoint import Array
from slipstream_weights.errors import ModelInvalid

_MAX_HEADER_BYTES = 100_000_000
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    end: int
    data: mmap.mmap

    def read(self, rows: slice, cols: slice) -> Array:
        """Some of the values as float32, in memory of their own.

        Rows count through all dimensions but the last; a vector has no columns.
        """
        kind = np.dtype(_DTYPES[self.dtype])
        raw = np.frombuffer(self.data, kind, (self.end - self.start) // kind.itemsize, self.start)
        raw = raw[rows] if len(self.shape) == 1 else raw.reshape(-1, self.shape[-1])[rows, cols]
        if self.dtype != "BF16":
            # Values that are no number in float32 are the model's, not a reason to warn.
            with np.errstate(all="ignore"):
                return raw.astype(np.float32)
        # bfloat16 is the upper half of a float32.
        wide = raw.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)


def read(path: Path) -> list[StoredTensor]:
    """Map one file and read its header. Raises ModelInvalid."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelInvalid(f"the file cannot be read: {error}", str(path)) from error
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise ModelInvalid("the safetensors file is cut short or damaged", str(path))
    try:
        header = json.loads(data[8 : 8 + size], object_pairs_hook=_unique)
        tensors = [
            _entry(name, value, 8 + size, data, str(path))
            for name, value in header.items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelInvalid(f"the safetensors header is damaged: {error}", str(path)) from error
    _check_places(tensors, 8 + size, len(data), str(path))
    return tensors


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name stands there twice")
    return document


def _entry(
    name: str, value: dict[str, object], base: int, data: mmap.mmap, path: str
) -> StoredTensor:
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelInvalid(
            f"dtype {dtype} is not supported; supported: {', '.join(_DTYPES)}", path, name
        )
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{name} has no shape or place")
    start, end = offsets[0] + base, offsets[1] + base
    if not start <= end <= len(data):
        raise ModelInvalid("the file is cut short: the tensor's bytes are not there", path, name)
    count = 1
    for dimension in shape:
        count *= dimension
    if end - start != count * np.dtype(_DTYPES[dtype]).itemsize:
        raise ModelInvalid("the tensor's bytes do not fit its shape", path, name)
    return StoredTensor(name, tuple(shape), dtype, start, end, data)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_places(tensors: list[StoredTensor], base: int, size: int, path: str) -> None:
    """The format allows no byte that belongs to two tensors or to none. Raises ModelInvalid."""
    end = base
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != end:
            raise ModelInvalid("the tensor's bytes do not follow the last one's", path, tensor.name)
        end = tensor.end
    if end != size:
        raise ModelInvalid(f"{size - end} bytes at the end belong to no tensor", path)
