"""Alternatives of which exactly one is meant, written so that the library sees they exclude each
other: it compares objects that stand side by side and follows no reference.

Pydantic writes its discriminated unions as a `oneOf` of references.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream_engine.guides import schema

# Of all that is written out: a definition that many unions refer to stands there as many times.
_MAX_CHARACTERS = 512 * 1024


def side_by_side(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema that was read, with the objects that each `oneOf` refers to in its place.

    Within them a `oneOf` is a reference to where it stands already, so that what contains itself is
    written out once. Unchanged where there is nothing to do, or too much.
    """
    places: dict[int, str] = {}
    room = _MAX_CHARACTERS
    for found, pointer in _unions(root):
        places[id(found)] = pointer
        room -= sum(len(json.dumps(one)) for one in members(found, root))
        if room < 0:
            return root

    def written(value: Any, *, is_copy: bool) -> Any:
        if isinstance(value, list):
            return [written(one, is_copy=is_copy) for one in value]
        if not isinstance(value, dict):
            return value
        if id(value) not in places:
            return {key: written(one, is_copy=is_copy) for key, one in value.items()}
        if is_copy:
            return {"$ref": places[id(value)]}
        made = {key: written(one, is_copy=False) for key, one in value.items() if key != "oneOf"}
        return {**made, "oneOf": [written(one, is_copy=True) for one in members(value, root)]}

    made: Mapping[str, Any] = written(root, is_copy=False) if places else root
    return made


def _unions(root: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Each `oneOf` that refers to an object, and a reference to it."""
    for found, pointer in schema.pointed(root):
        if isinstance(found, dict) and "oneOf" in found:
            pairs = zip(found["oneOf"], members(found, root), strict=True)
            if any(one is not member for one, member in pairs):
                yield found, pointer


def members(found: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    """The alternatives of a `oneOf`: of those that refer to an object that object."""
    return [_object(one, root) for one in found["oneOf"]]


def _object(one: Any, root: Mapping[str, Any]) -> Any:
    """What is referred to, where that is an object; references go round in no circle."""
    meant = one
    while isinstance(meant, dict) and meant.keys() == {"$ref"}:
        meant = schema.target(root, meant["$ref"], "")
    is_object = isinstance(meant, dict) and meant.get("type") == "object"
    return meant if is_object else one
