"""One sample of an answer: its tokens become pieces of what a client gets; knows no HTTP."""

from collections import deque
from dataclasses import dataclass

from slipstream_api.observation import ToolCallClass
from slipstream_engine.batch import Progress, Sampled
from slipstream_engine.request import FinishReason, Request
from slipstream_engine.spans import ContentTokens
from slipstream_engine.spec.agreement import Agreement
from slipstream_engine.text import TextStream
from slipstream_engine.tools.calls import Call
from slipstream_engine.tools.parser import AnswerForm, Parser


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in one choice: text, the tokens whose text it is, and the reason of its end.

    `tokens` only where log-probabilities were asked for. `finish`: OpenAI's word. `calls` are
    whole; the first has `first_call` calls before it in the choice.
    """

    index: int
    text: str
    tokens: tuple[Sampled, ...]
    finish: str | None
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    first_call: int = 0


class Asked:
    """When what happened to one request, on the clock of `time.monotonic`."""

    __slots__ = ("first_s", "last_s", "num_cached", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.num_cached = 0


class Choice:
    """One sample of one request: its text, and what was not given out yet."""

    __slots__ = (
        "_held",
        "_pending",
        "agreement",
        "asked",
        "finish",
        "index",
        "last_s",
        "num_tokens",
        "spoken",
        "text",
    )

    def __init__(self, index: int, asked: Asked, text: TextStream, spoken: "Spoken | None") -> None:
        self.index = index
        self.asked = asked
        self.text = text
        # None: all text is content.
        self.spoken = spoken
        self.num_tokens = 0
        request = asked.request
        self.agreement = Agreement(request.prediction) if request.is_predicted else None
        self.last_s: float | None = None
        self.finish: FinishReason | None = None
        self._pending = ""
        # Tokens that wait for their text to go out; kept for log-probabilities alone.
        self._held: deque[Sampled] | None = (
            None if asked.request.sampling.num_top_logprobs is None else deque()
        )

    @property
    def reason(self) -> str | None:
        """Why it ended, in OpenAI's words."""
        if self.finish is None:
            return None
        has_calls = self.spoken is not None and self.spoken.ends_with_calls
        return "tool_calls" if has_calls and self.finish is FinishReason.STOP else self.finish.value

    def add(self, progress: Progress) -> None:
        self.num_tokens += 1
        if self.agreement is not None:
            self.agreement.add(progress.sampled.token)
        self.finish = progress.finish
        new = ""
        # The token that ends an answer is no part of its text.
        if self.finish is not FinishReason.STOP:
            new = self.text.push(progress.sampled.token)
            if self._held is not None:
                if self.spoken is None:
                    self._held.append(progress.sampled)
                else:
                    self.spoken.tokens.add(progress.sampled, self.text.last_end)
        if self.finish is not None:
            new += self.text.finish()
        if self.text.is_stopped:
            self.finish = FinishReason.STOP
        if self.spoken is None:
            self._pending += new
        elif self.spoken.add(new, progress.finish, is_cut=self.text.is_stopped):
            self.finish = FinishReason.STOP

    def piece(self) -> Piece:
        """What is new since the last one."""
        if self.spoken is not None:
            return self.spoken.piece(self.index, self.reason)
        text, self._pending = self._pending, ""
        tokens: tuple[Sampled, ...] = ()
        if self._held is not None:
            num_out, self.text.num_tokens_out = self.text.num_tokens_out, 0
            tokens = tuple(self._held.popleft() for _ in range(num_out))
        return Piece(self.index, text, tokens, self.reason)


class Spoken:
    """A choice whose text may hold calls and thinking."""

    def __init__(self, form: AnswerForm, *, is_forced_call: bool) -> None:
        self.tokens = ContentTokens()
        self.num_reasoning = 0
        self._parser = Parser(form)
        self._offered = form.schemas
        self._is_forced_call = is_forced_call
        self._num_given = 0
        self._has_unknown = False

    @property
    def ends_with_calls(self) -> bool:
        """OpenAI has an answer that had to call one tool end like any other."""
        return self._parser.num_calls > 0 and not self._is_forced_call

    @property
    def tool_call_class(self) -> ToolCallClass | None:
        """What became of the tools that were offered; None: there were none."""
        if not self._offered:
            return None
        if self._parser.num_malformed:
            return ToolCallClass.INVALID_JSON
        if self._has_unknown:
            return ToolCallClass.UNKNOWN_NAME
        return ToolCallClass.VALID if self._parser.num_calls else ToolCallClass.NONE

    def add(self, text: str, finish: FinishReason | None, *, is_cut: bool) -> bool:
        """The text of one more token; `is_cut`: at a stop string. True: no more is wanted."""
        parser = self._parser
        was_thinking = parser.is_thinking
        if text:
            parser.push(text)
        self.num_reasoning += was_thinking or parser.is_thinking
        if finish is not None or is_cut or parser.is_full:
            parser.finish(is_whole=finish is FinishReason.STOP and not is_cut)
        return parser.is_full

    def piece(self, index: int, reason: str | None) -> Piece:
        said = self._parser.take()
        tokens = self.tokens.take(said.spans, said.num_decided, is_last=reason is not None)
        first_call = self._num_given
        self._num_given += len(said.calls)
        self._has_unknown |= any(call.name not in self._offered for call in said.calls)
        return Piece(index, said.content, tokens, reason, said.reasoning, said.calls, first_call)
