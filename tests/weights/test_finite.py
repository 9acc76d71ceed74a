"""A value that is no number is found wherever it stands, in every form of weights."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_weights.checkpoint import Array, finite
from slipstream_weights.errors import ModelInvalid
from slipstream_weights.grouped import Grouped

_BAD = st.sampled_from([np.nan, np.inf, -np.inf])


def _grouped() -> Grouped:
    scales = np.ones((16, 2), np.float32)
    return Grouped(np.zeros((16, 64), np.uint8), scales, scales.copy(), bits=4, group=32)


def _passed(value: Array | Grouped) -> list[tuple[str, Array | Grouped]]:
    return list(finite(iter([("good", np.zeros(3, np.float32)), ("one", value)]), "here"))


@given(st.sampled_from([np.float32, np.float16]), st.integers(1, 300), st.integers(0), _BAD)
def test_in_a_dense_tensor(dtype: type, size: int, place: int, number: float) -> None:
    value: Array = np.full(size, 60_000, dtype)
    assert _passed(value)[1][1] is value
    value[place % size] = number
    with pytest.raises(ModelInvalid, match=r"NaN or infinite \(here, tensor one\)"):
        _passed(value)


@given(st.booleans(), st.integers(0, 31), _BAD)
def test_in_the_scales_of_codes(is_scale: bool, place: int, number: float) -> None:
    value = _grouped()
    assert _passed(value)[1][1] is value
    (value.scales if is_scale else value.minimums).reshape(-1)[place] = number
    with pytest.raises(ModelInvalid):
        _passed(value)


def test_values_that_only_add_up_to_infinity_are_numbers() -> None:
    assert len(_passed(np.full(9, 3e38, np.float32))) == 2


def test_nothing_is_read_before_it_is_wanted() -> None:
    def tensors() -> Iterator[tuple[str, Array | Grouped]]:
        yield "first", np.ones(2, np.float32)
        raise AssertionError("read too early")

    assert next(finite(tensors(), "here"))[0] == "first"
