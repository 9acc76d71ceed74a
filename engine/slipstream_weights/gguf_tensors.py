"""Values of the tensors of a GGUF file; knows the place of their bytes and no model."""

import mmap

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

from slipstream_weights import gguf_blocks
from slipstream_weights.checkpoint import Array
from slipstream_weights.errors import ModelInvalid
from slipstream_weights.gguf_header import GgufTensor
from slipstream_weights.grouped import Grouped


def vector(data: mmap.mmap, tensor: GgufTensor, path: str) -> Array:
    """All values of a tensor with one dimension, float32. Raises ModelInvalid."""
    return _dequantise(_rows(data, tensor), tensor, path).reshape(tensor.shape)


def matrix(
    data: mmap.mmap,
    tensor: GgufTensor,
    rows: slice | NDArray[np.intp],
    cols: slice,
    path: str,
) -> Array | Grouped:
    """Some rows and columns; rows count through all dimensions but the last. Raises ModelInvalid.

    Only the blocks that hold them are touched. Codes stay codes unless a group would be cut.
    """
    block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
    first, last = cols.start // block, -(-cols.stop // block)
    raw = _rows(data, tensor)[rows, first * block_bytes : last * block_bytes]
    start, stop = cols.start - first * block, cols.stop - first * block
    if raw.size == 0:
        return np.empty((len(raw), stop - start), np.float32)
    if not gguf_blocks.is_grouped(tensor.kind):
        return np.ascontiguousarray(_dequantise(raw, tensor, path)[:, start:stop])
    # What a damaged scale leads to is judged below, not warned of here.
    with np.errstate(all="ignore"):
        grouped = gguf_blocks.unpack(raw, tensor.kind)
    if not (np.isfinite(grouped.scales).all() and np.isfinite(grouped.minimums).all()):
        raise ModelInvalid("a scale of the tensor is not a finite number", path, tensor.name)
    if start % grouped.group or stop % grouped.group:
        return np.ascontiguousarray(grouped.dequantise()[:, start:stop])
    return grouped.columns(start, stop)


def _rows(data: mmap.mmap, tensor: GgufTensor) -> NDArray[np.uint8]:
    """The bytes of the rows, [rows, bytes]; none of them is read yet."""
    block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
    raw = np.frombuffer(data, np.uint8, tensor.end - tensor.start, tensor.start)
    return raw.reshape(-1, tensor.shape[-1] // block * block_bytes)


def _dequantise(raw: NDArray[np.uint8], tensor: GgufTensor, path: str) -> Array:
    # 0.3 s of import that describing a checkpoint does not need.
    from gguf import quants

    try:
        with np.errstate(all="ignore"):
            values: Array = quants.dequantize(raw, tensor.kind)
    except (NotImplementedError, ValueError) as error:
        raise ModelInvalid(
            f"{tensor.kind.name} cannot be dequantised: {error}", path, tensor.name
        ) from error
    # Memory of its own, also where the file holds float32 already.
    owned = values if values.flags.writeable else values.copy()
    return owned.astype(np.float32, copy=False)
