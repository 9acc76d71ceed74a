"""The request documents of the OpenAI API that the engine answers; a field it does not is refused.

Knows no HTTP and no tokens: a body becomes a checked document or an ApiError.
"""

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slipstream_engine.apierror import ApiError

_MAX_STOPS = 4
Text = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(_Document):
    type: Literal["text"]
    text: str


class Message(_Document):
    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]

    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(_Document):
    include_usage: bool = False


class _Generation(_Document):
    """What chat and plain completions have in common. Null is the same as absent."""

    model: Text
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Text | Annotated[list[Text], Field(max_length=_MAX_STOPS)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Literal[1] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    # Not OpenAI's; the servers that coding agents know have it.
    top_k: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    # Read by the gateway to keep a session together; they change no answer.
    user: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> "_Generation":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Generation):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatRequest":
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens exclude each other")
        return self

    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Generation):
    prompt: Text | Annotated[list[TokenId], Field(min_length=1)]

    def limit(self) -> int:
        # OpenAI's default of this endpoint.
        return self.max_tokens or 16


Document = TypeVar("Document", ChatRequest, CompletionRequest)


def parse(kind: type[Document], body: bytes) -> Document:
    """Raises ApiError (400) that names the field at fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error, body) from error


def _refusal(error: ValidationError, body: bytes) -> ApiError:
    """The error that reaches deepest: of a union's members, the one that was meant."""
    details = error.errors(include_url=False, include_input=False)
    if details[0]["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {details[0]['msg']}", code="invalid_json")
    document: Any = json.loads(body)
    paths = [_path(detail["loc"], document) for detail in details]
    # Where a list was sent, that it is no text says nothing.
    depths = [(len(p), d["type"] != "string_type") for p, d in zip(paths, details, strict=True)]
    chosen = depths.index(max(depths))
    detail, param = details[chosen], _text(paths[chosen])
    if detail["type"] == "extra_forbidden":
        return ApiError(400, f"{param} is not supported", param=param, code="unsupported_parameter")
    code = "missing_required_parameter" if detail["type"] == "missing" else "invalid_value"
    message = f"{param}: {detail['msg']}" if param else detail["msg"]
    return ApiError(400, message, param=param, code=code)


def _path(location: tuple[int | str, ...], document: Any) -> list[int | str]:
    """The path in the client's own document: pydantic puts names of union members between."""
    path: list[int | str] = []
    for part in location:
        if isinstance(part, int) and isinstance(document, list):
            document = document[part]
        elif isinstance(part, str) and isinstance(document, dict):
            document = document.get(part)
        else:
            continue
        path.append(part)
    return path


def _text(path: list[int | str]) -> str | None:
    """messages[0].content"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".") or None
