"""A session: requests that grow one conversation. Pure; the same for every workload.

opening ─► request 1 ─► answer 1, result 1 ─► request 2 ─► … ─► request len(results) + 1
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream_bench.answer import ToolCall

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Session:
    """`results`: what comes back after each answer but the last (a tool's output).

    `key` names the session to the endpoint and its routers; None sends no name. `fields` are the
    request's own (tools, prediction, those of a dataset line) and stay the same on every turn.
    """

    opening: tuple[Message, ...]
    results: tuple[str, ...] = ()
    key: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    think_s: float = 0.0

    @property
    def num_requests(self) -> int:
        return 1 + len(self.results)


Sessions = Iterator[Session]


def grow(
    messages: Sequence[Message], text: str, calls: Sequence[ToolCall], result: str
) -> tuple[Message, ...]:
    """The conversation after an answer and what came back.

    A result answers the model's own tool calls where there are any (the first gets the result, the
    others a word); else it comes from the user, since no call could be named.
    """
    if not calls:
        user = {"role": "user", "content": f"The tool's output:\n{result}"}
        return (*messages, {"role": "assistant", "content": text}, user)
    ids = [call.id or f"call_{len(messages)}_{index}" for index, call in enumerate(calls)]
    asked = {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [
            {
                "id": id_,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for id_, call in zip(ids, calls, strict=True)
        ],
    }
    told = [
        {"role": "tool", "tool_call_id": id_, "content": result if index == 0 else "done"}
        for index, id_ in enumerate(ids)
    ]
    return (*messages, asked, *told)


def body(
    session: Session,
    messages: Sequence[Message],
    defaults: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """The request's document. Later wins: defaults, the session's fields, overrides.

    A null in `overrides` removes the field. The measurement needs a stream with usage; only
    `overrides` can change that.
    """
    document = {
        **defaults,
        **session.fields,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    document.update(overrides)
    return {name: value for name, value in document.items() if value is not None}
