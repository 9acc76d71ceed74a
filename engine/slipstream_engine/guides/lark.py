"""Pieces of grammars in llguidance's notation, a variant of Lark's; knows no library."""

import json
from collections.abc import Iterable
from typing import Any

from slipstream_engine.guides import unions

# Between two parts of a JSON text. Without a bound a model may write blanks up to its last token.
_WHITESPACE = r"[ \t\r\n]{1,40}"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def literal(text: str) -> str:
    """The text itself.

    >>> literal('a "b"')
    '"a \\\\"b\\\\""'
    """
    return '"' + "".join(_escaped(character) for character in text) + '"'


def json_value(schema: Any) -> str:
    """A JSON value by a schema that `schema.checked` has let pass."""
    if not isinstance(schema, dict):
        # True allows every value, false none.
        return f"%json {json.dumps(schema)}"
    options = {"whitespace_pattern": _WHITESPACE}
    return f"%json {json.dumps({**unions.side_by_side(schema), 'x-guidance': options})}"


def json_object() -> str:
    return json_value({"type": "object"})


def either(rules: Iterable[str]) -> str:
    """One of them. They may be empty in themselves, but there is one at least."""
    return "(" + " | ".join(rules) + ")"


def row(*parts: str) -> str:
    """One after the other; nothing of those that are no text."""
    return " ".join(part for part in parts if part != '""')


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return f"\\x{ord(character):02x}" if character < " " or character == "\x7f" else character
