"""Generated conversations in every format mean the same however they are cut: what was written."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream_engine.tools.formats import TOOL_FORMATS
from tests.depth import cases
from tests.engine.tools import writing
from tests.engine.tools.writing import read

_FORMATS = pytest.mark.parametrize("name", TOOL_FORMATS)


@_FORMATS
@settings(cases(25), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 1 << 30))
def test_streams_of_any_cut_and_whole_texts_mean_what_was_written(
    name: str, data: st.DataObject, seed: int
) -> None:
    made = data.draw(writing.conversations(TOOL_FORMATS[name]))
    form, rng = made.form(), random.Random(seed)
    assert read(form, [made.text]) == made.outcome
    assert read(form, writing.by_bytes(made.text)) == made.outcome
    assert read(form, writing.by_tokens(made.text, rng)) == made.outcome
