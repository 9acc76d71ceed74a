"""How the suite asks a model that says what the test wants (`speaking.py`), in two families."""

import json
from typing import Any

import httpx

from tests.engine import speaking
from tests.engine.conformance import asking
from tests.engine.conformance.asking import CHAT

THOUGHTS = "<think>\nWhich file?\n<tool_call>\n</think>\n\n"
THOUGHT = "Which file?\n<tool_call>"


def whole(client: httpx.Client, answer: str, **fields: Any) -> Any:
    response = client.post(CHAT, json=speaking.body(answer, **fields))
    assert response.status_code == 200, response.text
    return response.json()


def chunks(client: httpx.Client, answer: str, **fields: Any) -> list[Any]:
    return asking.chunks(client, CHAT, **speaking.body(answer, **fields))


def deltas(chunks: list[Any], index: int = 0) -> list[dict[str, Any]]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [choice["delta"] for choice in choices if choice["index"] == index]


def joined(deltas: list[dict[str, Any]], key: str) -> str:
    return "".join(delta.get(key) or "" for delta in deltas)


def calls(deltas: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """As a client puts them together: every string that it sees twice is joined."""
    made: dict[int, dict[str, str]] = {}
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            call = made.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += part.get("id", "")
            for key, value in part["function"].items():
                call[key] += value
    assert sorted(made) == list(range(len(made)))
    assert all(call["id"] for call in made.values())
    return [(call["name"], json.loads(call["arguments"])) for _, call in sorted(made.items())]
