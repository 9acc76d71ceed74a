"""A checked document becomes a question: prompts in tokens, limits resolved. Knows no HTTP."""

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream_api.config import EngineLimits
from slipstream_engine import forms
from slipstream_engine.apierror import ApiError
from slipstream_engine.chat import ChatTemplate
from slipstream_engine.conversation import MAX_CALLS
from slipstream_engine.forms import Wish
from slipstream_engine.guides.spec import Guide, Vocabulary
from slipstream_engine.protocol import ChatRequest, CompletionRequest
from slipstream_engine.request import Request, SamplingParams
from slipstream_engine.spec import sources
from slipstream_engine.specstats import Detail
from slipstream_engine.text import TokenBytes
from slipstream_engine.tools import formats
from slipstream_engine.tools.formats import Formats
from slipstream_engine.tools.parser import AnswerForm
from slipstream_weights.checkpoint import TextModel

Document = ChatRequest | CompletionRequest
# With its path in the document.
_Prompt = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TextSide:
    """What turns messages into tokens and tokens into text; slow to make for a large vocabulary.

    `formats`: how the model writes calls of tools and its thinking.
    """

    model: TextModel
    template: ChatTemplate
    formats: Formats
    token_bytes: TokenBytes
    vocabulary: Vocabulary
    longest_token_bytes: int

    @classmethod
    def make(cls, model: TextModel, tools: str = "auto", reasoning: str = "auto") -> "TextSide":
        """`tools`, `reasoning`: as in the engine's configuration. Raises TemplateError."""
        templates = (model.chat_template or "") + (model.tool_template or "")
        chosen = formats.choose(tools, reasoning, templates)
        # Markers are text for whoever looks for them, also where they are special tokens.
        token_bytes = TokenBytes(model.tokenizer, chosen.markers)
        return cls(
            model=model,
            template=ChatTemplate(model, chosen.tools),
            formats=chosen,
            token_bytes=token_bytes,
            vocabulary=token_bytes.vocabulary(),
            longest_token_bytes=token_bytes.longest,
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """When a request came, and from whom as a trusted gateway says: None where none said it.

    `arrival_s` is on the clock of `time.monotonic`; `root_key` as in `Request`.
    """

    arrival_s: float
    session: str | None = None
    track: str | None = None
    root_key: bytes = b""


@dataclass(frozen=True, slots=True)
class Question:
    """One request a prompt, in the order of the prompts; each has the same number of samples.

    `deadline_s`: when the answer must be complete, on the same clock as the arrival. `form`: what
    its text may hold beside content. `is_forced_call`: the client named the one tool to be called.
    """

    requests: tuple[Request, ...]
    stops: tuple[str, ...]
    origin: Origin
    deadline_s: float
    is_streamed: bool
    form: AnswerForm = field(default_factory=AnswerForm)
    is_forced_call: bool = False
    detail: Detail = "none"

    @property
    def num_samples(self) -> int:
        return self.requests[0].num_samples

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)


class Questioner:
    """Knows the text model and its limits; takes milliseconds for a long prompt."""

    def __init__(
        self, text: TextSide, max_context: int, limits: EngineLimits, *, is_drafting: bool = False
    ) -> None:
        """`is_drafting`: whether code in a prompt is worth finding."""
        self._is_drafting = is_drafting
        self._text = text
        self._max_context = max_context
        self._limits = limits
        # No normaliser makes a text shorter than a quarter of its bytes.
        self._max_prompt_bytes = max_context * text.longest_token_bytes * 4
        self._vocabulary = text.model.tokenizer.get_vocab_size(with_added_tokens=True)

    def wish(self, document: Document) -> Wish | None:
        """The form that the answer must have. Raises ApiError (400)."""
        content = forms.of_content(document)
        spoken = self._text.formats.tools
        if not isinstance(document, ChatRequest) or not document.offered or spoken is None:
            return content
        name = document.forced_name
        functions = {
            index: tool.function
            for index, tool in enumerate(document.tools or ())
            if name in (None, tool.function.name)
        }
        return forms.of_calls(
            spoken,
            functions,
            content,
            is_forced=document.needs_call,
            max_calls=document.max_calls,
        )

    def deadline_s(self, document: Document, origin: Origin) -> float:
        """When the answer must be complete. Raises ApiError (400)."""
        limits = self._limits
        deadline_ms = document.deadline_ms or limits.default_deadline_ms
        if document.deadline_ms and deadline_ms > limits.max_deadline_ms:
            raise _invalid(f"at most {limits.max_deadline_ms}", "deadline_ms")
        return origin.arrival_s + min(deadline_ms, limits.max_deadline_ms) / 1000

    def question(self, document: Document, origin: Origin, guide: Guide | None = None) -> Question:
        """`guide`: of the document's wish. Raises ApiError (400)."""
        end_tokens = frozenset(document.stop_token_ids or ())
        if not document.ignore_eos or guide is not None:
            end_tokens |= self._text.model.end_tokens
        biases = self._biases(document)
        form = AnswerForm()
        if isinstance(document, ChatRequest):
            prompts, form = self._chat(document)
        else:
            prompts = self._prompts(document)
        prediction, is_predicted = self._prediction(document)
        if guide is not None:
            guide = replace(
                guide, is_patient=bool(document.ignore_eos), **self._reasoning(document, form)
            )
        requests = []
        for param, prompt in prompts:
            max_tokens = self._max_tokens(document, prompt, param)
            if (document.min_tokens or 0) > max_tokens:
                raise _invalid(f"more than the {max_tokens} tokens of the answer", "min_tokens")
            requests.append(
                Request(
                    id=secrets.token_hex(12),
                    prompt=prompt,
                    max_tokens=max_tokens,
                    sampling=_sampling(document, biases),
                    end_tokens=end_tokens,
                    min_tokens=document.min_tokens or 0,
                    num_samples=document.num_samples,
                    priority=document.priority or 0,
                    root_key=origin.root_key,
                    prediction=prediction,
                    is_predicted=is_predicted,
                    guide=guide,
                )
            )
        return Question(
            requests=tuple(requests),
            stops=document.stops,
            origin=origin,
            deadline_s=self.deadline_s(document, origin),
            is_streamed=bool(document.stream),
            form=form,
            is_forced_call=isinstance(document, ChatRequest) and document.forced_name is not None,
            detail=document.detail,
        )

    def _prediction(self, document: Document) -> tuple[tuple[int, ...], bool]:
        """What the answer will probably repeat, and whether the client said so.

        Of a text that is longer than any answer the beginning, as far as an answer may go.
        """
        text, is_predicted = "", False
        if isinstance(document, ChatRequest) and document.prediction is not None:
            text, is_predicted = document.prediction.text, True
        elif self._is_drafting and isinstance(document, ChatRequest):
            text = sources.find([message.text() for message in document.messages])
        elif self._is_drafting and isinstance(document, CompletionRequest):
            text = sources.find([one for one in document.prompts[:1] if isinstance(one, str)])
        tokens = self._tokens(text[: self._max_prompt_bytes], adds_special=False)
        return tokens[: self._max_context], is_predicted

    def _chat(self, document: ChatRequest) -> tuple[list[_Prompt], AnswerForm]:
        template, spoken = self._text.template, self._text.formats
        offered = document.offered
        if offered and (spoken.tools is None or not template.takes_tools):
            raise _unsupported("the model's chat template knows none", "tools")
        # A model that may call nothing is shown nothing: it would call all the same.
        tools = document.tools if offered else None
        text = template.render(
            document.messages,
            tools or (),
            document.reasoning_effort,
            document.chat_template_kwargs,
        )
        reasoning = spoken.reasoning
        form = AnswerForm(
            formats=spoken,
            schemas={one.name: one.parameters or {} for one in offered},
            is_thinking=reasoning is not None and reasoning.is_open(text),
            max_calls=document.max_calls or MAX_CALLS,
        )
        # The template writes its own special tokens.
        return [("messages", self._encode(text, "messages", adds_special=False))], form

    def _reasoning(self, document: Document, form: AnswerForm) -> dict[str, Any]:
        """Where the guide of a chat's answer begins.

        A model that may think begins with one token for it, or with its content.
        """
        spoken = form.formats.reasoning
        if spoken is None or not isinstance(document, ChatRequest):
            return {}
        tokenizer = self._text.model.tokenizer
        opening = None if form.is_thinking else tokenizer.token_to_id(spoken.begin)
        if opening is None and not form.is_thinking:
            return {}
        ends = tokenizer.encode(spoken.end, add_special_tokens=False).ids
        tools = form.formats.tools if document.offered else None
        call = None if tools is None else tokenizer.token_to_id(tools.first_marker)
        return {"begins_after": tuple(ends), "opening": opening, "call": call}

    def _prompts(self, document: CompletionRequest) -> list[_Prompt]:
        prompts = document.prompts
        is_one = len(prompts) == 1
        paths = ["prompt"] if is_one else [f"prompt[{index}]" for index in range(len(prompts))]
        return [
            (path, self._encode(one, path, adds_special=True))
            if isinstance(one, str)
            else (path, self._checked(one, path))
            for path, one in zip(paths, prompts, strict=True)
        ]

    def _encode(self, text: str, param: str, *, adds_special: bool) -> tuple[int, ...]:
        # A tokeniser takes seconds and gigabytes for tens of megabytes that cannot fit anyway.
        if len(text.encode()) > self._max_prompt_bytes:
            raise self._too_long(f"a prompt of {len(text)} characters", param)
        return self._tokens(text, adds_special=adds_special)

    def _tokens(self, text: str, *, adds_special: bool) -> tuple[int, ...]:
        # Of all its methods this one lets go of the interpreter, so that streams go on: a prompt
        # of 1.9 MB stops them for 0.1 s and not for 4 s (a loaded 2.6 GHz core).
        tokenizer = self._text.model.tokenizer
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=adds_special)
        return tuple(encoding.ids)

    def _checked(self, tokens: list[int], path: str) -> tuple[int, ...]:
        for index, token in enumerate(tokens):
            if token >= self._vocabulary:
                raise ApiError(
                    400,
                    f"token {token} is not in the vocabulary of {self._vocabulary}",
                    param=f"{path}[{index}]",
                    code="invalid_value",
                )
        return tuple(tokens)

    def _max_tokens(self, document: Document, prompt: tuple[int, ...], param: str) -> int:
        if not prompt:
            raise ApiError(400, "the prompt has no tokens", param=param, code="invalid_value")
        room = self._max_context - len(prompt)
        limit = document.limit
        if room < 1 or (limit is not None and limit > room):
            wanted = f" and {limit} for the answer" if limit is not None else ""
            raise self._too_long(f"{len(prompt)} tokens of prompt{wanted}", param)
        return limit or min(room, document.usual_limit or room)

    def _too_long(self, asked_for: str, param: str) -> ApiError:
        return ApiError(
            400,
            f"the context holds {self._max_context} tokens; asked for are {asked_for}",
            param=param,
            code="context_length_exceeded",
        )

    def _biases(self, document: Document) -> tuple[tuple[int, float], ...]:
        biases = {int(token): bias for token, bias in (document.logit_bias or {}).items()}
        for token in biases:
            if token >= self._vocabulary:
                raise _invalid(f"no token {token} in {self._vocabulary}", "logit_bias")
        return tuple(sorted(biases.items()))


def _sampling(document: Document, biases: tuple[tuple[int, float], ...]) -> SamplingParams:
    def given(value: float | None, neutral: float) -> float:
        return neutral if value is None else value

    return SamplingParams(
        temperature=given(document.temperature, 1.0),
        top_p=given(document.top_p, 1.0),
        top_k=max(0, document.top_k or 0),
        min_p=given(document.min_p, 0.0),
        presence_penalty=given(document.presence_penalty, 0.0),
        frequency_penalty=given(document.frequency_penalty, 0.0),
        repetition_penalty=given(document.repetition_penalty, 1.0),
        logit_bias=biases,
        seed=secrets.randbits(63) if document.seed is None else document.seed,
        num_top_logprobs=document.num_top_logprobs,
    )


def _unsupported(message: str, param: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="unsupported_value")


def _invalid(message: str, param: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")
