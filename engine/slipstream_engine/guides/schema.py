"""Whether a JSON schema can be a guide: its size, its references and every keyword, by path.

Pure, and linear in the schema's size, for it runs where streams are served. What it lets pass may
still be too much work to compile: `checker.py` finds that out in a process of its own.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from slipstream_engine.guides.spec import GuideError

# OpenAI's limits are 120,000 characters, 10 levels, 5,000 properties and 1,000 values. The library
# needs 0.5 s for 2,000 optional properties and minutes for 10,000.
MAX_BYTES = 128 * 1024
MAX_DEPTH = 32
MAX_PROPERTIES = 2_000
MAX_ALTERNATIVES = 2_000
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)

# Where schemas stand in a schema: one, a list of them, one for each name.
_ONE = frozenset(("items", "additionalItems", "additionalProperties"))
_LISTS = frozenset(("prefixItems", "allOf", "anyOf", "oneOf"))
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions"))
# What the library keeps of the rest, and the version of the language.
_PLAIN = frozenset(
    (
        "$ref", "$schema", "type", "const", "enum", "required", "pattern", "format",
        "minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength",
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    )
)  # fmt: skip
# What nothing here keeps, and the value that asks for nothing, where there is one. All other words
# belong to no vocabulary or describe: they change no answer (JSON Schema 2020-12, 4.3.1).
_UNSUPPORTED: Mapping[str, Any] = {
    "not": False,
    "if": None,
    "then": None,
    "else": None,
    "contains": None,
    "minContains": None,
    "maxContains": None,
    "uniqueItems": False,
    "propertyNames": True,
    "dependentRequired": {},
    "dependentSchemas": {},
    "dependencies": {},
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
    "contentSchema": True,
    "$dynamicRef": None,
    "$dynamicAnchor": None,
    "$recursiveRef": None,
    "$recursiveAnchor": False,
}


def checked(schema: Any) -> str:
    """The schema as JSON, without words that mean nothing. Raises GuideError with the path."""
    num_bytes = len(json.dumps(schema))
    if num_bytes > MAX_BYTES:
        raise GuideError(f"a schema of {num_bytes} bytes; at most {MAX_BYTES}")
    clean = _Reader().read(schema, "", 1)
    _check_references(clean)
    return json.dumps(clean)


def target(root: Any, reference: str, path: str) -> Any:
    """What a reference into the schema means. Raises GuideError."""
    found = root
    for name in pointer(reference):
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise GuideError(f"there is no {reference[:200]}", path)
    if not isinstance(found, dict | bool):
        raise GuideError(f"{reference[:200]} is no schema", path)
    return found


def pointer(reference: str) -> list[str]:
    """The names that lead to what a reference means: RFC 6901, as a part of an address."""
    parts = unquote(reference).split("/")[1:]
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def parts(schema: Any) -> Iterator[tuple[Any, str]]:
    """Every schema in a schema that was read, itself first, with its path."""
    to_visit = [(schema, "")]
    while to_visit:
        found, path = to_visit.pop()
        yield found, path
        for one, steps in _children(found):
            names = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
            to_visit.append((one, path + "".join(names)))


def pointed(schema: Any) -> Iterator[tuple[Any, str]]:
    """The same, with references to them."""
    to_visit = [(schema, "#")]
    while to_visit:
        found, reference = to_visit.pop()
        yield found, reference
        for one, steps in _children(found):
            names = (quote(str(it).replace("~", "~0").replace("/", "~1")) for it in steps)
            to_visit.append((one, "/".join((reference, *names))))


def _children(found: Any) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    """The schemas that a schema has in it, and the way to each."""
    if not isinstance(found, dict):
        return
    for key, value in found.items():
        if key in _NAMED:
            yield from ((one, (key, name)) for name, one in value.items())
        elif isinstance(value, list) and key in _LISTS | {"items"}:
            yield from ((one, (key, index)) for index, one in enumerate(value))
        elif key in _ONE:
            yield value, (key,)


class _Reader:
    """Goes through a schema once, and counts."""

    def __init__(self) -> None:
        self._num_properties = 0
        self._num_alternatives = 0

    def read(self, schema: Any, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GuideError("a schema is an object, true or false", path)
        if depth > MAX_DEPTH:
            raise GuideError(f"schemas more than {MAX_DEPTH} deep", path)
        made: dict[str, Any] = {}
        for key, value in schema.items():
            at = f"{path}.{key}"
            if key in _LISTS or (key == "items" and isinstance(value, list)):
                made[key] = self._list(value, at, depth)
            elif key in _ONE:
                made[key] = self.read(value, at, depth + 1)
            elif key in _NAMED:
                made[key] = self._named(value, at, depth)
            elif key in _PLAIN:
                self._check(key, value, at)
                made[key] = value
            elif key in _UNSUPPORTED and value != _UNSUPPORTED[key]:
                raise GuideError(f"{key} is not supported", at)
            elif key in ("$id", "id") and isinstance(value, str) and path:
                raise GuideError("a schema inside of another has no name of its own", at)
        return made

    def _list(self, value: Any, path: str, depth: int) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise GuideError("a list of schemas", path)
        self._count_alternatives(len(value), path)
        return [self.read(one, f"{path}[{index}]", depth + 1) for index, one in enumerate(value)]

    def _named(self, value: Any, path: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise GuideError("a schema for each name", path)
        self._num_properties += len(value)
        if self._num_properties > MAX_PROPERTIES:
            raise GuideError(f"more than {MAX_PROPERTIES} properties altogether", path)
        return {name: self.read(one, f"{path}.{name}", depth + 1) for name, one in value.items()}

    def _check(self, key: str, value: Any, path: str) -> None:
        if key == "enum":
            if not isinstance(value, list) or not value:
                raise GuideError("a list of values", path)
            self._count_alternatives(len(value), path)
        elif key == "required" and not _is_words(value):
            raise GuideError("a list of names", path)
        elif key == "type" and not (isinstance(value, str) or _is_words(value)):
            raise GuideError("a type or a list of types", path)
        elif key == "format" and value not in FORMATS:
            raise GuideError(f"only {', '.join(sorted(FORMATS))} are supported", path)
        elif key == "$ref" and not (isinstance(value, str) and (value + "/").startswith("#/")):
            raise GuideError("only references by path into the schema itself are supported", path)

    def _count_alternatives(self, count: int, path: str) -> None:
        self._num_alternatives += count
        if self._num_alternatives > MAX_ALTERNATIVES:
            raise GuideError(f"more than {MAX_ALTERNATIVES} values and alternatives", path)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _check_references(schema: Any) -> None:
    """Every reference has a target, and none leads back to itself without a text in between."""
    done: set[int] = set()
    for start, start_path in parts(schema):
        # Depth first, each schema with the paths of those that lead to it.
        on_way: set[int] = set()
        to_visit: list[tuple[Any, str, bool]] = [(start, start_path, False)]
        while to_visit:
            found, path, is_left = to_visit.pop()
            if is_left:
                on_way.discard(id(found))
                done.add(id(found))
                continue
            if id(found) in on_way:
                raise GuideError("the schema is defined by itself", path)
            if id(found) in done or not isinstance(found, dict):
                continue
            on_way.add(id(found))
            to_visit.append((found, path, True))
            to_visit += [(one, at, False) for one, at in _same_place(schema, found, path)]


def _same_place(root: Any, schema: dict[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    """Schemas that speak of the same part of the answer as this one."""
    if "$ref" in schema:
        at = f"{path}.$ref"
        yield target(root, schema["$ref"], at), at
    for key in ("allOf", "anyOf", "oneOf"):
        for index, one in enumerate(schema.get(key, ())):
            yield one, f"{path}.{key}[{index}]"
