"""The quantised blocks of GGUF files as `Grouped` matrices; knows no header and no model.

Layouts: ggml-common.h of the ggml project (block_q4_0, block_q4_1, block_q8_0, block_q4_K).
"""

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from slipstream_weights.grouped import Grouped

_GROUP = 32
_Q4_0 = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])
_Q4_1 = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("codes", "u1", 16)])
_Q8_0 = np.dtype([("scale", "<f2"), ("codes", "u1", 32)])
# Eight groups share one scale of scales and one of minimums; each has 6 bits of its own of both.
_Q4_K = np.dtype(
    [("scale", "<f2"), ("minimum", "<f2"), ("sixes", "u1", (3, 4)), ("codes", "u1", (4, 32))]
)
_BLOCKS = {
    GGMLQuantizationType.Q4_0: _Q4_0,
    GGMLQuantizationType.Q4_1: _Q4_1,
    GGMLQuantizationType.Q8_0: _Q8_0,
    GGMLQuantizationType.Q4_K: _Q4_K,
}


def is_grouped(kind: GGMLQuantizationType) -> bool:
    """Whether `unpack` knows the kind."""
    return kind in _BLOCKS


def unpack(raw: NDArray[np.uint8], kind: GGMLQuantizationType) -> Grouped:
    """A matrix from the bytes of its rows [rows, bytes]; `is_grouped(kind)` must hold."""
    blocks = raw.view(_BLOCKS[kind])
    scales = blocks["scale"].astype(np.float32)
    match kind:
        case GGMLQuantizationType.Q4_0:
            return _matrix(_nibbles(blocks["codes"]), scales, -8 * scales, 4)
        case GGMLQuantizationType.Q4_1:
            minimums = blocks["minimum"].astype(np.float32)
            return _matrix(_nibbles(blocks["codes"]), scales, minimums, 4)
        case GGMLQuantizationType.Q8_0:
            # Signed bytes; flipping the sign bit adds 128.
            return _matrix(blocks["codes"] ^ np.uint8(0x80), scales, -128 * scales, 8)
        case _:
            return _unpack_q4_k(blocks, scales)


def _unpack_q4_k(blocks: NDArray[np.void], scales: NDArray[np.float32]) -> Grouped:
    # Bytes 0-3: scales of groups 0-3, bytes 4-7: their minimums, six bits each; bytes 8-11: the
    # low four bits of both of groups 4-7, whose high two sit on top of bytes 0-7.
    low, high, rest = (blocks["sixes"][:, :, index] for index in range(3))
    scale = np.concatenate([low & 0x3F, (rest & 0x0F) | ((low >> 2) & 0x30)], axis=-1)
    minimum = np.concatenate([high & 0x3F, (rest >> 4) | ((high >> 2) & 0x30)], axis=-1)
    return _matrix(
        _nibbles(blocks["codes"]),
        scales[..., None] * scale,
        -blocks["minimum"].astype(np.float32)[..., None] * minimum,
        4,
    )


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[…, n] bytes to […, 2, n] codes: the low halves come first, then the high ones."""
    codes = np.empty((*packed.shape[:-1], 2, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, 0x0F, out=codes[..., 0, :])
    np.right_shift(packed, 4, out=codes[..., 1, :])
    return codes


def _matrix(
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    minimums: NDArray[np.float32],
    bits: int,
) -> Grouped:
    rows = len(codes)
    return Grouped(
        codes=codes.reshape(rows, -1),
        scales=scales.reshape(rows, -1),
        minimums=minimums.reshape(rows, -1),
        bits=bits,
        group=_GROUP,
    )
