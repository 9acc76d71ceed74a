"""What a document says of its answer's form: OpenAI's `response_format`, vLLM's names, tools.

Knows no tokens and no library: a document becomes a guide that may be tried, or an ApiError.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from slipstream_engine.apierror import ApiError
from slipstream_engine.conversation import FAIL_FAST, Document, Function, only
from slipstream_engine.guides import calls, schema
from slipstream_engine.guides.calls import Tool
from slipstream_engine.guides.spec import Guide, GuideError, GuideKind
from slipstream_engine.tools.formats import ToolFormat

_MAX_TEXT = 64 * 1024
_MAX_CHOICES = 2_000
# What the library's grammars may say of how they are kept to.
_OPTIONS = "%llguidance"

Text = Annotated[str, Field(min_length=1, max_length=_MAX_TEXT)]
Choices = Annotated[list[str], Field(min_length=1, max_length=_MAX_CHOICES), FAIL_FAST]
# Text is read as JSON, as vLLM does.
Schema = dict[str, Any] | bool | Text


class JsonSchema(Document):
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    # The answer keeps to the schema in any case.
    strict: bool | None = None


class TextFormat(Document):
    type: Literal["text"]


class JsonObjectFormat(Document):
    type: Literal["json_object"]


class JsonSchemaFormat(Document):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Discriminator("type")]


class StructuredOutputs(Document):
    """vLLM's; one of the first five."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    # Not implemented.
    structural_tag: Annotated[Any, only()] = None
    whitespace_pattern: Annotated[Any, only()] = None
    disable_any_whitespace: Annotated[Any, only(False)] = None
    disable_additional_properties: Annotated[Any, only(False)] = None
    disable_fallback: Annotated[Any, only(False, True)] = None


class Formed(Document):
    """The fields of a document that say how its answer must look; at most one may."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    # As older versions of vLLM have them.
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    # Not implemented.
    guided_decoding_backend: Annotated[Any, only("auto", "guidance")] = None
    guided_whitespace_pattern: Annotated[Any, only()] = None

    @property
    def is_formed(self) -> bool:
        """Whether anything may be said of its answer's form."""
        fields = (
            self.response_format,
            self.structured_outputs,
            self.guided_json,
            self.guided_regex,
            self.guided_choice,
            self.guided_grammar,
        )
        return any(one is not None for one in fields)


@dataclass(frozen=True, slots=True)
class Wish:
    """A guide to be tried, `path`: where its text stands in the document.

    `plain`: what will do where the guide is too much.
    """

    guide: Guide
    path: str
    plain: Guide | None = None


def of_content(document: Formed) -> Wish | None:
    """The form of the answer's content. Raises ApiError (400)."""
    found = list(_asked(document))
    if not found:
        return None
    if len(found) > 1:
        others = " and ".join(path for path, _, _ in found)
        raise refused(GuideError(f"{others} exclude each other"), found[1][0])
    path, kind, value = found[0]
    try:
        if kind is not GuideKind.JSON_SCHEMA:
            text = json.dumps(value) if kind is GuideKind.CHOICE else value
            if len(text) > _MAX_TEXT:
                raise GuideError(f"more than {_MAX_TEXT} characters")
            if kind is GuideKind.GRAMMAR and _OPTIONS in text:
                raise GuideError(f"{_OPTIONS} is not supported: its options are the engine's")
            return Wish(Guide(kind, text), path)
        return Wish(Guide(kind, schema.checked(_read(value))), path)
    except GuideError as error:
        raise refused(error, path) from error


def of_calls(
    spoken: ToolFormat,
    functions: Mapping[int, Function],
    content: Wish | None,
    *,
    is_forced: bool,
    max_calls: int | None,
) -> Wish | None:
    """The same with tools: None where anything may be answered. Raises ApiError (400).

    `functions` by their place in the document.
    """
    tools = [
        Tool(one.name, one.parameters, bool(one.strict), f"tools[{place}].function.parameters")
        for place, one in functions.items()
    ]
    has_strict = any(tool.is_strict for tool in tools)
    try:
        if is_forced:
            guide = calls.forced(spoken, tools, max_calls)
            plain = None if has_strict else calls.forced(spoken, tools, max_calls, is_plain=True)
            return Wish(guide, "tools", plain)
        if not has_strict and content is None:
            return None
        inside = None if content is None else content.guide
        guide = calls.strict(spoken, tools, max_calls, inside)
        return Wish(guide, "tools" if content is None else content.path)
    except GuideError as error:
        path = "" if error.path else "tools"
        raise refused(error, path) from error


def refused(error: GuideError, path: str) -> ApiError:
    param = path + error.path
    return ApiError(400, f"{param}: {error}", param=param, code="invalid_value")


def _asked(document: Formed) -> Iterator[tuple[str, GuideKind, Any]]:
    match document.response_format:
        case JsonObjectFormat():
            yield "response_format", GuideKind.JSON_OBJECT, ""
        case JsonSchemaFormat(json_schema=found):
            yield "response_format.json_schema.schema", GuideKind.JSON_SCHEMA, found.schema_
    inner = document.structured_outputs
    if inner is not None:
        if inner.json_object:
            yield "structured_outputs.json_object", GuideKind.JSON_OBJECT, ""
        yield from _named("structured_outputs.", inner.json_, inner)
    yield from _named("guided_", document.guided_json, document)


def _named(prefix: str, found: Any, document: Document) -> Iterator[tuple[str, GuideKind, Any]]:
    if found is not None:
        yield f"{prefix}json", GuideKind.JSON_SCHEMA, found
    stem = prefix if prefix.endswith("_") else ""
    for word, kind in (
        ("regex", GuideKind.REGEX),
        ("choice", GuideKind.CHOICE),
        ("grammar", GuideKind.GRAMMAR),
    ):
        value = getattr(document, stem + word)
        if value is not None:
            yield prefix + word, kind, value


def _read(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise GuideError(f"no JSON: {error}") from error
    except RecursionError as error:
        raise GuideError("nested too deep") from error
