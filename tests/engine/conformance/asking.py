"""How the suite asks, and what it makes of an answer."""

import functools
import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
CONTEXT = 1024
ENDPOINTS = {"chat": CHAT, "plain": PLAIN}


def body(path: str, **fields: Any) -> dict[str, Any]:
    """A valid request of an endpoint; `fields` replace or add, `...` takes one away."""
    asked: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 12}
    if path == CHAT:
        asked["messages"] = [{"role": "user", "content": "Write a function."}]
    else:
        asked["prompt"] = "def add(left"
    return {name: value for name, value in {**asked, **fields}.items() if value is not ...}


def whole(client: httpx.Client, path: str, **fields: Any) -> Any:
    answer = client.post(path, json=body(path, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def raw_stream(client: httpx.Client, path: str, **fields: Any) -> str:
    answer = client.post(path, json=body(path, stream=True, **fields))
    assert answer.status_code == 200, answer.text
    return answer.text


def chunks(client: httpx.Client, path: str, **fields: Any) -> list[Any]:
    """The documents of a stream that ends as it must."""
    events = raw_stream(client, path, **fields).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def text_of(choice: dict[str, Any]) -> str:
    """New text of a chunk's choice, or the whole text of an answer's."""
    if "text" in choice:
        return str(choice["text"])
    return (choice.get("delta") or choice.get("message") or {}).get("content") or ""


def joined(documents: list[Any], index: int = 0) -> str:
    choices = [choice for document in documents for choice in document["choices"]]
    return "".join(text_of(choice) for choice in choices if choice["index"] == index)


def skeleton(value: Any) -> Any:
    """Which keys there are and of which kind their values: what golden files hold.

    Of a list what all its elements have in common, of which there must be something.
    """
    if isinstance(value, dict):
        # Plain completions name their alternatives by keys.
        if value and all(isinstance(one, float) for one in value.values()):
            return {"<token>": "float"}
        return {key: skeleton(one) for key, one in value.items()}
    if isinstance(value, list):
        return [functools.reduce(_both, map(skeleton, value))] if value else []
    return None if value is None else type(value).__name__


def _both(one: Any, two: Any) -> Any:
    """One kind for two: null or something is something or null."""
    if isinstance(one, dict) and isinstance(two, dict):
        assert set(one) == set(two), f"{set(one)} and {set(two)} in one list"
        return {key: _both(one[key], two[key]) for key in one}
    if isinstance(one, list) and isinstance(two, list) and one and two:
        return [_both(one[0], two[0])]
    if one == two:
        return one
    return {"nullable": one if two is None else two}
