"""Whether an answer's tool calls are calls that an agent can carry out. Pure; knows no HTTP.

Names and arguments are held while the answer lasts; only a class leaves this module.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from slipstream_api.observation import ToolCallClass

_MAX_CHARACTERS = 1024 * 1024


class ToolCalls:
    """The calls of one answer, whole or in pieces as a stream brings them."""

    def __init__(self, offered: frozenset[str]) -> None:
        self._offered = offered
        # By choice and place: the name and the arguments, in pieces.
        self._calls: dict[tuple[Any, Any], tuple[list[str], list[str]]] = {}
        self._num_characters = 0

    def add_deltas(self, choices: Iterable[Mapping[str, Any]]) -> None:
        """The choices of one event of a stream: a piece of each call."""
        self._add(choices, "delta")

    def add_messages(self, choices: Iterable[Mapping[str, Any]]) -> None:
        """The choices of a document: whole calls."""
        self._add(choices, "message")

    @property
    def verdict(self) -> ToolCallClass | None:
        """The worst class of all calls; None where there was too much to say."""
        if self._num_characters > _MAX_CHARACTERS:
            return None
        classes = {
            self._class_of("".join(name), "".join(arguments))
            for name, arguments in self._calls.values()
        }
        worst = (ToolCallClass.INVALID_JSON, ToolCallClass.UNKNOWN_NAME, ToolCallClass.VALID)
        return next((it for it in worst if it in classes), ToolCallClass.NONE)

    def _add(self, choices: Iterable[Mapping[str, Any]], key: str) -> None:
        for choice in choices:
            holder = choice.get(key)
            calls = holder.get("tool_calls") if isinstance(holder, dict) else None
            for place, call in enumerate(calls if isinstance(calls, list) else ()):
                if isinstance(call, dict):
                    self._add_piece((choice.get("index"), call.get("index", place)), call)

    def _add_piece(self, place: tuple[Any, Any], call: Mapping[str, Any]) -> None:
        function = call.get("function")
        if not isinstance(function, dict) or self._num_characters > _MAX_CHARACTERS:
            return
        pieces = self._calls.setdefault((str(place[0]), str(place[1])), ([], []))
        for held, key in zip(pieces, ("name", "arguments"), strict=True):
            piece = function.get(key)
            if isinstance(piece, str):
                held.append(piece)
                self._num_characters += len(piece)

    def _class_of(self, name: str, arguments: str) -> ToolCallClass:
        try:
            is_object = isinstance(from_json(arguments), dict)
        except ValueError:
            is_object = False
        if not is_object:
            return ToolCallClass.INVALID_JSON
        return ToolCallClass.VALID if name in self._offered else ToolCallClass.UNKNOWN_NAME


def offered(body: Mapping[str, Any]) -> frozenset[str] | None:
    """The names of the tools that a request lets the model call; None: there are none."""
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools or body.get("tool_choice") == "none":
        return None
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = (it.get("name") for it in functions if isinstance(it, dict))
    return frozenset(name for name in names if isinstance(name, str))
