"""One streamed chat answer: its chunks become times, counts and text. Knows no network, no clock.

Chunks are decoded into typed structs: 0.8 µs each, against 4.3 µs with the standard library's json.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any

import msgspec

from slipstream_bench.record import Usage


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    # Two names of one thing: vLLM and SGLang have used both.
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None

    def has_tokens(self) -> bool:
        """Whether the model said something in it: a chunk with only a role did not."""
        return bool(
            self.content
            or self.tool_calls
            or self.reasoning_content
            or self.reasoning
            or self.refusal
        )

    def is_call(self) -> bool:
        return not (self.content or self.reasoning_content or self.reasoning or self.refusal)


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


class MalformedChunkError(ValueError):
    pass


class StreamError(ValueError):
    """The endpoint said in mid-stream that it failed."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class _OpenCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Answer:
    """Grows by the chunks of one stream. `gaps_s` as 4-byte floats: a run keeps all of them."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.ended_s: float | None = None  # set by who reads the stream: it came to its end
        self.num_chunks = 0
        self.gaps_s = array("f")
        self.began_with_call = False
        self.usage = Usage()
        self.finish_reason: str | None = None
        self._text: list[str] = []
        self._calls: dict[int, _OpenCall] = {}

    def add(self, payload: bytes, now_s: float) -> None:
        """One event's data that arrived at `now_s`. Raises MalformedChunkError, StreamError."""
        try:
            chunk = _DECODER.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedChunkError(f"an event is no chat chunk: {error}") from error
        if chunk.error is not None:
            raise StreamError(error_message(chunk.error))
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        has_tokens = False
        for choice in chunk.choices or ():
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
            if choice.delta is not None and choice.delta.has_tokens():
                has_tokens = True
                self.began_with_call |= self.num_chunks == 0 and choice.delta.is_call()
                self._keep(choice.delta)
        if has_tokens:
            self._tick(now_s)

    def text(self) -> str:
        return "".join(self._text)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(call.id, call.name, "".join(call.arguments))
            for _, call in sorted(self._calls.items())
        )

    def _tick(self, now_s: float) -> None:
        if self.last_s is None:
            self.first_s = now_s
        else:
            self.gaps_s.append(now_s - self.last_s)
        self.last_s = now_s
        self.num_chunks += 1

    def _keep(self, delta: _Delta) -> None:
        if delta.content:
            self._text.append(delta.content)
        for part in delta.tool_calls or ():
            call = self._calls.setdefault(part.index, _OpenCall())
            call.id = call.id or part.id or ""
            if part.function is not None:
                call.name = call.name or part.function.name or ""
                call.arguments.append(part.function.arguments or "")


def error_message(error: Any) -> str:
    """The words of an error document, nested as OpenAI does or flat."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        if isinstance(inner, dict):
            inner = inner.get("message", inner)
        return str(inner)
    return str(error)


def _usage(usage: _Usage) -> Usage:
    prompt = usage.prompt_tokens_details or _PromptDetails()
    output = usage.completion_tokens_details or _OutputDetails()
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=prompt.cached_tokens,
        accepted_prediction_tokens=output.accepted_prediction_tokens,
        rejected_prediction_tokens=output.rejected_prediction_tokens,
    )
