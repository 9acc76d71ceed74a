"""No document with more than the bounds is read, and none is refused that has less than them."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slipstream_api.jsonbounds import JsonBounds

_documents = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5), st.booleans()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(max_size=3), inner)),
    max_leaves=30,
)


def _inside(value: Any) -> Iterator[Any]:
    """A value and all in it, names of members included."""
    yield value
    if isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from _inside(one)
    elif isinstance(value, list):
        for one in value:
            yield from _inside(one)


@given(_documents, st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_what_may_be_read_holds_no_more_than_that(
    document: Any, opened: int, texts: int, values: int, is_ascii: bool
) -> None:
    body = json.dumps(document, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    bounds = JsonBounds(opened, texts, values)
    # Shorter ones are not counted.
    if len(body) > min(opened, texts, values) and bounds.excess(body) is None:
        found = list(_inside(document))
        sizes = [len(one) for one in found if isinstance(one, list | dict)]
        assert len(sizes) <= opened
        assert sum(isinstance(one, str) for one in found) <= texts
        assert sum(max(0, size - 1) for size in sizes) <= values


def test_a_document_at_its_bounds_is_read_and_the_excess_is_told() -> None:
    body = json.dumps({"a": ["b" * 50, "c", {"d": 1}]}).encode()
    assert JsonBounds(3, 4, 2).excess(body) is None
    for bounds, words in (
        (JsonBounds(2, 4, 2), "3 lists and objects; at most 2"),
        (JsonBounds(3, 3, 2), "4 texts; at most 3"),
        (JsonBounds(3, 4, 1), "2 values; at most 1"),
    ):
        assert words in (bounds.excess(body) or "")


def test_a_body_too_short_to_hold_too_much_is_not_counted() -> None:
    assert JsonBounds(9, 9, 9).excess(b"[[[[[[[[[") is None
    assert JsonBounds(9, 9, 9).excess(b"[[[[[[[[[[") is not None
