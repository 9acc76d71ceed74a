"""Whatever is drawn, a guided answer is what was asked for: random schemas, random logits."""

import json
import random
import time
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from slipstream_engine.guides import calls, schema, unions
from slipstream_engine.guides.calls import Tool
from slipstream_engine.guides.spec import Guide, GuideError, GuideKind
from slipstream_engine.spec.draft import Draft
from slipstream_engine.tools.formats import TOOL_FORMATS, Formats
from slipstream_engine.tools.parser import AnswerForm, Parser
from tests.depth import cases
from tests.engine import guided
from tests.engine.guided import END, Asked

_KNOWN = guided.vocabulary()
_MATCHERS = guided.matchers(_KNOWN)
# Tokens after which an answer comes to its end sooner.
_CLOSING = {token for token, text in enumerate(_KNOWN.tokens) if text in (b'"', b"}", b"]", b"<")}
_MAX_TOKENS = 3000


def _answer(guide: Guide, seed: int, end: str = "", begin: str = "") -> str | None:
    """Drawn at random from what is allowed; None where it does not end. Raises GuideError.

    `end` is written whole now and then: no chance would. After `begin` it ends where it may.
    """
    rng = random.Random(seed)
    asked = Asked(guide, by=_MATCHERS)
    answer = guided.tokens(begin)
    asked.commit(answer)
    try:
        while len(answer) < _MAX_TOKENS:
            following = asked.next()
            if END in following and (len(following) == 1 or begin or rng.random() < 0.3):
                return guided.text(_KNOWN, answer)
            closing = [token for token in following if token in _CLOSING]
            is_late = rng.random() < 0.2 + len(answer) / _MAX_TOKENS
            tokens = [rng.choice([token for token in following if token != END])]
            if is_late and closing:
                tokens = [rng.choice(closing)]
            if is_late and end:
                whole = Draft(tuple(guided.tokens(end)))
                tokens = list(asked.legal(whole).tokens) or tokens
            answer += tokens
            asked.commit(tokens)
        return None
    finally:
        _MATCHERS.stop("r")


def _end(name: str) -> str:
    own = TOOL_FORMATS[name].parameters
    return "" if own is None else own.closing.rstrip()


_names = st.sampled_from(["a", "b", "name", "größe", 'a "quoted" one', "x\n"])
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text('ab"\\é🙂\n', max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=2),
    max_leaves=3,
)


@st.composite
def _integers(draw: st.DrawFn) -> dict[str, Any]:
    made: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    low = draw(st.integers(-1000, 1000))
    for key, value in (
        ("minimum", low),
        ("exclusiveMaximum", low + draw(st.integers(20, 900))),
        ("multipleOf", draw(st.integers(1, 9))),
    ):
        # Remainders of fractions are a matter of rounding.
        if draw(st.booleans()) and not (key == "multipleOf" and made["type"] == "number"):
            made[key] = value
    return made


@st.composite
def _strings(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        least = draw(st.integers(0, 3))
        return {"type": "string", "minLength": least, "maxLength": least + draw(st.integers(0, 9))}
    if draw(st.booleans()):
        return {"type": "string", "format": draw(st.sampled_from(["date", "ipv4", "uuid"]))}
    return {
        "type": "string",
        "pattern": draw(st.sampled_from(["^a+$", r"^\d{2}-[x-z]$", "^(é|b)"])),
    }


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(_names, inner, max_size=4))
    made: dict[str, Any] = {"type": "object", "properties": properties}
    if properties:
        made["required"] = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    made["additionalProperties"] = draw(st.just(False) | st.just(False) | inner)
    return made


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    least = draw(st.integers(0, 2))
    made: dict[str, Any] = {"type": "array", "items": draw(inner)}
    made |= {"minItems": least, "maxItems": least + draw(st.integers(0, 2))}
    if draw(st.booleans()):
        made["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=2))
    return made


_leaves = (
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}])
    | _integers()
    | _strings()
    | st.builds(lambda values: {"enum": values}, st.lists(_values, min_size=1, max_size=3))
    | st.builds(lambda value: {"const": value}, _values)
    | st.just({"$ref": "#/$defs/leaf"})
    | st.just({"$ref": "#/$defs/tree"})
)
_schemas = st.recursive(
    _leaves,
    lambda inner: (
        _objects(inner)
        | _arrays(inner)
        | st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=6,
)
_DEFS = {
    "leaf": {"enum": ["x", 1]},
    "tree": {
        "type": "object",
        "properties": {
            "value": {"type": "boolean"},
            "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        },
        "required": ["value"],
        "additionalProperties": False,
    },
}


@cases(200)
@given(_schemas, st.integers(0, 1 << 30))
def test_any_draws_under_any_schema_are_a_value_of_it(asked: dict[str, Any], seed: int) -> None:
    document = {**asked, "$defs": _DEFS}
    try:
        text = _answer(Guide(GuideKind.JSON_SCHEMA, schema.checked(document)), seed)
    except GuideError:
        # Alternatives that no text satisfies; or what the library says that it cannot do.
        assume(False)
        return
    assume(text is not None)
    assert text is not None
    jsonschema.validate(
        json.loads(text),
        document,
        format_checker=jsonschema.FormatChecker(["date", "ipv4", "uuid"]),
    )


class _Circle(BaseModel):
    kind: Literal["circle"]
    size: Annotated[int, Field(ge=0, le=9)]


class _Leaf(BaseModel):
    kind: Literal["leaf"]
    is_green: bool


class _Branch(BaseModel):
    kind: Literal["branch"]
    left: Annotated["_Branch | _Leaf", Field(discriminator="kind")]
    right: Annotated["_Leaf | _Circle", Field(discriminator="kind")]


_Shape = Annotated[_Circle | _Leaf, Field(discriminator="kind")]


@pytest.mark.parametrize(
    "document",
    [
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "value": {"type": type_}},
                    "required": ["kind", "value"],
                    "additionalProperties": False,
                }
                for kind, type_ in (("a", "integer"), ("b", "boolean"))
            ],
            "discriminator": {"propertyName": "kind"},
        },
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"], "type": "object"},
                {"properties": {"a": {"minimum": 5, "maximum": 30}}},
            ],
            "additionalProperties": True,
            "maxProperties": 1,
        },
        {"type": "object", "patternProperties": {"^x": {"type": "null"}}, "maxProperties": 2},
        {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 2},
        TypeAdapter(_Shape).json_schema(),
        TypeAdapter(_Branch).json_schema(),
    ],
    ids=[
        "a union with a discriminator",
        "all of two",
        "names by a pattern",
        "two of any name",
        "Pydantic's union",
        "Pydantic's union with itself in it",
    ],
)
def test_what_is_rarer_in_schemas_is_kept_to(document: dict[str, Any]) -> None:
    for seed in range(12):
        text = _answer(Guide(GuideKind.JSON_SCHEMA, schema.checked(document)), seed)
        if text is not None:
            value = json.loads(text)
            # Names are not compared with each other: two may be the same.
            document = {**document, "minProperties": 0}
            jsonschema.validate(value, document)


@pytest.mark.parametrize("seed", range(5))
def test_any_draws_of_an_object_are_an_object(seed: int) -> None:
    text = _answer(Guide(GuideKind.JSON_OBJECT), seed)
    assert text is None or isinstance(json.loads(text), dict)


_STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer", "minimum": 0, "maximum": 500},
        "mode": {"anyOf": [{"$ref": "#/$defs/mode"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/mode"}, "maxItems": 2},
    },
    "required": ["path", "limit", "mode"],
    "additionalProperties": False,
    "$defs": {"mode": {"enum": ["read", "wörd"]}},
}
_LOOSE: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string", "pattern": "a"}}}
_TOOLS = (
    Tool("strict.one", _STRICT, True, "tools[0].function.parameters"),
    Tool("loose-2", _LOOSE, False, "tools[1].function.parameters"),
    Tool("free", {"type": "object"}, False, "tools[2].function.parameters"),
    Tool("none", None, False, "tools[3].function.parameters"),
)
_SCHEMAS: dict[str, Any] = {tool.name: tool.parameters or {} for tool in _TOOLS}


def _parsed(name: str, text: str, max_calls: int | None) -> tuple[str, list[tuple[str, Any]]]:
    parser = Parser(AnswerForm(Formats(TOOL_FORMATS[name]), _SCHEMAS, max_calls=max_calls))
    parser.push(text)
    parser.finish(is_whole=True)
    said = parser.take()
    return said.content, [(call.name, json.loads(call.arguments)) for call in said.calls]


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("max_calls", [None, 1], ids=["many", "one"])
@cases(12)
@given(seed=st.integers(0, 1 << 30))
@pytest.mark.slow
def test_any_draws_of_a_forced_call_are_calls_that_the_parser_reads(
    name: str, max_calls: int | None, seed: int
) -> None:
    text = _answer(calls.forced(TOOL_FORMATS[name], _TOOLS, max_calls), seed, _end(name))
    assume(text is not None)
    assert text is not None
    content, made = _parsed(name, text, max_calls)
    assert (content.strip(), bool(made)) == ("", True), text
    assert max_calls is None or len(made) == 1
    for tool, arguments in made:
        assert isinstance(arguments, dict)
        if tool == "strict.one":
            jsonschema.validate(arguments, _STRICT)
        if tool == "none":
            assert arguments == {}


_ARGUMENTS = st.one_of(
    _schemas,
    st.builds(
        lambda types, values: {"type": types, "enum": values},
        st.sampled_from(["string", "integer", ["string", "null"], ["boolean", "integer"]]),
        st.lists(_values, min_size=1, max_size=4),
    ),
    st.builds(lambda inner: {"allOf": [inner]}, _schemas),
    st.sampled_from([False, {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}]),
)


@pytest.mark.parametrize("name", TOOL_FORMATS)
@cases(40)
@given(st.dictionaries(_names | st.just(" "), _ARGUMENTS, max_size=3), st.integers(0, 1 << 30))
@pytest.mark.slow
def test_any_draws_of_a_strict_call_are_arguments_of_any_schema(
    name: str, properties: dict[str, Any], seed: int
) -> None:
    """Whatever the format cannot hold is refused: nothing of a schema is passed over."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": sorted(properties)[:1],
        "additionalProperties": False,
        "$defs": _DEFS,
    }
    spoken = TOOL_FORMATS[name]
    try:
        guide = calls.forced(spoken, [Tool("f", parameters, True, "")], 1)
        text = _answer(guide, seed, _end(name))
    except GuideError:
        assume(False)
        return
    assume(text is not None)
    parser = Parser(AnswerForm(Formats(spoken), {"f": parameters}))
    parser.push(text or "")
    parser.finish(is_whole=True)
    (call,) = parser.take().calls
    formats = jsonschema.FormatChecker(["date", "ipv4", "uuid"])
    jsonschema.validate(json.loads(call.arguments), parameters, format_checker=formats)


def test_objects_of_which_one_is_meant_exclude_each_other_in_elements_too() -> None:
    def one_of(*kinds: Any) -> Guide:
        inner = [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "value": {"type": "integer"}},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for kind in kinds
        ]
        parameters = {
            "properties": {"a": {"oneOf": [{"$ref": "#/$defs/x"}, *inner[1:]]}},
            "required": ["a"],
            "$defs": {"x": inner[0]},
        }
        tools = [Tool("f", parameters, True, "")]
        return calls.forced(TOOL_FORMATS["qwen3_coder"], tools, 1)

    text = _answer(one_of("b", "c"), 1, _end("qwen3_coder")) or ""
    ((_, arguments),) = _parsed("qwen3_coder", text, 1)[1]
    # The tool is not known there: a text.
    assert json.loads(arguments["a"])["kind"] in {"b", "c"}
    with pytest.raises(GuideError, match="oneOf"):
        _answer(one_of("b", "b"), 1)


@pytest.mark.parametrize("name", ["qwen3_coder", "deepseek_v32"])
def test_a_schema_of_a_few_kilobytes_is_little_work(name: str) -> None:
    """Alternatives of alternatives took hours; definitions that each argument had, gigabytes."""
    twice = {
        "0": {"type": "integer"},
        **{str(i): {"anyOf": [{"$ref": f"#/$defs/{i - 1}"}] * 2} for i in range(1, 900)},
    }
    a_row = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(1900)}
    large = {"enum": ["x" * 50] * 1000}
    every = {str(i): {"type": "array", "items": {"$ref": "#/$defs/large"}} for i in range(900)}
    for parameters, is_kept in (
        ({"properties": {"a": {"$ref": "#/$defs/899"}}, "$defs": twice}, True),
        ({"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {**a_row, "1900": {}}}, True),
        ({"properties": every, "$defs": {"large": large}}, False),
    ):
        tools = [Tool(f"f{i}", parameters, False, "") for i in range(4)]
        began = time.process_time()
        guide = calls.forced(TOOL_FORMATS[name], tools, None)
        assert time.process_time() - began < 2.0
        assert len(guide.text) < 5_000_000
        # What is too much is no reason to refuse a tool that did not ask for it.
        strict = [Tool("f", parameters, True, "tools[0]")]
        if is_kept:
            calls.forced(TOOL_FORMATS[name], strict, None)
        else:
            with pytest.raises(GuideError, match="too much") as caught:
                calls.forced(TOOL_FORMATS[name], strict, None)
            assert caught.value.path.startswith("tools[0].properties.")


@pytest.mark.parametrize("name", TOOL_FORMATS)
@cases(12)
@given(seed=st.integers(0, 1 << 30), words=st.sampled_from(["", "I look.\n", "<", "\n\n"]))
@pytest.mark.slow
def test_where_a_strict_call_begins_nothing_but_a_call_may_follow(
    name: str, seed: int, words: str
) -> None:
    spoken = TOOL_FORMATS[name]
    guide = calls.strict(spoken, _TOOLS, None)
    # The first place where the answer may end is after a whole call.
    begin = words + (spoken.section_begin.strip() or spoken.begin)
    text = _answer(guide, seed, _end(name), begin)
    assume(text is not None)
    content, made = _parsed(name, text or "", None)
    assert content.strip() == words.strip()
    assert made
    for tool, arguments in made:
        if tool == "strict.one":
            jsonschema.validate(arguments, _STRICT)


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "deepseek_v31"])
def test_with_a_form_an_answer_is_calls_or_content_of_the_form(name: str) -> None:
    content = Guide(GuideKind.JSON_SCHEMA, '{"enum": [[1], {"a": null}]}')
    guide = calls.strict(TOOL_FORMATS[name], _TOOLS, 1, content)
    kinds = set()
    for seed in range(40):
        text = _answer(guide, seed, _end(name))
        if text is None:
            continue
        said, made = _parsed(name, text, 1)
        kinds.add(bool(made))
        if made:
            assert said.strip() == ""
        else:
            assert json.loads(said) in ([1], {"a": None})
    assert kinds == {True, False}


_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a keyword": ("hermes", {"properties": {"a": {"not": {}}}}, ".properties.a.not"),
    "no object": ("hermes", {"type": "string"}, ".type"),
    "a raw string's pattern": (
        "qwen3_coder",
        {"properties": {"a": {"anyOf": [{"type": "string", "pattern": "a"}, {"type": "null"}]}}},
        ".properties.a.anyOf[0].pattern",
    ),
    "alternatives of arguments": ("glm45", {"anyOf": [{}, {}]}, ".anyOf"),
    "a number of arguments": ("qwen3_coder", {"minProperties": 1}, ".minProperties"),
    "names that are none": ("hermes", {"required": 5}, ".required"),
    "a name in a list": ("qwen3_coder", {"required": [["a"]]}, ".required"),
    "a type that is none": (
        "qwen3_coder",
        {"properties": {"a": {"type": [["null"]], "enum": [1]}}},
        ".properties.a.type",
    ),
    "no properties": ("qwen3_coder", {"properties": 5}, ".properties"),
    "a name that ends its tag": (
        "qwen3_coder",
        {"properties": {"a>b": {}}},
        ".properties.a>b",
    ),
    "an argument that may not be": (
        "qwen3_coder",
        {"properties": {"a": False}, "required": ["a"]},
        ".required",
    ),
    "more than a reference": (
        "qwen3_coder",
        {"properties": {"a": {"$ref": "#/$defs/x", "maximum": 5}}, "$defs": {"x": {}}},
        ".properties.a.maximum",
    ),
    "more than alternatives": (
        "deepseek_v32",
        {"properties": {"a": {"anyOf": [{"type": "integer"}], "maximum": 5}}},
        ".properties.a.maximum",
    ),
    "more than an enumeration": (
        "qwen3_coder",
        {"properties": {"a": {"enum": [1, 9], "maximum": 5}}},
        ".properties.a.maximum",
    ),
    "an enumeration of another type": (
        "qwen3_coder",
        {"properties": {"a": {"type": "integer", "enum": ["x", True]}}},
        ".properties.a",
    ),
    "a word that ends its element": (
        "qwen3_coder",
        {"properties": {"a": {"anyOf": [{"const": "</parameter>\n</function>"}]}}},
        ".properties.a.anyOf[0].const",
    ),
    "a reference to the arguments": (
        "qwen3_coder",
        {"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}},
        ".properties.a.items.$ref",
    ),
    "a reference from a definition": (
        "qwen3_coder",
        {
            "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/x"}}, "b": {}},
            "$defs": {"x": {"type": "object", "properties": {"y": {"$ref": "#/properties/b"}}}},
        },
        ".$defs.x.properties.y.$ref",
    ),
    "a name of its own": ("minimax_m2", {"required": ["x"]}, ".required"),
}


@pytest.mark.parametrize(("name", "parameters", "path"), _REFUSED.values(), ids=_REFUSED)
def test_strict_parameters_that_cannot_be_kept_are_told_by_their_path(
    name: str, parameters: dict[str, Any], path: str
) -> None:
    tool = Tool("f", parameters, True, "tools[3].function.parameters")
    with pytest.raises(GuideError) as caught:
        calls.strict(TOOL_FORMATS[name], [tool], None)
    assert caught.value.path == f"tools[3].function.parameters{path}"
    # Who did not ask for it gets what there is.
    calls.forced(TOOL_FORMATS[name], [Tool("f", parameters, False, "x")], None)


def test_objects_that_are_referred_to_exclude_each_other_or_are_refused() -> None:
    def one_of(*kinds: str) -> Guide:
        parts = {
            str(place): {"type": "object", "properties": {"a": {"const": kind}}, "required": ["a"]}
            for place, kind in enumerate(kinds)
        }
        references = [{"$ref": f"#/$defs/{name}"} for name in parts]
        return guided.schema({"oneOf": references, "$defs": parts})

    assert json.loads(_answer(one_of("b", "c"), 1) or "")["a"] in {"b", "c"}
    with pytest.raises(GuideError, match="oneOf"):
        _answer(one_of("b", "b"), 1)


def test_what_unions_would_write_out_without_end_is_left_as_it_is() -> None:
    large = {"type": "object", "properties": {"kind": {"const": "x" * 90_000}}}
    document = {"oneOf": [{"$ref": "#/$defs/a"}] * 8, "$defs": {"a": large}}
    assert unions.side_by_side(document) is document
    few = {**document, "oneOf": [{"$ref": "#/$defs/a"}] * 2}
    assert unions.side_by_side(few) == {**few, "oneOf": [large, large]}
