"""Recorded answers, cut at every byte: the same content, thinking and calls, streamed or whole."""

import random

import pytest

from slipstream_engine.tools.formats import TOOL_FORMATS
from tests.engine.tools import writing
from tests.engine.tools.recorded import CASES, RECORDED, SCHEMAS
from tests.engine.tools.writing import Outcome, read

_CASES = pytest.mark.parametrize(("name", "case"), CASES)


def test_every_format_has_recorded_answers() -> None:
    assert set(RECORDED) == set(TOOL_FORMATS)


@_CASES
def test_an_answer_means_the_same_whole_and_cut_at_every_byte(name: str, case: str) -> None:
    recorded = RECORDED[name][case]
    form = writing.form(TOOL_FORMATS[name], SCHEMAS, is_thinking=recorded.is_thinking)
    expected = Outcome(recorded.content, recorded.reasoning, recorded.calls)
    assert read(form, [recorded.text]) == expected
    assert read(form, writing.by_bytes(recorded.text)) == expected
    for cut in writing.all_cuts(recorded.text):
        assert read(form, cut) == expected, cut
    for seed in range(30):
        assert read(form, writing.by_tokens(recorded.text, random.Random(seed))) == expected


@_CASES
def test_an_answer_that_breaks_off_anywhere_has_whole_calls_or_none_and_loses_no_text(
    name: str, case: str
) -> None:
    """What it has is a beginning of what the whole answer has, but for text that stays content."""
    recorded = RECORDED[name][case]
    form = writing.form(TOOL_FORMATS[name], SCHEMAS, is_thinking=recorded.is_thinking)
    for end in range(len(recorded.text)):
        cut = read(form, [recorded.text[:end]], is_whole=False)
        assert cut.calls == recorded.calls[: len(cut.calls)]
        if not cut.calls:
            kept = cut.reasoning + cut.content
            lost = len(recorded.text[:end]) - len(kept)
            assert lost <= len("<think>\n") + len("\n</think>\n\n") + 1
        assert read(form, writing.by_bytes(recorded.text[:end]), is_whole=False) == cut
