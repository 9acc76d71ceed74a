"""Arguments of a call as JSON that every client can read. Pure; knows no format's markers.

What the model wrote is passed on as it stands where it is valid, so that the conversation's next
prompt holds the same text again. Values without types get them from the tool's schema.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from math import isfinite
from sys import float_info
from typing import Any, NoReturn

Schema = Mapping[str, Any]
# Clients recurse: Python's own reader gives up at a thousand, others sooner.
MAX_DEPTH = 100
# Parts of a schema that are looked at for one value's type: references may go round in circles.
_MAX_PARTS = 256
_WHITE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no value of JSON")


def _number(text: str) -> float:
    """The largest for 1e999, which is JSON, but an error to some clients, to some an infinity."""
    return min(max(float(text), -float_info.max), float_info.max)


def _finite(text: str) -> float:
    return float(text) if isfinite(float(text)) else _refuse(text)


# Not strict: models write line ends into strings as they are; `_valid` escapes them.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse, parse_float=_number)


def is_json(text: str) -> bool:
    return _read(text) is not None


def read_object(text: str) -> str | None:
    """One JSON object as it goes to clients; None for anything else."""
    read = _read(text)
    return read[1] if read is not None and isinstance(read[0], dict) else None


def read_history(given: str | Mapping[str, Any] | None) -> str:
    """The arguments of an earlier call as a JSON object, whatever they were.

    What is none becomes the one member of an object: the model sees what it wrote, and every
    template can write it.
    """
    if isinstance(given, Mapping):
        return json.dumps(given, ensure_ascii=False)
    text = (given or "").strip()
    if text in ("", "null"):
        return "{}"
    made = read_object(text)
    return json.dumps({"arguments": text}, ensure_ascii=False) if made is None else made


def read_envelope(text: str) -> tuple[str, str] | None:
    """Name and arguments of `{"name": …, "arguments": {…}}`; None where it is no such object."""
    if _depth(text) > MAX_DEPTH:
        return None
    try:
        members = dict(_members(text))
    except (ValueError, IndexError):
        return None
    name, _ = members.get("name", (None, ""))
    value, raw = members.get("arguments", members.get("parameters", ({}, "{}")))
    if not isinstance(name, str):
        return None
    if isinstance(value, str):
        # An object within a string: an escape too many.
        made = read_object(value.strip() or "{}")
    elif value is None:
        made = "{}"
    else:
        made = _valid(value, raw) if isinstance(value, dict) else None
    return None if made is None else (name, made)


def _members(text: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Key, value and the value's own text. Raises ValueError or IndexError at what is no object."""

    def skip(place: int) -> int:
        match = _WHITE.match(text, place)
        return place if match is None else match.end()

    place = skip(1)
    while text[place] != "}":
        key, place = _DECODER.raw_decode(text, place)
        place = skip(place)
        if not isinstance(key, str) or text[place] != ":":
            raise ValueError("no key")
        start = skip(place + 1)
        value, place = _DECODER.raw_decode(text, start)
        yield key, (value, text[start:place])
        place = skip(place)
        if text[place] == ",":
            place = skip(place + 1)
        elif text[place] != "}":
            raise ValueError("no end")


def _valid(value: Any, text: str) -> str | None:
    """`text` where every client can read it, else the same value written anew."""
    if _SURROGATE.search(text) is None:
        try:
            json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except ValueError:
            pass
        else:
            return text
    try:
        made = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return None
    # Halves of a pair that have no other half: strict readers refuse them.
    return made.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def properties(schema: Schema) -> Mapping[str, Any]:
    """What a tool's schema says of its arguments; nothing where it is no schema."""
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def write_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def write_json(text: str) -> str:
    """A value that should be JSON already; a string where it is not."""
    read = _read(text.strip())
    return write_string(text) if read is None else read[1]


def write_by_schema(text: str, schema: Any, root: Schema) -> str:
    """A value that nothing but the schema (of the property, within the `root`) gives a type.

    A string where the schema knows no type, names that very string, or allows nothing else that it
    could be.
    """
    types, words = _types(schema, root)
    if not types or types == {"string"} or text in words:
        return write_string(text)
    word = text.strip()
    # The templates of Qwen show a history's truth values as Python writes them.
    read = _read(_WORDS.get(word.lower(), word))
    if read is None:
        return write_string(text)
    value, made = read
    kind = _type(value)
    if kind == "number" and "integer" in types and "number" not in types:
        # 5.0 for 5.
        return str(int(value)) if isinstance(value, float) and value.is_integer() else made
    is_allowed = kind in types or (kind == "integer" and "number" in types)
    return made if is_allowed or "string" not in types else write_string(text)


def _read(text: str) -> tuple[Any, str] | None:
    """A JSON value and its text; None where it is none, or too deep."""
    if _depth(text) > MAX_DEPTH:
        return None
    try:
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        return None
    made = _valid(value, text) if end == len(text) else None
    return None if made is None else (value, made)


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        if bracket in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "}]":
            depth -= 1
    return deepest


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _types(schema: Any, root: Schema) -> tuple[set[str], set[str]]:
    """JSON types that a schema allows, none where it names none; and strings that it names."""
    types: set[str] = set()
    words: set[str] = set()
    parts: deque[Any] = deque([schema])
    for _ in range(_MAX_PARTS):
        if not parts:
            break
        part = parts.popleft()
        if not isinstance(part, Mapping):
            continue
        if isinstance(reference := part.get("$ref"), str):
            parts.append(_resolve(reference, root))
        for word in ("anyOf", "oneOf", "allOf"):
            parts.extend(_listed(part.get(word, [])))
        named, values = part.get("type"), list(_listed(part.get("enum", [])))
        values += [part["const"]] if "const" in part else []
        words.update(one for one in values if isinstance(one, str))
        if named is None:
            types.update(map(_type, values))
        types.update(one for one in _listed(named) if isinstance(one, str))
    return types, words


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _resolve(reference: str, root: Schema) -> Any:
    """`#/$defs/NAME` within the tool's own schema; None where there is no such place."""
    if not reference.startswith("#/"):
        return None
    place: Any = root
    for part in reference[2:].split("/"):
        if not isinstance(place, Mapping):
            return None
        place = place.get(part.replace("~1", "/").replace("~0", "~"))
    return place
