"""Calls of tools as a grammar: forced ones, and those whose arguments must keep to their schema.

A call is written as the model's format has it. Where none is forced, any text may come, and after
the words that begin a call nothing but a call up to its end.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream_engine.guides import lark, schema
from slipstream_engine.guides.spec import Guide, GuideError, GuideKind
from slipstream_engine.tools.formats import KEY_PATTERN, Parameters, ToolFormat

_TEXT = "TEXT: /(?s:.*)/"
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": False}
# What a string without quotes is not held to.
_RAW_LIMITS = ("pattern", "format", "minLength", "maxLength", "allOf")


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
    return _guide(["start: " + _row(lark.literal(begin), "calls"), *rules.lines()])


def strict(
    spoken: ToolFormat, tools: Sequence[Tool], max_calls: int | None, content: Guide | None = None
) -> Guide:
    """Calls within any text, or calls instead of content of a form. Raises GuideError."""
    rules = _Rules(spoken, tools, max_calls, is_plain=True)
    if content is not None:
        begin = spoken.section_begin + spoken.begin
        calls = _row(lark.literal(begin), "calls")
        return _guide([f"start: {calls} | {_content(content)}", *rules.lines()])
    begins = [spoken.section_begin.strip() or spoken.begin]
    if spoken.has_bare_calls:
        begins.append(spoken.begin)
    lines, ways = ["tail: TEXT", _TEXT], []
    for index, begin in enumerate(begins):
        lines.append(f"head{index}[lazy]: TEXT {lark.literal(begin)}")
        rest = (spoken.section_begin + spoken.begin).partition(begin)[2]
        ways.append(_row(f"head{index}", lark.literal(rest), "calls"))
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


def _row(*parts: str) -> str:
    return " ".join(part for part in parts if part != '""')


class _Rules:
    """The rule `calls`: everything after the `begin` of the first call, to the section's end."""

    def __init__(
        self, spoken: ToolFormat, tools: Sequence[Tool], max_calls: int | None, *, is_plain: bool
    ) -> None:
        self._spoken = spoken
        self._max_calls = max_calls
        self._calls = [self._call(tool, is_plain=is_plain) for tool in tools]

    def lines(self) -> Iterator[str]:
        spoken = self._spoken
        more = lark.literal(spoken.separator + spoken.begin)
        some = "" if self._max_calls == 1 else f"({more} call)*"
        yield "calls: " + _row("call", some, lark.literal(spoken.section_end)).strip()
        yield f"call: {lark.either(self._calls)}"
        if (own := spoken.parameters) is not None:
            yield f"KEY: /{KEY_PATTERN}/"
            # Lazy: the first closing tag is the end, with the frame before it or without.
            yield f"raw[suffix={lark.literal(own.end.rstrip())}]: /(?s:.*)/"

    def _call(self, tool: Tool, *, is_plain: bool) -> str:
        spoken = self._spoken
        if spoken.has_ids:
            name = f"functions.{tool.name}:"
            header = _row(lark.literal(name), "/[0-9]{1,6}/", lark.literal(spoken.after_name))
        else:
            header = lark.literal(spoken.opening(tool.name, 0).removeprefix(spoken.begin))
        return _row(header, self._arguments(tool, is_plain), lark.literal(spoken.closing))

    def _arguments(self, tool: Tool, is_plain: bool) -> str:
        if tool.parameters is None:
            return self._written(_NO_ARGUMENTS, "")
        if tool.is_strict or not is_plain:
            try:
                found = json.loads(schema.checked({"type": "object", **tool.parameters}))
                if found["type"] != "object":
                    raise GuideError("arguments are an object", ".type")
                return self._written(found, "")
            except GuideError as error:
                if tool.is_strict:
                    raise GuideError(str(error), tool.path + error.path) from error
        if self._spoken.parameters is None:
            return lark.json_value(_ANY_OBJECT)
        return f"({self._any_element(self._spoken.parameters, tool.parameters)})*"

    def _written(self, found: Mapping[str, Any], path: str) -> str:
        """Arguments by a schema that was read."""
        own = self._spoken.parameters
        if own is None:
            return lark.json_value(dict(found))
        if any(word in found for word in ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")):
            raise GuideError("arguments in elements need an object with properties", path)
        required = found.get("required", ())
        properties = found.get("properties", {})
        for name in required:
            if name not in properties:
                raise GuideError(f"no property is called {name[:100]!r}", f"{path}.required")
        elements = []
        for key, value in properties.items():
            element = _element(own, key, value, found, f"{path}.properties.{key}")
            elements.append(element if key in required else f"({element})?")
        return " ".join(elements)

    def _any_element(self, own: Parameters, parameters: Mapping[str, Any]) -> str:
        names = [name for name in parameters.get("properties") or () if isinstance(name, str)]
        if not names:
            opening = _row(lark.literal(own.begin), "KEY", lark.literal(own.after_key + own.frame))
            return _row(opening, _raw(own))
        return lark.either(
            _row(lark.literal(own.opening(name, is_string=True)), _raw(own)) for name in names
        )


def _raw(own: Parameters) -> str:
    return _row("raw", lark.literal(own.end[len(own.end.rstrip()) :]))


def _element(own: Parameters, key: str, value: Any, root: Mapping[str, Any], path: str) -> str:
    """One argument. Of several kinds of value each has its own form, where the format tells."""
    ways: dict[str, None] = {}
    for leaf in _leaves(value, root):
        for is_string, written in _values(own, leaf, root, path):
            ways[_row(lark.literal(own.opening(key, is_string=is_string)), written)] = None
    return lark.either(ways)


def _leaves(value: Any, root: Mapping[str, Any]) -> Iterator[Any]:
    """The alternatives of a schema, of one type each, or of none."""
    if not isinstance(value, dict):
        yield value
    elif "$ref" in value:
        yield from _leaves(schema.target(root, value["$ref"], ""), root)
    elif "anyOf" in value or "oneOf" in value:
        for one in value["anyOf"] if "anyOf" in value else value["oneOf"]:
            yield from _leaves(one, root)
    elif isinstance(value.get("type"), list):
        for type_ in value["type"]:
            yield {**value, "type": type_}
    else:
        yield value


def _values(
    own: Parameters, leaf: Any, root: Mapping[str, Any], path: str
) -> Iterator[tuple[bool, str]]:
    """How values of one alternative are written, to the end of the element."""
    closing = lark.literal(own.closing)
    if isinstance(leaf, dict) and ("enum" in leaf or "const" in leaf):
        values: list[Any] = leaf["enum"] if "enum" in leaf else [leaf["const"]]
        for one in values:
            is_string = isinstance(one, str)
            text = one if is_string else json.dumps(one, ensure_ascii=False)
            yield is_string, _row(lark.literal(text), closing)
    elif not isinstance(leaf, dict) or leaf.get("type", "string") == "string":
        # Without a type a value is read as a string too.
        for word in _RAW_LIMITS:
            if isinstance(leaf, dict) and word in leaf:
                raise GuideError(f"{word} is not supported in this model's form", f"{path}.{word}")
        yield True, _raw(own)
    else:
        has_references = '"$ref"' in json.dumps(leaf)
        names = [name for name in ("$defs", "definitions") if has_references and name in root]
        defined = {name: root[name] for name in names}
        yield False, _row(lark.json_value({**defined, **leaf}), closing)
