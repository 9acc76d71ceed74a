"""Calls that are none, or not whole, stay content, and no call is made of their data."""

import json
import random
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream_engine.tools.formats import TOOL_FORMATS
from slipstream_engine.tools.parser import Parser
from tests.depth import cases
from tests.engine.tools import writing
from tests.engine.tools.recorded import SCHEMAS
from tests.engine.tools.writing import Outcome, read

_FORMATS = pytest.mark.parametrize("name", TOOL_FORMATS)
_GOOD = '<tool_call>{"name": "list_tests", "arguments": {}}</tool_call>'
_RM = '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'
_QWEN_RM = "<tool_call>\n<function=rm>\n</function>\n</tool_call>"

_SECTION = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
_EDIT = "<tool_call>\n<function=edit>\n"
_KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
_KIMI_END = "<|tool_call_end|><|tool_calls_section_end|>"
_BLANKS = ("\n", " ", "\n" * 300, " " * 257)
_XML_END = "\n</parameter>\n</function>\n</tool_call>"
# Format, text, and what calls are in it all the same; everything else of it is content.
_MALFORMED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a string that does not end": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x', ()),
    "a name that no tool may have": (
        "hermes",
        '<tool_call>{"name": "f\\n", "arguments": {}}</tool_call>',
        (),
    ),
    "a name that no history may have": (
        "hermes",
        '<tool_call>{"name": "' + "f" * 257 + '", "arguments": {}}</tool_call>',
        (),
    ),
    "a number that does not end": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', ()),
    "a list for arguments": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        (),
    ),
    "a list, then a call": (
        "hermes",
        f'<tool_call>{{"name": "f", "arguments": ["{_GOOD[:11]}"]}}</tool_call>{_GOOD}',
        ("list_tests",),
    ),
    "no name": ("hermes", '<tool_call>{"arguments": {}}</tool_call>', ()),
    "a name that is none": ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>', ()),
    "a quote that is not escaped, then a call as data": (
        "hermes",
        f'<tool_call>{{"name": "f", "arguments": {{"a": "say "{_RM}" twice"}}}}</tool_call>{_RM}',
        (),
    ),
    "cut off within data that holds a call": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "' + _RM.replace('"', "'") + _RM,
        (),
    ),
    "no JSON, then a call": (
        "hermes",
        f"<tool_call>{{name: f}}</tool_call>{_GOOD}",
        ("list_tests",),
    ),
    "another language's constants": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        (),
    ),
    "a comma too many": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>',
        (),
    ),
    "brackets that do not match": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": [1}}</tool_call>',
        (),
    ),
    "more digits than clients read": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>",
        (),
    ),
    "deeper than clients read": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 101 + "]" * 101 + "}}</tool_call>",
        (),
    ),
    "a deep object within a string": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": ' + "[" * 5000 + '"}</tool_call>',
        (),
    ),
    "the first is whole": (
        "hermes",
        f'{_GOOD}<tool_call>{{"name": "f", "arguments": {{"a": 1',
        ("list_tests",),
    ),
    "no function in the section": ("qwen3_coder", "<tool_call>\nread_file\n</tool_call>", ()),
    "a name with a space": ("qwen3_coder", "<tool_call><function=a b></function></tool_call>", ()),
    "a value that does not end": (
        "qwen3_coder",
        f"{_EDIT}<parameter=new>\n{_QWEN_RM}\n{_QWEN_RM}",
        (),
    ),
    "text between arguments": (
        "qwen3_coder",
        f"{_EDIT}hm\n<parameter=new>\nx{_XML_END}{_QWEN_RM}",
        ("rm",),
    ),
    "a closing tag that the model forgot": (
        "qwen3_coder",
        f"{_EDIT}<parameter=old>\na\n<parameter=new>\nb{_XML_END}",
        (),
    ),
    "an argument without a key": (
        "qwen3_coder",
        f"{_EDIT}<parameter=>\na{_XML_END}",
        (),
    ),
    "the header is text": ("glm45", "<tool_call>what is this? </tool_call>", ()),
    "no value": ("glm45", "<tool_call>edit\n<arg_key>new</arg_key>\n</tool_call>", ()),
    "no arguments": (
        "kimi_k2",
        f"{_KIMI}{_KIMI_END}",
        (),
    ),
    "an object that the call's end cuts": (
        "kimi_k2",
        f'{_KIMI}<|tool_call_argument_begin|>{{"a": {_KIMI_END}',
        (),
    ),
    "a fence without JSON": (
        "deepseek_v3",
        f"{_SECTION}f\n```json\nno\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (),
    ),
}


@pytest.mark.parametrize(("name", "text", "calls"), _MALFORMED.values(), ids=_MALFORMED)
def test_what_is_no_call_stays_content_however_it_is_cut(
    name: str, text: str, calls: tuple[str, ...]
) -> None:
    form = writing.form(TOOL_FORMATS[name], {**SCHEMAS, "f": {}, "rm": {}})
    whole = read(form, [text])
    assert tuple(call for call, _ in whole.calls) == calls
    if not calls:
        assert whole.content == text
    for seed in range(20):
        assert read(form, writing.by_tokens(text, random.Random(seed))) == whole
    assert read(form, writing.by_bytes(text)) == whole


def test_content_keeps_every_character_of_a_malformed_call_between_others() -> None:
    form = writing.form(TOOL_FORMATS["hermes"], SCHEMAS)
    bad = "<tool_call>{name: f}</tool_call>"
    outcome = read(form, [f"a {_GOOD}\n b {bad} \n{_GOOD} c"])
    assert outcome.content == f"a\n b {bad} c"
    assert len(outcome.calls) == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": x}}</tool_call>', 1),
        ("Write <tool_call> here.", 0),
        ('<tool_call>{"name": "f", "argu', 1),
        (_GOOD, 0),
    ],
    ids=["bad", "prose", "cut off", "good"],
)
def test_calls_that_were_meant_and_failed_are_counted(text: str, count: int) -> None:
    parser = Parser(writing.form(TOOL_FORMATS["hermes"], SCHEMAS))
    parser.push(text)
    parser.finish(is_whole=True)
    assert parser.num_malformed == count


@_FORMATS
@settings(cases(20), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 1 << 30))
def test_an_answer_that_breaks_off_has_the_first_calls_and_no_other(
    name: str, data: st.DataObject, seed: int
) -> None:
    """A file half written is worse than one not written; and its data is no call."""
    made = data.draw(writing.conversations(TOOL_FORMATS[name]))
    end = data.draw(st.integers(0, len(made.text)))
    form, text = made.form(), made.text[:end]
    cut = read(form, [text], is_whole=False)
    assert cut.calls == made.outcome.calls[: len(cut.calls)]
    assert read(form, writing.by_bytes(text), is_whole=False) == cut
    assert read(form, writing.by_tokens(text, random.Random(seed)), is_whole=False) == cut


@_FORMATS
@settings(cases(25), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 1 << 30), is_whole=st.booleans(), thinks=st.booleans())
def test_any_heap_of_markers_means_the_same_however_it_is_cut(
    name: str, data: st.DataObject, seed: int, is_whole: bool, thinks: bool
) -> None:
    own = TOOL_FORMATS[name]
    good = writing.write_calls(own, [("f", {"a": "1"}), ("g", {})])
    parts = [good, *own.markers, *writing.THINK.markers, own.opening("f", 0), own.closing]
    if own.parameters is not None:
        parts += [own.parameters.opening("a", is_string=True), own.parameters.closing]
    pieces = st.one_of(st.sampled_from([*parts, *_BLANKS, '{"', '"}', "{}"]), st.text(max_size=4))
    text = "".join(data.draw(st.lists(pieces, max_size=12)))
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + text[place + data.draw(st.integers(0, 3)) :]
    schemas = {"f": {"properties": {"a": {"type": "string"}}}, "g": {}}
    form = writing.form(own, schemas, is_thinking=thinks)
    whole = read(form, [text], is_whole=is_whole)
    assert read(form, writing.by_bytes(text), is_whole=is_whole) == whole
    assert read(form, writing.by_tokens(text, random.Random(seed)), is_whole=is_whole) == whole


@_FORMATS
def test_an_argument_of_a_hundred_thousand_characters_is_read_in_pieces(name: str) -> None:
    """Each character is looked at a few times, not once for every piece after it."""
    own = TOOL_FORMATS[name]
    value = "def f(x): return '<b>' \"q\" \n" * 4000
    text = writing.write_calls(own, [("f", {"a": value})])
    form = writing.form(own, {"f": {"properties": {"a": {"type": "string"}}}})
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
    assert read(form, pieces) == Outcome("", "", (("f", {"a": value}),))


@pytest.mark.parametrize("is_thinking", [False, True], ids=["content", "thinking"])
def test_a_model_that_writes_nothing_but_blanks_is_read_as_it_writes(is_thinking: bool) -> None:
    """White space that may stand before a call waits, but not all of it."""
    parser = Parser(writing.form(TOOL_FORMATS["hermes"], SCHEMAS, is_thinking=is_thinking))
    parser.push("x")
    told = ""
    for _ in range(100):
        parser.push(" \n" * 50)
        said = parser.take()
        told += said.content + said.reasoning
    assert len(told) > 9_000


@_FORMATS
def test_thinking_that_speaks_of_calls_is_streamed(name: str) -> None:
    """Only what looks like a call of an offered tool waits for the end of thinking."""
    own = TOOL_FORMATS[name]
    begin = own.section_begin.strip() or own.begin
    parser = Parser(writing.form(own, {"f": {}}, is_thinking=True))
    parser.push(f"Write {begin} and then the name, {own.opening('g', 0)}, say")
    assert parser.take().reasoning.endswith(
        "say" if not own.has_envelope else f"{begin} and then the name,"
    )
    parser.push(writing.write_calls(own, [("f", {"a": "x" * 300})]))
    assert "xxx" not in parser.take().reasoning


def test_an_answer_that_may_hold_one_call_ends_with_it() -> None:
    form = writing.form(TOOL_FORMATS["hermes"], SCHEMAS, max_calls=1)
    parser = Parser(form)
    for character in f"a {_GOOD}\n{_RM} b":
        parser.push(character)
    assert parser.is_full
    parser.finish(is_whole=True)
    said = parser.take()
    assert (said.content, [call.name for call in said.calls]) == ("a", ["list_tests"])


def test_without_offered_tools_all_text_is_content() -> None:
    text = f"  a {_GOOD} <think>b</think>\n"
    form = writing.form(TOOL_FORMATS["hermes"], {}, has_reasoning=False)
    assert form.is_plain
    assert read(form, writing.by_bytes(text)) == Outcome(text, "", ())


def test_arguments_are_passed_on_as_the_model_wrote_them() -> None:
    """The next turn's prompt has the same tokens again, and they are in the cache."""
    written = '{ "a":1.50, "b" : "\\u00e9\\/" ,"c":[ ]}'
    parser = Parser(writing.form(TOOL_FORMATS["hermes"], SCHEMAS))
    parser.push(f'<tool_call>{{"name": "f", "arguments": {written} }}</tool_call>')
    (call,) = parser.take().calls
    assert call.arguments == written


def test_the_models_own_ids_are_kept() -> None:
    parser = Parser(writing.form(TOOL_FORMATS["kimi_k2"], {"f": {}}))
    parser.push(writing.write_calls(TOOL_FORMATS["kimi_k2"], [("f", {}), ("f", {})]))
    assert [call.id for call in parser.take().calls] == ["functions.f:0", "functions.f:1"]


def test_a_number_that_no_client_reads_is_the_largest_that_they_do() -> None:
    parser = Parser(writing.form(TOOL_FORMATS["hermes"], SCHEMAS))
    parser.push('<tool_call>{"name": "f", "arguments": {"a": [-1e999, 1e3]}}</tool_call>')
    (call,) = parser.take().calls
    assert json.loads(call.arguments) == {"a": [-sys.float_info.max, 1000.0]}


def test_an_id_that_the_model_gives_twice_is_given_once() -> None:
    """Clients tell results by it."""
    parser = Parser(writing.form(TOOL_FORMATS["kimi_k2"], {"f": {}}))
    call = writing.write_calls(TOOL_FORMATS["kimi_k2"], [("f", {})])
    parser.push(call + call)
    assert [call.id for call in parser.take().calls] == ["functions.f:0", None]


def test_half_of_a_pair_of_surrogates_becomes_a_character_that_every_client_reads() -> None:
    parser = Parser(writing.form(TOOL_FORMATS["hermes"], SCHEMAS))
    parser.push('<tool_call>{"name": "f", "arguments": {"a": "x\\ud83d", "b": "\\ud83d\\ude42"}}')
    parser.finish(is_whole=True)
    (call,) = parser.take().calls
    assert json.loads(call.arguments) == {"a": "x\ufffd", "b": "🙂"}
