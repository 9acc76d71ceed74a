"""Values without types get them from the tool's schema."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.tools import arguments
from slipstream_engine.tools.formats import TOOL_FORMATS
from tests.engine.tools import writing
from tests.engine.tools.writing import write_calls

_ROOT: dict[str, Any] = {
    "$defs": {
        "Line": {"type": "integer"},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]},
        "a/b": {"type": "boolean"},
    }
}
_VALUES: dict[str, tuple[Any, str, Any]] = {
    "text": ({"type": "string"}, "a b", "a b"),
    "digits as text": ({"type": "string"}, "0012", "0012"),
    "null as text": ({"type": "string"}, "null", "null"),
    "JSON as text": ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    "an integer": ({"type": "integer"}, " 5\n", 5),
    "an integer with a point": ({"type": "integer"}, "5.0", 5),
    "a fraction where none should be": ({"type": "integer"}, "5.5", 5.5),
    "a number": ({"type": "number"}, "1e3", 1000.0),
    "an integer as a number": ({"type": "number"}, "7", 7),
    "words for a number": ({"type": "integer"}, "five", "five"),
    "true": ({"type": "boolean"}, "true", True),
    "True": ({"type": "boolean"}, "True", True),
    "FALSE": ({"type": "boolean"}, "FALSE", False),
    "yes": ({"type": "boolean"}, "yes", "yes"),
    "null": ({"type": ["string", "null"]}, "null", None),
    "None": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
    "text or null": ({"type": ["string", "null"]}, "nullify", "nullify"),
    "text or a number": ({"type": ["string", "integer"]}, "5", 5),
    "text or a number, text": ({"type": ["string", "integer"]}, "5 apples", "5 apples"),
    "text or a list, an object": ({"type": ["string", "array"]}, '{"a": 1}', '{"a": 1}'),
    "a list": ({"type": "array"}, '[1, "</x>"]', [1, "</x>"]),
    "an object": ({"type": "object"}, '{"a": [null]}', {"a": [None]}),
    "an object that is none": ({"type": "object"}, "{'a': 1}", "{'a': 1}"),
    "an object over lines": ({"type": "object"}, '{\n "a": "b\nc"\n}', {"a": "b\nc"}),
    "a reference": ({"$ref": "#/$defs/Line"}, "9", 9),
    "a reference with a slash": ({"$ref": "#/$defs/a~1b"}, "true", True),
    "a reference to nowhere": ({"$ref": "#/$defs/No"}, "9", "9"),
    "a reference outside": ({"$ref": "http://x/y"}, "9", "9"),
    "references in a circle": ({"$ref": "#/$defs/Loop"}, "9", "9"),
    "one of some numbers": ({"enum": [1, 2]}, "2", 2),
    "one of some words": ({"enum": ["1", "2"]}, "2", "2"),
    "one of some words, or null": (
        {"anyOf": [{"type": "string", "enum": ["none", "True"]}, {"type": "null"}]},
        "none",
        "none",
    ),
    "one of some words or truth values": ({"enum": ["True", True]}, "True", "True"),
    "null beside some words": ({"type": ["string", "null"], "enum": ["a", None]}, "None", None),
    "a constant": ({"const": True}, "true", True),
    "no type": ({"description": "x"}, "5", "5"),
    "no schema": (None, "5", "5"),
    "a schema that is none": (True, "5", "5"),
    "too large a number": ({"type": "number"}, "NaN", "NaN"),
    "a number beyond all": ({"type": "number"}, "1e999", sys.float_info.max),
    "more digits than clients read": ({"type": "integer"}, "9" * 5000, "9" * 5000),
    "too deep": ({"type": "array"}, "[" * 5000, "[" * 5000),
    "many, not deep": ({"type": "array"}, "[" + "[[]]," * 300 + "[]]", [[[]]] * 300 + [[]]),
}


@pytest.mark.parametrize(("schema", "text", "value"), _VALUES.values(), ids=_VALUES)
def test_a_value_gets_its_type_from_the_schema(schema: Any, text: str, value: Any) -> None:
    made = json.loads(arguments.write_by_schema(text, schema, _ROOT))
    assert made == value
    assert type(made) is type(value)


_SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.builds(dict, type=st.sampled_from(["string", "integer", "object", 5, None, []])),
        st.builds(dict, enum=st.lists(st.one_of(st.integers(), st.text(max_size=2)), max_size=2)),
    ),
    lambda inner: st.one_of(
        st.builds(dict, anyOf=st.lists(inner, max_size=3)), st.builds(dict, oneOf=inner)
    ),
    max_leaves=6,
)


@given(text=st.text(max_size=12), schema=_SCHEMAS)
def test_whatever_the_schema_the_outcome_is_json(text: str, schema: Any) -> None:
    json.loads(arguments.write_by_schema(text, schema, _ROOT))
    json.loads(arguments.write_json(text))


def test_a_schema_that_refers_to_itself_without_end_is_looked_at_for_a_while_only() -> None:
    wide = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}] * 100}}}
    assert arguments.write_by_schema("1", {"$ref": "#/$defs/A"}, wide) == '"1"'


@pytest.mark.parametrize("schema", [{"properties": 5}, {"properties": ["a"]}, {}])
def test_what_is_no_schema_says_nothing(schema: Any) -> None:
    text = write_calls(TOOL_FORMATS["qwen3_coder"], [("f", {"a": "5", "b": "<parameter=c>"})])
    form = writing.form(TOOL_FORMATS["qwen3_coder"], {"f": schema})
    assert writing.read(form, [text]).calls == (("f", {"a": "5", "b": "<parameter=c>"}),)
