"""Quantised matrices keep their codes, and their values are those of the `gguf` package."""

from pathlib import Path

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from slipstream_weights import gguf_blocks, source
from slipstream_weights.errors import ModelInvalid
from slipstream_weights.grouped import Grouped
from tests.engine import tiny
from tests.weights import gguf_files

_KINDS = (
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_K,
)


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
@given(rows=st.integers(1, 9), blocks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_values_equal_those_of_the_gguf_package_bit_for_bit(
    kind: GGMLQuantizationType, rows: int, blocks: int, seed: int
) -> None:
    raw = gguf_files.random_blocks(kind, (rows, blocks * GGML_QUANT_SIZES[kind][0]), seed)
    grouped = gguf_blocks.unpack(raw, kind)
    expected = quants.dequantize(raw, kind)
    found = grouped.dequantise()
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    # Equal as numbers: a zero may come with the other sign, every other bit is the same.
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_a_group_has_one_code_a_byte_and_one_scale_and_minimum(kind: GGMLQuantizationType) -> None:
    columns = 2 * GGML_QUANT_SIZES[GGMLQuantizationType.Q4_K][0]
    grouped = gguf_blocks.unpack(gguf_files.random_blocks(kind, (3, columns), 0), kind)
    assert grouped.bits == (8 if kind is GGMLQuantizationType.Q8_0 else 4)
    assert grouped.group == 32
    assert grouped.codes.shape == (3, columns)
    assert grouped.codes.dtype == np.uint8
    assert grouped.codes.max() == 2**grouped.bits - 1
    for array in (grouped.scales, grouped.minimums):
        assert array.shape == (3, columns // 32)
        assert array.dtype == np.float32


_STORED = {
    GGMLQuantizationType.Q4_0: 4,
    GGMLQuantizationType.Q4_1: 4,
    GGMLQuantizationType.Q8_0: 8,
    GGMLQuantizationType.F16: None,
    GGMLQuantizationType.Q5_1: None,
}


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", _STORED, ids=lambda kind: kind.name)
def test_matrices_keep_their_codes_and_rows_stand_in_the_order_of_hugging_face(
    tmp_path: Path, architecture: str, kind: GGMLQuantizationType
) -> None:
    document = tiny.config(architecture)
    tensors = gguf_files.values(document)
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors, kind=kind)
    opened = source.open_checkpoint(path)
    packed, plain = dict(opened.packed_tensors()), dict(opened.tensors())
    assert list(packed) == list(plain)
    for name, values in packed.items():
        # Quantised as written: the rows of Q and K had been put in llama.cpp's order before.
        written = quants.dequantize(quants.quantize(tensors[name], kind), kind)
        expected = tensors[name] if tensors[name].ndim == 1 else written
        assert np.array_equal(plain[name], expected), name
        if tensors[name].ndim == 2 and _STORED[kind]:
            assert isinstance(values, Grouped), name
            assert values.bits == _STORED[kind]
            values = values.dequantise()
        assert isinstance(values, np.ndarray), name
        assert values.dtype == np.float32
        assert np.array_equal(values, expected), name


_PLACES = {
    "a scale of Q4_0": (GGMLQuantizationType.Q4_0, 0),
    "a scale of Q4_1": (GGMLQuantizationType.Q4_1, 0),
    "a minimum of Q4_1": (GGMLQuantizationType.Q4_1, 2),
    "a scale of Q8_0": (GGMLQuantizationType.Q8_0, 0),
}


@pytest.mark.parametrize(("kind", "place"), _PLACES.values(), ids=_PLACES)
@pytest.mark.parametrize(
    "bits", [0x7C00, 0xFC00, 0x7E00, 0x7C01], ids=["inf", "-inf", "nan", "signalling nan"]
)
def test_a_scale_that_is_no_number_is_refused_by_name(
    tmp_path: Path, kind: GGMLQuantizationType, place: int, bits: int
) -> None:
    document = tiny.config("qwen2")
    tensors = gguf_files.values(document)
    path = gguf_files.write(tmp_path / "m.gguf", document, tensors, kind=kind)
    name = "model.layers.1.mlp.up_proj.weight"
    whole = quants.quantize(tensors[name], kind).tobytes()
    content = path.read_bytes()
    assert content.count(whole) == 1
    start = content.index(whole) + place
    path.write_bytes(content[:start] + bits.to_bytes(2, "little") + content[start + 2 :])
    with pytest.raises(ModelInvalid, match="not a finite number") as caught:
        list(source.open_checkpoint(path).packed_tensors())
    assert caught.value.tensor == "blk.1.ffn_up.weight"
    assert caught.value.path == str(path)


def test_columns_are_cut_between_groups_only() -> None:
    kind = GGMLQuantizationType.Q4_1
    grouped = gguf_blocks.unpack(gguf_files.random_blocks(kind, (4, 128), 0), kind)
    assert np.array_equal(grouped.columns(32, 96).dequantise(), grouped.dequantise()[:, 32:96])
    for start, stop in ((16, 64), (32, 65)):
        with pytest.raises(ValueError, match="cut a group of 32"):
            grouped.columns(start, stop)
