"""What a document says of its answer's form, and how it is told that it cannot have it."""

import json
from typing import Any

import pytest

from slipstream_engine import forms, protocol
from slipstream_engine.apierror import ApiError
from slipstream_engine.guides import schema
from slipstream_engine.guides.spec import Guide, GuideError, GuideKind
from slipstream_engine.protocol import ChatRequest, CompletionRequest

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
_TEXT = json.dumps(_SCHEMA)


def _chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return protocol.parse(ChatRequest, json.dumps(body).encode())


def _json_schema(document: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": document, **fields}}


_ASKED: dict[str, tuple[dict[str, Any], Guide | None]] = {
    "nothing": ({}, None),
    "text": ({"response_format": {"type": "text"}}, None),
    "an object": ({"response_format": {"type": "json_object"}}, Guide(GuideKind.JSON_OBJECT)),
    "a schema": (
        {"response_format": _json_schema(_SCHEMA, strict=True, description="x")},
        Guide(GuideKind.JSON_SCHEMA, _TEXT),
    ),
    "vLLM's schema": (
        {"structured_outputs": {"json": _SCHEMA}},
        Guide(GuideKind.JSON_SCHEMA, _TEXT),
    ),
    "vLLM's schema as text": (
        {"structured_outputs": {"json": _TEXT, "disable_fallback": False}},
        Guide(GuideKind.JSON_SCHEMA, _TEXT),
    ),
    "vLLM's object": (
        {"structured_outputs": {"json_object": True}},
        Guide(GuideKind.JSON_OBJECT),
    ),
    "no object": ({"structured_outputs": {"json_object": False}}, None),
    "vLLM's regex": ({"structured_outputs": {"regex": "a+"}}, Guide(GuideKind.REGEX, "a+")),
    "a choice": (
        {"structured_outputs": {"choice": ["a", "ü"]}},
        Guide(GuideKind.CHOICE, json.dumps(["a", "ü"])),
    ),
    "a grammar": (
        {"structured_outputs": {"grammar": 'start: "a"'}},
        Guide(GuideKind.GRAMMAR, 'start: "a"'),
    ),
    "older schema": ({"guided_json": _SCHEMA}, Guide(GuideKind.JSON_SCHEMA, _TEXT)),
    "older regex": ({"guided_regex": "a"}, Guide(GuideKind.REGEX, "a")),
    "older choice": ({"guided_choice": ["a"]}, Guide(GuideKind.CHOICE, '["a"]')),
    "older grammar": ({"guided_grammar": "root ::= a"}, Guide(GuideKind.GRAMMAR, "root ::= a")),
    "text beside another": (
        {"response_format": {"type": "text"}, "guided_regex": "a"},
        Guide(GuideKind.REGEX, "a"),
    ),
}


@pytest.mark.parametrize(("fields", "guide"), _ASKED.values(), ids=_ASKED)
def test_every_way_to_ask_for_a_form_is_one_guide(
    fields: dict[str, Any], guide: Guide | None
) -> None:
    wish = forms.of_content(_chat(**fields))
    assert (None if wish is None else wish.guide) == guide
    if "response_format" not in fields:
        plain = {"model": "m", "prompt": "x", **fields}
        document = protocol.parse(CompletionRequest, json.dumps(plain).encode())
        assert forms.of_content(document) == wish


_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"response_format": {}}, "response_format"),
    "another type": ({"response_format": {"type": "xml"}}, "response_format"),
    "no schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    "no name": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
    ),
    "a name with a space": (
        {"response_format": _json_schema({}, name="a b")},
        "response_format.json_schema.name",
    ),
    "a keyword that nothing keeps": (
        {"response_format": _json_schema({"properties": {"a": {"not": {}}}})},
        "response_format.json_schema.schema.properties.a.not",
    ),
    "text that is no JSON": ({"guided_json": "{"}, "guided_json"),
    "text that is no schema": ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
    "text of ten thousand lists": ({"guided_json": "[" * 10_000}, "guided_json"),
    "two forms": (
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        "guided_regex",
    ),
    "two forms in one": (
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "structured_outputs.choice",
    ),
    "no choice": ({"guided_choice": []}, "guided_choice"),
    "many choices": ({"guided_choice": ["a"] * 2001}, "guided_choice"),
    "long choices": ({"guided_choice": ["a" * 70_000]}, "guided_choice"),
    "an empty regex": ({"guided_regex": ""}, "guided_regex"),
    "a long grammar": ({"guided_grammar": "a" * 70_000}, "guided_grammar"),
    "a grammar with options": (
        {"guided_grammar": 'start: "abc"\n%llguidance {"no_forcing": false}'},
        "guided_grammar",
    ),
    "a tag": ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    "another library": ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
}


@pytest.mark.parametrize(("fields", "param"), _REFUSED.values(), ids=_REFUSED)
def test_a_form_that_cannot_be_had_is_a_400_that_names_the_place(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        forms.of_content(_chat(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_words_that_describe_are_left_out_and_those_that_mean_something_kept() -> None:
    asked = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/x",
        "title": "T",
        "description": "d",
        "x-guidance": {"whitespace_flexible": True},
        "nullable": True,
        "type": "object",
        "properties": {
            "title": {"type": "string", "title": "Title", "default": "x", "deprecated": True},
            "next": {"$ref": "#", "description": "the next one"},
            "not": {"items": [{"const": 1}], "uniqueItems": False, "type": "array"},
        },
        "required": ["title"],
        "unevaluatedProperties": True,
    }
    assert json.loads(schema.checked(asked)) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "next": {"$ref": "#"},
            "not": {"items": [{"const": 1}], "type": "array"},
        },
        "required": ["title"],
    }


def _deep(levels: int) -> Any:
    made: Any = {}
    for _ in range(levels - 1):
        made = {"items": made}
    return made


_BAD_SCHEMAS: dict[str, tuple[Any, str]] = {
    "no object": ([], ""),
    "a property that is no schema": ({"properties": {"a": 3}}, ".properties.a"),
    "properties in a list": ({"properties": []}, ".properties"),
    "no alternatives": ({"anyOf": []}, ".anyOf"),
    "a name for names": ({"items": {"required": "a"}}, ".items.required"),
    "names that are no texts": ({"required": [["a"]]}, ".required"),
    "a type that is none": ({"type": 5}, ".type"),
    "types that are none": ({"items": {"type": [{}]}}, ".items.type"),
    "no values": ({"enum": []}, ".enum"),
    "a format of its own": ({"items": {"format": "password"}}, ".items.format"),
    "a rule about names": ({"anyOf": [{}, {"propertyNames": {}}]}, ".anyOf[1].propertyNames"),
    "different elements": ({"uniqueItems": True}, ".uniqueItems"),
    "another document": (
        {"properties": {"a": {"$ref": "http://127.0.0.1/x.json"}}},
        ".properties.a.$ref",
    ),
    "an anchor": ({"$ref": "#name"}, ".$ref"),
    "a reference that is none": ({"$ref": 5}, ".$ref"),
    "a place that is not there": ({"items": {"$ref": "#/$defs/a/0"}}, ".items.$ref"),
    "a name within": ({"items": {"$id": "x"}}, ".items.$id"),
    "itself": ({"$ref": "#"}, ".$ref"),
    "itself twice": ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, ".allOf[1].$ref"),
    "a circle": (
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{}, {"$ref": "#/$defs/a"}]}},
        },
        ".$ref.$ref.anyOf[1].$ref",
    ),
    "33 levels": (_deep(33), ".items" * 32),
    "2,001 properties": (
        {"properties": {str(i): {} for i in range(1999)}, "$defs": {"a": {}, "b": {}}},
        ".$defs",
    ),
    "2,001 values": ({"anyOf": [{"enum": list(range(2000))}]}, ".anyOf[0].enum"),
    "too many bytes": ({"const": "x" * 140_000}, ""),
}


@pytest.mark.parametrize(("asked", "path"), _BAD_SCHEMAS.values(), ids=_BAD_SCHEMAS)
def test_a_schema_that_cannot_be_a_guide_is_told_by_its_path(asked: Any, path: str) -> None:
    with pytest.raises(GuideError) as caught:
        schema.checked(asked)
    assert caught.value.path == path


_GOOD_SCHEMAS: dict[str, Any] = {
    "32 levels": _deep(32),
    "a tree": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/a"}}, "items": {"$ref": "#"}}},
    },
    "one place from two sides": {
        "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}},
    },
    "names that need escapes": {
        "$ref": "#/$defs/a~1b~0c%25",
        "$defs": {"a/b~c%": {"type": "null"}},
    },
    "a place in a list": {"anyOf": [{"type": "null"}, {"items": {"$ref": "#/anyOf/0"}}]},
    "a property called by a keyword": {"properties": {"$ref": {"const": 1}, "enum": {}}},
    "2,000 references in a row": {
        "$ref": "#/$defs/0",
        "$defs": {
            **{str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(1999)},
            "1999": {"type": "null"},
        },
    },
    "true": True,
}


@pytest.mark.parametrize("asked", _GOOD_SCHEMAS.values(), ids=_GOOD_SCHEMAS)
def test_references_may_go_anywhere_but_in_circles_of_their_own(asked: Any) -> None:
    assert json.loads(schema.checked(asked)) == asked
