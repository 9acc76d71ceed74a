"""How one sample's answer ends, by what it holds and what was asked for."""

import pytest

from slipstream_engine.batch import Progress, Sampled
from slipstream_engine.choices import Asked, Choice, Spoken
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.text import TextStream, TokenBytes
from slipstream_engine.tools.formats import TOOL_FORMATS
from tests.engine import tiny
from tests.engine.tools import writing

_FORM = writing.form(TOOL_FORMATS["hermes"], {"f": {}})
_CALL = writing.write_calls(TOOL_FORMATS["hermes"], [("f", {})])
_ENDS: dict[str, tuple[str, FinishReason, bool, str]] = {
    "text": ("a", FinishReason.STOP, False, "stop"),
    "a call": (_CALL, FinishReason.STOP, False, "tool_calls"),
    "text and a call": (f"a\n{_CALL}", FinishReason.STOP, False, "tool_calls"),
    "a call that the client named": (_CALL, FinishReason.STOP, True, "stop"),
    "a call and the limit": (_CALL, FinishReason.LENGTH, False, "length"),
    "a named call and the limit": (_CALL, FinishReason.LENGTH, True, "length"),
    "no call where one was named": ("a", FinishReason.STOP, True, "stop"),
}


@pytest.mark.parametrize(("text", "finish", "is_forced", "reason"), _ENDS.values(), ids=_ENDS)
def test_the_reason_of_an_end_is_openais_word(
    text: str, finish: FinishReason, is_forced: bool, reason: str
) -> None:
    """vllm PR#25054: OpenAI's own table, for calls by choice, forced ones and cut ones."""
    tokenizer = tiny.tokenizer()
    ids = tokenizer.encode(text).ids
    request = Request("r", (1,), len(ids), SamplingParams(), frozenset({1}))
    spoken = Spoken(_FORM, is_forced_call=is_forced)
    choice = Choice(0, Asked(request), TextStream(TokenBytes(tokenizer), ()), spoken)
    ends = [None] * (len(ids) - 1) + [finish if finish is FinishReason.LENGTH else None]
    for token, end in zip(ids, ends, strict=True):
        assert choice.reason is None
        choice.add(Progress("r", 0, Sampled(token), end, 0))
    if finish is FinishReason.STOP:
        choice.add(Progress("r", 0, Sampled(1), finish, 0))
    assert choice.reason == choice.piece().finish == reason
