"""A checked document becomes a question: prompts in tokens, limits resolved. Knows no HTTP."""

import secrets
from dataclasses import dataclass

from slipstream_api.config import EngineLimits
from slipstream_engine.apierror import ApiError
from slipstream_engine.chat import ChatTemplate
from slipstream_engine.protocol import ChatRequest, CompletionRequest
from slipstream_engine.request import Request, SamplingParams
from slipstream_engine.text import TokenBytes
from slipstream_weights.checkpoint import TextModel

Document = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class TextSide:
    """What turns messages into tokens and tokens into text; slow to make for a large vocabulary."""

    model: TextModel
    template: ChatTemplate
    token_bytes: TokenBytes
    longest_token_bytes: int

    @classmethod
    def make(cls, model: TextModel) -> "TextSide":
        """Raises TemplateError."""
        token_bytes = TokenBytes(model.tokenizer)
        return cls(model, ChatTemplate(model), token_bytes, token_bytes.longest)


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

    `deadline_s`: when the answer must be complete, on the same clock as the arrival.
    """

    requests: tuple[Request, ...]
    stops: tuple[str, ...]
    origin: Origin
    deadline_s: float
    is_streamed: bool

    @property
    def num_samples(self) -> int:
        return self.requests[0].num_samples

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)


class Questioner:
    """Knows the text model and its limits; takes milliseconds for a long prompt."""

    def __init__(self, text: TextSide, max_context: int, limits: EngineLimits) -> None:
        self._text = text
        self._max_context = max_context
        self._limits = limits
        # No normaliser makes a text shorter than a quarter of its bytes.
        self._max_prompt_bytes = max_context * text.longest_token_bytes * 4
        self._vocabulary = text.model.tokenizer.get_vocab_size(with_added_tokens=True)

    def question(self, document: Document, origin: Origin) -> Question:
        """Raises ApiError (400)."""
        limits = self._limits
        deadline_ms = document.deadline_ms or limits.default_deadline_ms
        if document.deadline_ms and deadline_ms > limits.max_deadline_ms:
            raise _invalid(f"at most {limits.max_deadline_ms}", "deadline_ms")
        deadline_ms = min(deadline_ms, limits.max_deadline_ms)
        end_tokens = frozenset(document.stop_token_ids or ())
        if not document.ignore_eos:
            end_tokens |= self._text.model.end_tokens
        biases = self._biases(document)
        requests = []
        for param, prompt in self._prompts(document):
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
                )
            )
        return Question(
            requests=tuple(requests),
            stops=document.stops,
            origin=origin,
            deadline_s=origin.arrival_s + deadline_ms / 1000,
            is_streamed=bool(document.stream),
        )

    def _prompts(self, document: Document) -> list[tuple[str, tuple[int, ...]]]:
        """Each prompt with its path in the document."""
        if isinstance(document, ChatRequest):
            # The template writes its own special tokens.
            text = self._text.template.render(document.messages)
            return [("messages", self._encode(text, "messages", adds_special=False))]
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
        ids = self._text.model.tokenizer.encode(text, add_special_tokens=adds_special).ids
        return tuple(ids)

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
        return limit or room

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


def _invalid(message: str, param: str) -> ApiError:
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")
