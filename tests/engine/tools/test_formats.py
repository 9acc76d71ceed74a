"""Which format a model speaks, and what every description must hold to."""

from typing import get_args

import pytest
from tokenizers import AddedToken

from slipstream_api.config import ReasoningFormat, ToolCallFormat
from slipstream_engine.text import TokenBytes
from slipstream_engine.tools import formats
from slipstream_engine.tools.formats import REASONING_FORMATS, TOOL_FORMATS
from tests.engine import tiny
from tests.engine.tools import writing

# The parts of each family's chat template by which it is known.
_TEMPLATES = {
    "hermes": '<tool_call>\\n{"name": "\' + tool_call.name + \'"',
    "qwen3_coder": "'<tool_call>\\n<function=' + tool_call.name + '>\\n'",
    "glm45": "{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}",
    "minimax_m2": "{%- set begin = '<minimax:tool_call>' -%}",
    "deepseek_v3": "'<｜tool▁calls▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n' + '```json'",
    "deepseek_v31": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>'",
    "deepseek_v32": "{%- set dsml = '｜DSML｜' -%}<{{ dsml }}function_calls>",
    "deepseek_v4": "{%- set dsml = '｜DSML｜' -%}<{{ dsml }}tool_calls>",
}


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_format_is_known_by_the_chat_template(name: str) -> None:
    found = formats.detect("{% if tools %}" + _TEMPLATES[name])
    assert found.tools is TOOL_FORMATS[name]
    assert found.reasoning is None


def test_thinking_is_known_by_the_chat_template() -> None:
    assert formats.detect("'<think>\\n'").reasoning is REASONING_FORMATS["think"]
    for template in (None, "", "{{ messages }}"):
        assert formats.detect(template) == formats.Formats()


def test_what_is_configured_outweighs_the_template() -> None:
    template = _TEMPLATES["hermes"] + "<think>"
    assert formats.choose("auto", "auto", template) == formats.detect(template)
    assert formats.choose("none", "none", template) == formats.Formats()
    chosen = formats.choose("glm45", "think", None)
    assert (chosen.tools, chosen.reasoning) == (TOOL_FORMATS["glm45"], REASONING_FORMATS["think"])


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_descriptions_hold_to_what_the_parser_rests_on(name: str) -> None:
    own = TOOL_FORMATS[name]
    begin = own.section_begin.strip() or own.begin
    assert begin.startswith("<") and begin.count("<") == 1
    assert bool(own.section_begin) == bool(own.section_end)
    assert own.opening("f", 0) + own.closing in writing.write_calls(own, [("f", {})]).replace(
        "{}", ""
    )
    assert all(marker.startswith("<") for marker in own.markers)


def test_thinking_is_open_where_the_prompt_ends_with_its_marker() -> None:
    think = REASONING_FORMATS["think"]
    assert think.is_open("<|assistant|>\n<think>\n")
    assert think.is_open("<think>")
    assert not think.is_open("<think>\n\n</think>\n\n")
    assert not think.is_open("<|assistant|>")


def test_every_format_can_be_configured_and_no_other() -> None:
    assert set(get_args(ToolCallFormat)) == {"auto", "none", *TOOL_FORMATS}
    assert set(get_args(ReasoningFormat)) == {"auto", "none", *REASONING_FORMATS}


@pytest.mark.parametrize("is_special", [False, True], ids=["ordinary", "special"])
def test_markers_are_text_also_where_a_tokeniser_holds_them_as_special_tokens(
    is_special: bool,
) -> None:
    """vllm PR#25281: they were skipped before the parser saw them."""
    own = formats.Formats(TOOL_FORMATS["kimi_k2"], REASONING_FORMATS["think"])
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens([AddedToken(one, special=is_special) for one in sorted(own.markers)])
    text = "<think>a</think>" + writing.write_calls(TOOL_FORMATS["kimi_k2"], [("f", {"a": "é"})])
    ids = tokenizer.encode(text).ids
    shown = TokenBytes(tokenizer, own.markers)
    assert b"".join(map(shown.of, ids)).decode() == text
    assert shown.name(ids[0]) == "<think>"
    # Others stay hidden.
    assert shown.of(1) == b""
    assert len(ids) < len(text)
