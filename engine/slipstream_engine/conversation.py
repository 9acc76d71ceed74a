"""What a chat says and may use: messages, calls of tools and their results, tools. Knows no HTTP.

History is taken as it comes: an argument that is no JSON was written by some model once, and must
not make every later turn fail.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from slipstream_engine.tools.formats import NAME_PATTERN

MAX_TOOLS = 128
# Of one message; no answer has more, for it comes back as history.
MAX_CALLS = 256
# A large schema of today's servers has 30 kB and ten levels.
_MAX_TOOL_BYTES = 256 * 1024
_MAX_TOOL_DEPTH = 64
# One error is told, so one is looked for: a long list may hold a million.
FAIL_FAST = Field(fail_fast=True)

Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]


def only(*values: Any) -> AfterValidator:
    """A field that is not implemented, and what may stand there all the same."""

    def check(value: Any) -> Any:
        # 0 is not False, 1 is not True.
        if value is None or any(value == one and type(value) is type(one) for one in values):
            return value
        allowed = " or ".join(json.dumps(one) for one in (*values, None))
        raise PydanticCustomError("unsupported", f"only {allowed} is supported")

    return AfterValidator(check)


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(Document):
    type: Literal["text"]
    text: str


class CalledFunction(Document):
    name: Annotated[str, Field(max_length=256)]
    # Text, as OpenAI has it; some clients keep what they read from it.
    arguments: str | dict[str, Any] | None = None


class ToolCall(Document):
    """A call of an earlier answer."""

    id: Annotated[str, Field(max_length=256)] | None = None
    type: Literal["function"] | None = None
    function: CalledFunction
    # Left over from the deltas of a stream.
    index: int | None = None


class Message(Document):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[TextPart], FAIL_FAST] | None, Field(validate_default=True)
    ] = None
    name: Annotated[str, Field(max_length=256)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS), FAIL_FAST] | None = None
    tool_call_id: Annotated[
        Annotated[str, Field(max_length=256)] | None, Field(validate_default=True)
    ] = None
    reasoning_content: str | None = None
    # An answer of ours that comes back as history brings these along.
    refusal: Annotated[Any, only("")] = None
    annotations: Annotated[Any, only([])] = None
    audio: Annotated[Any, only()] = None
    function_call: Annotated[Any, only()] = None

    @field_validator("content")
    @classmethod
    def _only_assistants_say_nothing(cls, value: Any, info: Any) -> Any:
        if value is None and info.data.get("role") != "assistant":
            raise PydanticCustomError("missing", "Field required")
        return value

    @field_validator("tool_calls", "reasoning_content")
    @classmethod
    def _only_assistants_call_and_think(cls, value: Any, info: Any) -> Any:
        if value and info.data.get("role") != "assistant":
            raise PydanticCustomError("unsupported", "only an assistant's message has it")
        return value

    @field_validator("tool_call_id")
    @classmethod
    def _results_name_their_call(cls, value: str | None, info: Any) -> str | None:
        is_result = info.data.get("role") == "tool"
        if is_result and value is None:
            raise PydanticCustomError("missing", "Field required")
        if value and not is_result:
            raise PydanticCustomError("unsupported", "only a tool's message has it")
        return value

    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class Function(Document):
    name: Name
    description: str | None = None
    # Of the arguments, as a JSON schema; None: there are none.
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Document):
    """A function that the model may call. `raw`: the client's own document, for the template."""

    type: Literal["function"]
    function: Function
    _raw: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, handler: Callable[[Any], "Tool"]) -> "Tool":
        made = handler(value)
        if isinstance(value, dict):
            made._raw.update(value)
        if len(json.dumps(made._raw)) > _MAX_TOOL_BYTES:
            raise PydanticCustomError("too_long", f"more than {_MAX_TOOL_BYTES} bytes")
        if _depth(made._raw) > _MAX_TOOL_DEPTH:
            raise PydanticCustomError("too_deep", f"nested deeper than {_MAX_TOOL_DEPTH} levels")
        return made

    @property
    def raw(self) -> dict[str, Any]:
        return self._raw


class NamedFunction(Document):
    name: str


class NamedTool(Document):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def _depth(document: Any) -> int:
    depth, level = 0, [document]
    while level:
        depth += 1
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        level = [one for one in inner if isinstance(one, dict | list)]
    return depth
