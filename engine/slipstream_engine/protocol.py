"""The request documents of the OpenAI API that the engine answers; what it cannot do is refused.

Knows no HTTP and no tokens: a body becomes a checked document or an ApiError. Null is the same as
absent. Fields of OpenAI or vLLM that are not implemented are accepted only with values that ask
for nothing (`only`), because clients send those unasked; every other field is a 400.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from slipstream_engine import conversation
from slipstream_engine.apierror import ApiError
from slipstream_engine.conversation import (
    FAIL_FAST,
    MAX_TOOLS,
    Function,
    Message,
    NamedTool,
    Tool,
    ToolChoice,
    only,
)
from slipstream_engine.forms import Formed
from slipstream_engine.specstats import Detail

MAX_SAMPLES = 16
MAX_PROMPTS = 128
_MAX_STOPS = 4
_MAX_STOP_TOKENS = 128
_MAX_BIASES = 300
_MAX_BIAS = 100.0
_INT32 = 1 << 31

Text = Annotated[str, Field(min_length=1)]
# As much of a text is held back as one has: clients send words and lines.
Stop = Annotated[str, Field(min_length=1, max_length=512)]
TokenId = Annotated[int, Field(ge=0, lt=_INT32)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
# What clients tag a request with: it changes no answer.
Label = Annotated[str, Field(max_length=512)]
TemplateValue = bool | int | float | Label | None


def _invalid(message: str, param: str) -> ApiError:
    """Not a ValueError: it leaves pydantic as it is, with the path that is meant."""
    return ApiError(400, f"{param}: {message}", param=param, code="invalid_value")


class StreamOptions(conversation.Document):
    include_usage: bool | None = None
    # vLLM's, and its benchmark's: usage in every chunk.
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[Any, only(False)] = None


class Prediction(conversation.Document):
    """What the answer will probably repeat; it changes no answer, only its speed."""

    type: Literal["content"]
    content: str | Annotated[list[conversation.TextPart], FAIL_FAST]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class _Generation(Formed):
    """What chat and plain completions have in common."""

    model: Text
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=_MAX_STOPS)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=_INT32)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-_MAX_BIAS, le=_MAX_BIAS)]] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    # Not OpenAI's; vLLM has them, and the clients that know it.
    top_k: Annotated[int, Field(ge=-1, lt=_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=_MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=_INT32)] | None = None
    priority: Annotated[int, Field(ge=-_INT32, lt=_INT32)] | None = None
    # Ours alone: milliseconds from the request's arrival to the end of its answer.
    deadline_ms: Annotated[int, Field(ge=1)] | None = None
    # What drafts gave this answer, in its last document.
    speculation_metrics: Detail | None = None
    # Read by the gateway to keep a session together, or by nobody; they change no answer.
    user: Label | None = None
    prompt_cache_key: Label | None = None
    safety_identifier: Label | None = None
    metadata: Annotated[dict[str, Label], Field(max_length=16)] | None = None
    # Not implemented.
    store: Annotated[Any, only(False)] = None
    service_tier: Annotated[Any, only("auto", "default")] = None
    prompt_cache_retention: Annotated[Any, only("in_memory", "in-memory")] = None
    use_beam_search: Annotated[Any, only(False)] = None
    length_penalty: Annotated[Any, only(1.0, 1)] = None
    include_stop_str_in_output: Annotated[Any, only(False)] = None
    skip_special_tokens: Annotated[Any, only(True)] = None
    spaces_between_special_tokens: Annotated[Any, only(True)] = None
    return_token_ids: Annotated[Any, only(False)] = None
    return_tokens_as_token_ids: Annotated[Any, only(False)] = None
    truncate_prompt_tokens: Annotated[Any, only()] = None
    prompt_logprobs: Annotated[Any, only()] = None
    allowed_token_ids: Annotated[Any, only()] = None
    bad_words: Annotated[Any, only([])] = None
    echo: Annotated[Any, only(False)] = None

    @field_validator("logit_bias")
    @classmethod
    def _biases_name_tokens(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        if value is None:
            return value
        if len(value) > _MAX_BIASES:
            raise _invalid(f"more than {_MAX_BIASES} tokens", "logit_bias")
        for token in value:
            if not (token.isascii() and token.isdigit() and len(token) < 10):
                raise _invalid(f"{token[:20]!r} is no token id", "logit_bias")
        return value

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> "_Generation":
        if self.stream_options is not None and not self.stream:
            raise _invalid("stream_options needs stream to be true", "stream_options")
        return self

    @model_validator(mode="after")
    def _metrics_need_a_last_chunk(self) -> "_Generation":
        if self.stream and not self.includes_usage and self.detail != "none":
            raise _invalid("a stream needs stream_options.include_usage", "speculation_metrics")
        return self

    @property
    def detail(self) -> Detail:
        return self.speculation_metrics or "none"

    @property
    def num_samples(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_usage_in_every_chunk(self) -> bool:
        # As vLLM has it: only together with include_usage.
        return self.includes_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


class ChatRequest(_Generation):
    messages: Annotated[list[Message], Field(min_length=1), FAIL_FAST]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=_INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS), FAIL_FAST] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    # Given to the chat template, where it takes them.
    reasoning_effort: Annotated[str, Field(pattern="^[a-z]{1,16}$")] | None = None
    chat_template_kwargs: Annotated[dict[str, TemplateValue], Field(max_length=16)] | None = None
    # Not implemented.
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    prediction: Prediction | None = None
    verbosity: Annotated[Any, only("medium")] = None
    modalities: Annotated[Any, only(["text"])] = None
    audio: Annotated[Any, only()] = None
    moderation: Annotated[Any, only()] = None
    web_search_options: Annotated[Any, only()] = None
    prompt_cache_options: Annotated[Any, only()] = None
    add_generation_prompt: Annotated[Any, only(True)] = None
    continue_final_message: Annotated[Any, only(False)] = None
    add_special_tokens: Annotated[Any, only(False)] = None
    chat_template: Annotated[Any, only()] = None

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatRequest":
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise _invalid(
                "max_tokens and max_completion_tokens exclude each other", "max_completion_tokens"
            )
        return self

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise _invalid("top_logprobs needs logprobs to be true", "top_logprobs")
        return self

    @model_validator(mode="after")
    def _choice_is_of_tools(self) -> "ChatRequest":
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise _invalid("two tools have one name", "tools")
        if self.needs_call and not names:
            raise _invalid("needs tools", "tool_choice")
        if self.forced_name is not None and self.forced_name not in names:
            raise _invalid(f"no tool is called {self.forced_name[:128]!r}", "tool_choice")
        return self

    @property
    def offered(self) -> tuple[Function, ...]:
        """The functions that the model may call."""
        tools = () if self.tool_choice == "none" else self.tools or ()
        return tuple(tool.function for tool in tools)

    @property
    def is_formed(self) -> bool:
        return super().is_formed or bool(self.offered)

    @property
    def needs_call(self) -> bool:
        return self.tool_choice == "required" or self.forced_name is not None

    @property
    def forced_name(self) -> str | None:
        """The one function that must be called."""
        choice = self.tool_choice
        return choice.function.name if isinstance(choice, NamedTool) else None

    @property
    def max_calls(self) -> int | None:
        return 1 if self.parallel_tool_calls is False or self.forced_name is not None else None

    @property
    def num_choices(self) -> int:
        return self.num_samples

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def usual_limit(self) -> int | None:
        """Where none is asked for; None: what the context has room for."""
        return None

    @property
    def num_top_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def _kind_of_prompt(value: Any) -> str:
    """By its first element: so an error names the element that is wrong."""
    if not isinstance(value, list):
        return "(text)"
    first = value[0] if value else None
    if isinstance(first, str):
        return "(texts)"
    return "(lists)" if isinstance(first, list) else "(tokens)"


Tokens = Annotated[list[TokenId], Field(min_length=1), FAIL_FAST]
_Prompt = Annotated[
    Annotated[Text, Tag("(text)")]
    | Annotated[list[Text], Field(max_length=MAX_PROMPTS), FAIL_FAST, Tag("(texts)")]
    | Annotated[Tokens, Tag("(tokens)")]
    | Annotated[list[Tokens], Field(max_length=MAX_PROMPTS), FAIL_FAST, Tag("(lists)")],
    Discriminator(_kind_of_prompt),
]


class CompletionRequest(_Generation):
    prompt: _Prompt
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: int | None = None
    # Not implemented.
    suffix: Annotated[Any, only("")] = None
    add_special_tokens: Annotated[Any, only(True)] = None

    @field_validator("best_of")
    @classmethod
    def _best_of_all(cls, value: int | None, info: Any) -> int | None:
        if value not in (None, info.data.get("n") or 1):
            raise PydanticCustomError("unsupported", "only the value of n is supported")
        return value

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):
            return ([token for token in self.prompt if isinstance(token, int)],)
        return [one for one in self.prompt if not isinstance(one, int)]

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.num_samples

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def usual_limit(self) -> int | None:
        # OpenAI's default of this endpoint.
        return 16

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs


_MAX_FAULTS = 100
Document = TypeVar("Document", ChatRequest, CompletionRequest)


def parse(kind: type[Document], body: bytes) -> Document:
    """Raises ApiError (400) that names the field at fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error, body) from error


def _refusal(error: ValidationError, body: bytes) -> ApiError:
    """The error that reaches deepest: of a union's members, the one that was meant."""
    if error.error_count() > _MAX_FAULTS:
        # To write each down takes 4 µs: ten seconds for a body of 32 MB, and nothing else runs.
        message = f"{error.error_count()} faults: is this a request of another API?"
        return ApiError(400, message, code="invalid_value")
    details = error.errors(include_url=False, include_input=False)
    if details[0]["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {details[0]['msg']}", code="invalid_json")
    document: Any = json.loads(body)
    paths = [_path(detail, document) for detail in details]
    # Where a list was sent, that it is no text says nothing.
    depths = [(len(p), d["type"] != "string_type") for p, d in zip(paths, details, strict=True)]
    chosen = depths.index(max(depths))
    detail, param = details[chosen], _text(paths[chosen])
    if detail["type"] == "extra_forbidden":
        named = param or repr("")
        return ApiError(400, f"{named} is not supported", param=param, code="unsupported_parameter")
    codes = {"missing": "missing_required_parameter", "unsupported": "unsupported_value"}
    message = f"{param}: {detail['msg']}" if param else detail["msg"]
    return ApiError(400, message, param=param, code=codes.get(detail["type"], "invalid_value"))


def _path(detail: ErrorDetails, document: Any) -> list[int | str]:
    """The path in the client's own document: pydantic puts names of union members between."""
    path: list[int | str] = []
    for part in detail["loc"]:
        is_index = isinstance(document, list) and isinstance(part, int)
        if is_index or (isinstance(document, dict) and part in document):
            document = document[part]
            path.append(part)
    if detail["type"] == "missing" and path[-1:] != [detail["loc"][-1]]:
        path.append(detail["loc"][-1])
    return path


def _text(path: list[int | str]) -> str | None:
    """messages[0].content"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".") or None
