"""Calls of tools as a grammar: forced ones, and those whose arguments must keep to their schema.

A call is written as the model's format has it. Where none is forced, any text may come, and after
the words that begin a call nothing but a call up to its end.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream_engine.guides import elements, lark, schema
from slipstream_engine.guides.spec import Guide, GuideError, GuideKind
from slipstream_engine.tools.formats import ToolFormat

_TEXT = "TEXT: /(?s:.*)/"
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}
# Of the arguments of all tools. In elements each argument brings the definitions that it needs.
_MAX_CHARACTERS = 4 << 20


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called. `path`: where its parameters stand in the document.

    `parameters`: None where it takes none. Only `is_strict` ones are held to them for certain.
    """

    name: str
    parameters: Mapping[str, Any] | None
    is_strict: bool
    path: str


def forced(
    spoken: ToolFormat, tools: Sequence[Tool], max_calls: int | None, *, is_plain: bool = False
) -> Guide:
    """One call at least, and nothing else. Raises GuideError.

    Tools that are not strict are held to schemas that can be guides; none of them if `is_plain`.
    """
    rules = _Rules(spoken, tools, max_calls, is_plain=is_plain)
    begin = spoken.section_begin + spoken.begin
    return _guide(["start: " + lark.row(lark.literal(begin), "calls"), *rules.lines()])


def strict(
    spoken: ToolFormat, tools: Sequence[Tool], max_calls: int | None, content: Guide | None = None
) -> Guide:
    """Calls within any text, or calls instead of content of a form. Raises GuideError."""
    rules = _Rules(spoken, tools, max_calls, is_plain=True)
    if content is not None:
        begin = spoken.section_begin + spoken.begin
        calls = lark.row(lark.literal(begin), "calls")
        return _guide([f"start: {calls} | {_content(content)}", *rules.lines()])
    begins = [spoken.first_marker]
    if spoken.has_bare_calls:
        begins.append(spoken.begin)
    lines, ways = ["tail: TEXT", _TEXT], []
    for index, begin in enumerate(begins):
        lines.append(f"head{index}[lazy]: TEXT {lark.literal(begin)}")
        rest = (spoken.section_begin + spoken.begin).partition(begin)[2]
        ways.append(lark.row(f"head{index}", lark.literal(rest), "calls"))
    times = "?" if max_calls == 1 else "*"
    return _guide([f"start: {lark.either(ways)}{times} tail", *lines, *rules.lines()])


def _guide(lines: list[str]) -> Guide:
    return Guide(GuideKind.GRAMMAR, "\n".join(lines) + "\n")


def _content(guide: Guide) -> str:
    match guide.kind:
        case GuideKind.JSON_OBJECT:
            return lark.json_value(_ANY_OBJECT)
        case GuideKind.JSON_SCHEMA:
            return lark.json_value(json.loads(guide.text))
    raise GuideError("a form other than JSON and tools exclude each other")


class _Rules:
    """The rule `calls`: everything after the `begin` of the first call, to the section's end."""

    def __init__(
        self, spoken: ToolFormat, tools: Sequence[Tool], max_calls: int | None, *, is_plain: bool
    ) -> None:
        self._spoken = spoken
        self._max_calls = max_calls
        self._room = _MAX_CHARACTERS
        self._calls = [self._call(tool, is_plain=is_plain) for tool in tools]

    def lines(self) -> Iterator[str]:
        spoken = self._spoken
        more = lark.literal(spoken.separator + spoken.begin)
        some = "" if self._max_calls == 1 else f"({more} call)*"
        yield "calls: " + lark.row("call", some, lark.literal(spoken.section_end)).strip()
        yield f"call: {lark.either(self._calls)}"
        if (own := spoken.parameters) is not None:
            yield from elements.rules(own)

    def _call(self, tool: Tool, *, is_plain: bool) -> str:
        spoken = self._spoken
        if spoken.has_ids:
            name = f"functions.{tool.name}:"
            header = lark.row(lark.literal(name), "/[0-9]{1,6}/", lark.literal(spoken.after_name))
        else:
            header = lark.literal(spoken.opening(tool.name, 0).removeprefix(spoken.begin))
        return lark.row(header, self._arguments(tool, is_plain), lark.literal(spoken.closing))

    def _arguments(self, tool: Tool, is_plain: bool) -> str:
        if tool.parameters is None:
            return self._written(_NO_ARGUMENTS)
        if tool.is_strict or not is_plain:
            try:
                found = json.loads(schema.checked({"type": "object", **tool.parameters}))
                if found["type"] != "object":
                    raise GuideError("arguments are an object", ".type")
                return self._written(found)
            except GuideError as error:
                if tool.is_strict:
                    raise GuideError(str(error), tool.path + error.path) from error
        if self._spoken.parameters is None:
            return lark.json_value(_ANY_OBJECT)
        return f"({elements.of_any(self._spoken.parameters, tool.parameters)})*"

    def _written(self, found: Mapping[str, Any]) -> str:
        """Arguments by a schema that was read."""
        own = self._spoken.parameters
        made = (
            lark.json_value(dict(found))
            if own is None
            else elements.by_schema(own, found, self._room)
        )
        if len(made) > self._room:
            raise GuideError(f"more than {_MAX_CHARACTERS} characters of grammar altogether")
        self._room -= len(made)
        return made
