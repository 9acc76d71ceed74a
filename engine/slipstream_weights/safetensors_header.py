"""Tensors of safetensors files as float32 arrays; knows no model.

The library's numpy reader has no bfloat16, which most published checkpoints use, and its torch
reader would bring torch here. Format: the safetensors README.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path

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

    def read(self) -> Array:
        """The values as float32, in memory of their own."""
        kind = np.dtype(_DTYPES[self.dtype])
        count = (self.end - self.start) // kind.itemsize
        raw = np.frombuffer(self.data, kind, count, self.start)
        if self.dtype == "BF16":
            # bfloat16 is the upper half of a float32.
            values = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.astype(np.float32)
        return values.reshape(self.shape)


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
        header = json.loads(data[8 : 8 + size])
        entries = [
            _entry(name, value, 8 + size, data, str(path))
            for name, value in header.items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelInvalid(f"the safetensors header is damaged: {error}", str(path)) from error
    return entries


def _entry(
    name: str, value: dict[str, object], base: int, data: mmap.mmap, path: str
) -> StoredTensor:
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ModelInvalid(
            f"dtype {dtype} is not supported; supported: {', '.join(_DTYPES)}", path, name
        )
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError(f"{name} has no shape or place")
    start, end = int(offsets[0]) + base, int(offsets[1]) + base
    count = 1
    for dimension in shape:
        count *= int(dimension)
    if not base <= start <= end <= len(data):
        raise ModelInvalid("the file is cut short: the tensor's bytes are not there", path, name)
    if end - start != count * np.dtype(_DTYPES[dtype]).itemsize:
        raise ModelInvalid("the tensor's bytes do not fit its shape", path, name)
    return StoredTensor(name, tuple(int(d) for d in shape), dtype, start, end, data)
