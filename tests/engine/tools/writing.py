"""Conversations in every format, as the models write them, and what they mean."""

import codecs
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from slipstream_engine.tools import formats
from slipstream_engine.tools.calls import Call
from slipstream_engine.tools.formats import Formats, ToolFormat
from slipstream_engine.tools.parser import AnswerForm, Parser

THINK = formats.REASONING_FORMATS["think"]
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a client has at the end; arguments as the client reads them."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, Arguments], ...]


def write_call(own: ToolFormat, name: str, arguments: Mapping[str, Any], index: int) -> str:
    opening = own.opening(name, index)
    if own.parameters is None:
        return opening + json.dumps(arguments, ensure_ascii=False) + own.closing
    parts = [opening]
    for key, value in arguments.items():
        is_string = isinstance(value, str)
        text = value if is_string else json.dumps(value, ensure_ascii=False)
        parts += [own.parameters.opening(key, is_string=is_string), text, own.parameters.closing]
    return "".join(parts) + own.closing


def write_calls(own: ToolFormat, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    written = [write_call(own, name, args, i) for i, (name, args) in enumerate(calls)]
    return own.section_begin + own.separator.join(written) + own.section_end


def schema_of(arguments: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A tool's schema that has the type of every value."""
    properties: dict[str, Any] = {}
    for one in arguments:
        for key, value in one.items():
            types = {*properties.get(key, {"type": []})["type"], _TYPES[type(value)]}
            properties[key] = {"type": sorted(types)}
    return {"type": "object", "properties": properties}


def schemas(calls: Sequence[tuple[str, Arguments]]) -> dict[str, Any]:
    """Of the tools that are called, and of one that is not."""
    return {
        name: schema_of(args for other, args in calls if other == name)
        for name in ("other", *(name for name, _ in calls))
    }


_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}


def form(
    own: ToolFormat | None,
    schemas: Mapping[str, Any],
    *,
    is_thinking: bool = False,
    has_reasoning: bool = True,
    max_calls: int | None = None,
) -> AnswerForm:
    made = Formats(own, THINK if has_reasoning else None)
    return AnswerForm(made, schemas, is_thinking=is_thinking, max_calls=max_calls)


def read(made: AnswerForm, pieces: Iterable[str], *, is_whole: bool = True) -> Outcome:
    """The outcome of a stream, piece by piece, and on the way what holds of every stream."""
    parser = Parser(made)
    content, reasoning, num_decided = "", "", 0
    calls: list[Call] = []
    for piece in [*pieces, None]:
        if piece is None:
            parser.finish(is_whole=is_whole)
        else:
            parser.push(piece)
        said = parser.take()
        content += said.content
        reasoning += said.reasoning
        calls += said.calls
        assert said.num_decided >= num_decided
        num_decided = said.num_decided
        assert sum(end - start for start, end in said.spans) == len(said.content)
        for call in said.calls:
            assert isinstance(json.loads(call.arguments), dict)
            call.arguments.encode()
    return Outcome(content, reasoning, tuple((c.name, json.loads(c.arguments)) for c in calls))


def by_bytes(text: str) -> Iterator[str]:
    """Byte by byte, as tokens of one byte come: empty until a character is whole."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    return (decoder.decode(bytes([byte])) for byte in text.encode())


def by_tokens(text: str, rng: random.Random) -> Iterator[str]:
    """Steps of one to eight tokens of one to six characters: what speculation makes of it."""
    place = 0
    while place < len(text):
        step = sum(rng.randint(1, 6) for _ in range(rng.randint(1, 8)))
        yield text[place : place + step]
        place += step


def all_cuts(text: str) -> Iterator[tuple[str, str]]:
    return ((text[:place], text[place:]) for place in range(len(text) + 1))


# What a client's tool might have to write: the markers of every format, and of the prompt's.
_MARKERS = sorted(
    {"<think>", "</think>", "```", "<|im_end|>", "&lt;", "]]>"}
    | {piece for own in formats.TOOL_FORMATS.values() for piece in own.markers}
    | {
        piece.strip()
        for own in formats.TOOL_FORMATS.values()
        for piece in (own.begin, own.end, own.section_begin, own.section_end, own.after_name)
        if piece.strip()
    }
)
_PLAIN = st.text(st.characters(codec="utf-8"), max_size=12)


def _quoted(own: ToolFormat) -> str:
    """A whole call as data: someone edits a parser's tests."""
    return write_calls(own, [("inner", {"x": "1", "y": "a\nb"})])


@st.composite
def strings(draw: st.DrawFn, own: ToolFormat) -> str:
    """Any text, with markers in it: each among other characters, calls only whole.

    What cannot be told apart is left out: a closing tag and all that follows it at a call's end.
    """
    hazards = st.sampled_from([*_MARKERS, _quoted(own), '"', "\\", "\\u00", "{", "}", "\n", "\t"])
    pieces = draw(st.lists(st.one_of(_PLAIN, hazards), max_size=6))
    # An opening tag that stays open is a case of its own.
    parameters = own.parameters
    if parameters is not None:
        opens = (parameters.begin, *formats.pieces(parameters.after_key)[-1:])
        pieces = [p for p in pieces if p not in opens]
    return "·".join(pieces)


def values(own: ToolFormat) -> st.SearchStrategy[Any]:
    texts = strings(own)
    plain = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
    )
    nested = st.recursive(
        st.one_of(plain, texts),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)
        ),
        max_leaves=6,
    )
    return st.one_of(texts, plain, nested)


_NAMES = st.sampled_from(["read_file", "edit", "f", "mcp__git-log", "a.b_c"])
_KEYS = st.one_of(
    st.sampled_from(["path", "content", "old_string", "x", "é", "a b"]),
    st.text("abcdefghij_-0123456789", min_size=1, max_size=6),
)
_SAID = st.text(st.characters(codec="utf-8", exclude_characters="<｜"), max_size=20)


@dataclass(frozen=True)
class Conversation:
    """One answer as it was written, and its meaning."""

    own: ToolFormat
    text: str
    is_thinking: bool
    calls: list[tuple[str, Arguments]]
    outcome: Outcome

    @property
    def schemas(self) -> dict[str, Any]:
        return schemas(self.calls)

    def form(self) -> AnswerForm:
        return form(self.own, self.schemas, is_thinking=self.is_thinking)


@st.composite
def conversations(draw: st.DrawFn, own: ToolFormat) -> Conversation:
    """Thinking or none, text or none, calls, thinking or text after them."""
    # Strings and other values of one key have one type each: a schema cannot say more.
    calls = draw(
        st.lists(
            st.tuples(_NAMES, st.dictionaries(_KEYS, values(own), max_size=3)),
            min_size=0,
            max_size=3,
        )
    )
    calls = [(name, args) for i, (name, args) in enumerate(calls) if name not in dict(calls[:i])]
    before, after = draw(_SAID), draw(_SAID)
    thoughts = [draw(st.one_of(st.none(), _SAID)) for _ in range(2)]
    is_thinking = thoughts[0] is not None and draw(st.booleans())
    gap = draw(st.sampled_from(["", "\n", "\n\n", " \n"]))
    text, reasoning = "", ""
    if thoughts[0] is not None:
        begin = "" if is_thinking else draw(st.sampled_from(["", "\n"])) + THINK.begin
        text += f"{begin}\n{thoughts[0]}\n{THINK.end}\n\n"
        reasoning += thoughts[0].strip("\n")
        before = before.lstrip("\n")
    text += before
    content = before
    if calls:
        text += gap + write_calls(own, calls) + gap
        content = before.rstrip(" \t\r\n")
        after = gap + after
        if thoughts[1] is not None:
            text += f"{THINK.begin}\n{thoughts[1]}{THINK.end}"
            reasoning += thoughts[1].strip("\n")
            after = after[len(gap) :].lstrip("\n")
            text += after
        else:
            text += after[len(gap) :]
        content += after if after.strip(" \t\r\n") else ""
    return Conversation(own, text, is_thinking, calls, Outcome(content, reasoning, tuple(calls)))


_Calls = list[tuple[str, Arguments]]


@st.composite
def thoughts_with_calls(draw: st.DrawFn, own: ToolFormat) -> tuple[str, _Calls, _Calls]:
    """What is thought, calls that are thought of, and calls that are made at the end of it."""
    values = st.one_of(st.text("ab {}[]'\n", max_size=8), st.integers(), st.booleans())
    one = st.tuples(_NAMES, st.dictionaries(_KEYS, values, max_size=2))
    calls = st.lists(one, max_size=2, unique_by=lambda call: call[0])
    quoted, made = draw(calls), draw(calls)
    made = [call for call in made if call[0] not in dict(quoted)]
    return draw(_SAID).lstrip("\n"), quoted, made
