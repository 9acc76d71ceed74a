"""The response documents of the OpenAI API, as JSON; knows no sockets and no tokens' meaning.

msgspec writes a chunk in a microsecond, where pydantic takes twenty and `json` ten.
"""

import codecs
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from slipstream_engine.answers import Usage as Counts
from slipstream_engine.batch import Sampled
from slipstream_engine.choices import Piece
from slipstream_engine.specstats import Metrics
from slipstream_engine.text import TokenBytes
from slipstream_engine.tools.calls import Call

_decoder = codecs.getincrementaldecoder("utf-8")
_encode = msgspec.json.Encoder().encode
# What OpenAI writes for less; JSON has no infinity.
_LEAST_LOGPROB = -9999.0


class PromptDetails(Struct):
    cached_tokens: int


class CompletionDetails(Struct):
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails = msgspec.field(default_factory=CompletionDetails)


# Of a chunk: left out, null, or there.
ChunkUsage = Usage | UnsetType | None


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[ChatLogprob]
    refusal: None = None


class TextLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class Function(Struct):
    name: str
    arguments: str


class ToolCall(Struct):
    id: str
    type: Literal["function"]
    function: Function


class NewToolCall(Struct):
    """The first delta of a call. Clients join every string that they see twice, so no later one
    repeats any of these."""

    index: int
    id: str
    type: Literal["function"]
    function: Function


class ArgumentsPart(Struct):
    arguments: str


class MoreOfToolCall(Struct):
    index: int
    function: ArgumentsPart


class Delta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: Sequence[NewToolCall | MoreOfToolCall] | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class Message(Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: Sequence[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class TextChoice(Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class Answered(Struct):
    """A whole answer, or one chunk of it."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[ChunkChoice | ChatChoice | TextChoice]
    usage: ChunkUsage = UNSET
    metrics: Metrics | UnsetType = UNSET


def usage(counts: Counts) -> Usage:
    return Usage(
        prompt_tokens=counts.num_prompt_tokens,
        completion_tokens=counts.num_completion_tokens,
        total_tokens=counts.num_prompt_tokens + counts.num_completion_tokens,
        prompt_tokens_details=PromptDetails(counts.num_cached_tokens),
        completion_tokens_details=CompletionDetails(
            counts.num_reasoning_tokens,
            counts.num_accepted_prediction_tokens,
            counts.num_rejected_prediction_tokens,
        ),
    )


class ChatShape:
    """The documents of one chat answer."""

    def __init__(self, model: str, token_bytes: TokenBytes, *, has_logprobs: bool) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._model = model
        self._tokens = token_bytes
        self._has_logprobs = has_logprobs

    def whole(
        self, pieces: Sequence[Piece], counts: Counts, metrics: Metrics | UnsetType = UNSET
    ) -> bytes:
        """`pieces`: the whole of every choice, in order."""
        choices = [
            ChatChoice(piece.index, _message(piece), self._logprobs(piece), piece.finish)
            for piece in pieces
        ]
        return _encode(self._answered("chat.completion", choices, usage(counts), metrics))

    def opening(self, num_choices: int, use: ChunkUsage) -> list[bytes]:
        """The role of every choice comes first."""
        return [
            self._chunk(ChunkChoice(index, Delta("assistant", ""), None, None), use)
            for index in range(num_choices)
        ]

    def parts(self, piece: Piece, use: ChunkUsage) -> list[bytes]:
        """Thinking, text, calls and the end, each a chunk of its own; none where nothing is."""
        choices = []
        if piece.reasoning:
            delta = Delta(reasoning_content=piece.reasoning)
            choices.append(ChunkChoice(piece.index, delta, None, None))
        if piece.text or piece.tokens:
            delta = Delta(content=piece.text)
            choices.append(ChunkChoice(piece.index, delta, self._logprobs(piece), None))
        if piece.calls:
            choices += [ChunkChoice(piece.index, one, None, None) for one in _deltas(piece)]
        if piece.finish is not None:
            choices.append(ChunkChoice(piece.index, Delta(), None, piece.finish))
        return [self._chunk(choice, use) for choice in choices]

    def closing(self, counts: Counts, metrics: Metrics | UnsetType = UNSET) -> bytes:
        return _encode(self._answered("chat.completion.chunk", [], usage(counts), metrics))

    def _chunk(self, choice: ChunkChoice, use: ChunkUsage) -> bytes:
        return _encode(self._answered("chat.completion.chunk", [choice], use))

    def _answered(
        self,
        kind: str,
        choices: Sequence[ChunkChoice | ChatChoice],
        use: ChunkUsage,
        metrics: Metrics | UnsetType = UNSET,
    ) -> Answered:
        return Answered(self.id, kind, self._created, self._model, choices, use, metrics)

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if not self._has_logprobs:
            return None
        return ChatLogprobs([self._logprob(sampled) for sampled in piece.tokens])

    def _logprob(self, sampled: Sampled) -> ChatLogprob:
        name = self._tokens.name
        return ChatLogprob(
            name(sampled.token),
            _finite(sampled.logprob),
            self._bytes(sampled.token),
            [
                TopLogprob(name(top.token), _finite(top.logprob), self._bytes(top.token))
                for top in sampled.top
            ],
        )

    def _bytes(self, token: int) -> list[int] | None:
        """None: it stands for no text."""
        return list(self._tokens.of(token)) or None


class TextShape:
    """The documents of one plain completion; chunks and wholes have one form."""

    def __init__(self, model: str, token_bytes: TokenBytes, *, has_logprobs: bool) -> None:
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._model = model
        self._tokens = token_bytes
        self._has_logprobs = has_logprobs
        # Of each choice: what its tokens so far stand for, in characters.
        self._offsets: dict[int, tuple[codecs.IncrementalDecoder, int]] = {}

    def whole(
        self, pieces: Sequence[Piece], counts: Counts, metrics: Metrics | UnsetType = UNSET
    ) -> bytes:
        choices = [
            TextChoice(piece.index, piece.text, self._logprobs(piece), piece.finish)
            for piece in pieces
        ]
        return _encode(self._answered(choices, usage(counts), metrics))

    def opening(self, num_choices: int, use: ChunkUsage) -> list[bytes]:
        """Nothing comes before the text."""
        return []

    def parts(self, piece: Piece, use: ChunkUsage) -> list[bytes]:
        choices = []
        if piece.text or piece.tokens:
            choices.append(TextChoice(piece.index, piece.text, self._logprobs(piece), None))
        if piece.finish is not None:
            choices.append(TextChoice(piece.index, "", None, piece.finish))
        return [_encode(self._answered([choice], use)) for choice in choices]

    def closing(self, counts: Counts, metrics: Metrics | UnsetType = UNSET) -> bytes:
        return _encode(self._answered([], usage(counts), metrics))

    def _answered(
        self,
        choices: Sequence[TextChoice],
        use: ChunkUsage,
        metrics: Metrics | UnsetType = UNSET,
    ) -> Answered:
        kind = "text_completion"
        return Answered(self.id, kind, self._created, self._model, choices, use, metrics)

    def _logprobs(self, piece: Piece) -> TextLogprobs | None:
        if not self._has_logprobs:
            return None
        made = TextLogprobs([], [], [], [])
        for sampled in piece.tokens:
            made.tokens.append(self._tokens.name(sampled.token))
            made.token_logprobs.append(_finite(sampled.logprob))
            made.text_offset.append(self._offset(piece.index, sampled.token))
            if made.top_logprobs is not None:
                made.top_logprobs.append(self._top(sampled))
        return made

    def _top(self, sampled: Sampled) -> dict[str, float]:
        """The likeliest tokens and the drawn one, as OpenAI has it: one more than asked for."""
        top: dict[str, float] = {}
        for one in sampled.top:
            top.setdefault(self._tokens.name(one.token), _finite(one.logprob))
        top.setdefault(self._tokens.name(sampled.token), _finite(sampled.logprob))
        return top

    def _offset(self, index: int, token: int) -> int:
        """Where in the choice's text the token begins; one inside a character: that character."""
        decoder, offset = self._offsets.get(index, (_decoder("replace"), 0))
        new = decoder.decode(self._tokens.of(token))
        self._offsets[index] = decoder, offset + len(new)
        return offset


def _message(piece: Piece) -> Message:
    has_more = bool(piece.reasoning or piece.calls)
    return Message(
        "assistant",
        piece.text or (None if has_more else ""),
        reasoning_content=piece.reasoning or UNSET,
        tool_calls=[
            ToolCall(_call_id(call), "function", Function(call.name, call.arguments))
            for call in piece.calls
        ]
        or UNSET,
    )


def _deltas(piece: Piece) -> Iterator[Delta]:
    for index, call in enumerate(piece.calls, piece.first_call):
        begun = NewToolCall(index, _call_id(call), "function", Function(call.name, ""))
        yield Delta(tool_calls=[begun])
        yield Delta(tool_calls=[MoreOfToolCall(index, ArgumentsPart(call.arguments))])


def _call_id(call: Call) -> str:
    return call.id or f"call_{secrets.token_hex(12)}"


def _finite(logprob: float | None) -> float:
    return _LEAST_LOGPROB if logprob is None else max(logprob, _LEAST_LOGPROB)
