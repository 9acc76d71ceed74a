"""Generated conversations in every format mean the same however they are cut: what was written."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream_engine.tools.formats import TOOL_FORMATS
from slipstream_engine.tools.waiting import WHITE
from tests.depth import cases
from tests.engine.tools import writing
from tests.engine.tools.writing import Outcome, read

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


@_FORMATS
@settings(cases(25), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 1 << 30))
def test_calls_that_end_thinking_are_made_and_those_that_thinking_follows_are_not(
    name: str, data: st.DataObject, seed: int
) -> None:
    """vllm#39056: calls were lost in thinking that the model forgot to end."""
    own, rng = TOOL_FORMATS[name], random.Random(seed)
    said, quoted, made = data.draw(writing.thoughts_with_calls(own))
    schemas = writing.schemas([*quoted, *made])
    form = writing.form(own, schemas, is_thinking=True)
    thought = f"{said} {writing.write_calls(own, quoted)} and " if quoted else said
    text = thought + (writing.write_calls(own, made) if made else "")
    expected = Outcome("", thought.rstrip(WHITE) if made else thought.rstrip("\n"), tuple(made))
    for cut in ([text], writing.by_bytes(text), writing.by_tokens(text, rng)):
        assert read(form, cut) == expected
    for cut in ([text], writing.by_bytes(text), writing.by_tokens(text, rng)):
        assert read(form, cut, is_whole=False).calls == ()
    followed = f"{text}</think>so"
    outcome = Outcome("so", text.rstrip("\n"), ())
    for cut in ([followed], writing.by_bytes(followed), writing.by_tokens(followed, rng)):
        assert read(form, cut) == outcome
