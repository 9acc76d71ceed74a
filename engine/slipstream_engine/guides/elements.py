"""Arguments that stand in elements of their own, by their schema, as rules of a grammar.

Strings stand there as they are, so nothing but their enumeration can be kept to. Of what else the
form cannot hold a strict tool is told by its path.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_engine.guides import lark, schema, unions
from slipstream_engine.guides.spec import GuideError
from slipstream_engine.tools import arguments
from slipstream_engine.tools.formats import KEY_PATTERN, Parameters

_ANNOTATIONS = ("$schema", "$defs", "definitions")
_OF_ARGUMENTS = ("type", "properties", "required", "additionalProperties")
# What a string without quotes is not held to.
_RAW_LIMITS = ("pattern", "format", "minLength", "maxLength", "allOf")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def by_schema(own: Parameters, found: Mapping[str, Any], room: int) -> str:
    """All arguments of one call, in the order of a schema that was read.

    `room`: how many characters there may be. Raises GuideError with the path.
    """
    _check_only(found, _OF_ARGUMENTS, "")
    required = found.get("required", ())
    properties = found.get("properties", {})
    for name in required:
        if properties.get(name, False) is False:
            raise GuideError(f"no property is called {name[:100]!r}", ".required")
    elements = list[str]()
    for key, value in properties.items():
        if value is False:
            continue
        path = f".properties.{key}"
        if not is_key(key):
            raise GuideError("this model's form has no such names", path)
        element = _element(own, key, value, found, path)
        elements.append(element if key in required else f"({element})?")
        room -= len(element)
        if room < 0:
            raise GuideError("too much for this model's form, altogether", path)
    return " ".join(elements)


def of_any(own: Parameters, parameters: Mapping[str, Any]) -> str:
    """One argument of any value, by the names that there are."""
    names = [name for name in arguments.properties(parameters) if is_key(name)]
    if not names:
        opening = lark.row(lark.literal(own.begin), "KEY", lark.literal(own.after_key + own.frame))
        return lark.row(opening, _raw(own))
    return lark.either(
        lark.row(lark.literal(own.opening(name, is_string=True)), _raw(own)) for name in names
    )


def rules(own: Parameters) -> Iterator[str]:
    """What the others refer to."""
    yield f"KEY: /{KEY_PATTERN}/"
    # Lazy: the first closing tag is the end, with the frame before it or without.
    yield f"raw[suffix={lark.literal(own.end.rstrip())}]: /(?s:.*)/"


def is_key(name: str) -> bool:
    """Whether an argument of the name is read as one again."""
    return re.fullmatch(KEY_PATTERN, name) is not None and name == name.strip()


def _raw(own: Parameters) -> str:
    return lark.row("raw", lark.literal(own.end[len(own.end.rstrip()) :]))


def _element(own: Parameters, key: str, value: Any, root: Mapping[str, Any], path: str) -> str:
    """One argument. Of several kinds of value each has its own form, where the format tells."""
    ways: dict[str, None] = {}
    for leaf, at in _leaves(value, root, path):
        for is_string, written in _values(own, leaf, root, at):
            ways[lark.row(lark.literal(own.opening(key, is_string=is_string)), written)] = None
    if not ways:
        raise GuideError("no value is of any of the types", path)
    return lark.either(ways)


def _leaves(value: Any, root: Mapping[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    """The alternatives of a schema, of one type each, or of none, with their paths.

    What was referred to already is there: alternatives of alternatives would be without number.
    """
    seen = set[str]()
    to_visit = [(value, path)]
    while to_visit:
        found, at = to_visit.pop()
        word = _alternatives(found)
        if word is None:
            types = found.get("type") if isinstance(found, dict) else None
            if isinstance(types, list):
                yield from (({**found, "type": type_}, at) for type_ in types)
            else:
                yield found, at
            continue
        _check_only(found, (word,), at)
        if word == "oneOf" and all(map(_is_object, unions.members(found, root))):
            # The library knows whether they exclude each other.
            yield {word: found[word]}, at
            continue
        at = f"{at}.{word}"
        if word != "$ref":
            to_visit += reversed([(one, f"{at}[{i}]") for i, one in enumerate(found[word])])
        elif found["$ref"] not in seen:
            seen.add(found["$ref"])
            to_visit.append((schema.target(root, found["$ref"], at), at))


def _alternatives(found: Any) -> str | None:
    """The word behind which a schema has others in its place; None: it stands for itself."""
    for word in ("$ref", "anyOf", "oneOf", "allOf"):
        if isinstance(found, dict) and word in found:
            return None if word == "allOf" and len(found[word]) > 1 else word
    return None


def _is_object(found: Any) -> bool:
    return isinstance(found, dict) and found.get("type") == "object"


def _values(
    own: Parameters, leaf: Any, root: Mapping[str, Any], path: str
) -> Iterator[tuple[bool, str]]:
    """How values of one alternative are written, to the end of the element."""
    if isinstance(leaf, dict) and ("enum" in leaf or "const" in leaf):
        yield from _named(own, leaf, path)
    elif not isinstance(leaf, dict) or (
        "oneOf" not in leaf and leaf.get("type", "string") == "string"
    ):
        # Without a type a value is read as a string too.
        for word in _RAW_LIMITS:
            if isinstance(leaf, dict) and word in leaf:
                raise GuideError(f"{word} is not supported in this model's form", f"{path}.{word}")
        if leaf is not False:
            yield True, _raw(own)
    else:
        defined = _defined(leaf, root, path)
        yield False, lark.row(lark.json_value({**leaf, **defined}), lark.literal(own.closing))


def _named(own: Parameters, leaf: Mapping[str, Any], path: str) -> Iterator[tuple[bool, str]]:
    """Those of the values that a schema names which are of its type."""
    word = "enum" if "enum" in leaf else "const"
    _check_only(leaf, (word, "type"), path)
    kind = leaf.get("type")
    for one in leaf["enum"] if word == "enum" else [leaf["const"]]:
        if kind is not None and not _is_of(one, kind):
            continue
        is_string = isinstance(one, str)
        if is_string and any(tag in one for tag in (own.begin, own.end.strip())):
            raise GuideError("a value has the tags of this model's form", f"{path}.{word}")
        text = one if is_string else json.dumps(one, ensure_ascii=False)
        yield is_string, lark.row(lark.literal(text), lark.literal(own.closing))


def _is_of(value: Any, kind: Any) -> bool:
    is_whole = isinstance(value, float) and value.is_integer() and kind == "integer"
    is_truth = isinstance(value, bool) and kind != "boolean"
    return is_whole or (isinstance(value, _TYPES.get(kind, ())) and not is_truth)


def _defined(leaf: Mapping[str, Any], root: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The definitions that a value refers to: its schema is a document of its own from here on."""
    defined: dict[str, Any] = {}
    to_visit: list[tuple[Any, str]] = [(leaf, path)]
    while to_visit:
        found, start = to_visit.pop()
        for part, at in schema.parts(found):
            if not isinstance(part, dict) or "$ref" not in part:
                continue
            where, name = _place(part["$ref"], f"{start}{at}.$ref")
            known = defined.setdefault(where, {})
            if name not in known:
                known[name] = root[where][name]
                to_visit.append((known[name], f".{where}.{name}"))
    return defined


def _place(reference: str, path: str) -> tuple[str, str]:
    """Where a definition stands and its name, of a reference that has a target."""
    match schema.pointer(reference):
        case [("$defs" | "definitions") as where, name, *_]:
            return where, name
    raise GuideError(
        "references to what is not defined are not supported in this model's form", path
    )


def _check_only(found: Mapping[str, Any], words: tuple[str, ...], path: str) -> None:
    for word in found:
        if word not in words and word not in _ANNOTATIONS:
            message = f"{word} is not supported there in this model's form"
            raise GuideError(message, f"{path}.{word}")
