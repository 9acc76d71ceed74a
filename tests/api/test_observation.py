"""The record that gateways and engines share, and the ring that the judge reads by number."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_api import observation
from slipstream_api.observation import ErrorClass, Observation, Ring, ToolCallClass


def record(namespace: str = "agents", **more: Any) -> Observation:
    return Observation(time_unix_s=1.0, disconnect=False, namespace=namespace, **more)


def ids(page: dict[str, Any]) -> list[int]:
    return [item["id"] for item in page["observations"]]


def test_a_field_without_a_source_is_absent_and_zero_is_not() -> None:
    plain = Observation(time_unix_s=1.23456789, disconnect=True).document()
    assert plain == {"time_unix_s": 1.234568, "disconnect": True}
    full = record(output_tokens=0, drafts=0, repetition=0.0, streamed=False).document()
    assert full["output_tokens"] == full["drafts"] == full["repetition"] == 0
    assert full["streamed"] is False


def test_a_document_is_plain_json_of_counts_and_known_words() -> None:
    full = Observation(
        time_unix_s=1.0,
        disconnect=False,
        namespace="agents",
        model="coder",
        track="canary",
        revision="r",
        session="5e55",
        status=502,
        streamed=True,
        duration_ms=9.5,
        ttft_ms=1.5,
        tpot_ms=0.25,
        input_tokens=3,
        output_tokens=2,
        cached_tokens=1,
        finish_reason="stop",
        tool_call_class=ToolCallClass.INVALID_JSON,
        drafts=8,
        accepted=5,
        repetition=0.5,
        script=0.25,
        error_class=ErrorClass.ENGINE_BROKE,
    ).document()
    read = json.loads(json.dumps(full))
    assert read.keys() == {field.name for field in fields(Observation)}
    assert (read["tool_call_class"], read["error_class"]) == ("invalid_json", "engine_broke")
    assert (read["tpot_ms"], read["accepted"], read["script"]) == (0.25, 5, 0.25)


@pytest.mark.parametrize(
    ("said", "kept"),
    [("stop", "stop"), ("tool_calls", "tool_calls"), ("", "other"), ("a secret", "other")],
)
def test_few_finish_reasons_are_kept_whatever_an_engine_says(said: str, kept: str) -> None:
    assert observation.known_finish_reason(said) == kept


def test_a_reader_that_asks_with_next_sees_everything_once() -> None:
    ring = Ring(100, "gw/1")
    seen: list[int] = []
    after = 0
    for burst in (3, 0, 7, 1):
        for _ in range(burst):
            ring.append(record())
        while True:
            page = ring.after(after, 2)
            assert page["lost"] == 0
            seen += ids(page)
            after = page["next"]
            if not page["observations"]:
                break
    assert seen == list(range(1, 12))


def test_the_ring_is_bounded_and_says_what_it_lost() -> None:
    ring = Ring(3, "gw/1")
    for _ in range(10):
        ring.append(record())
    page = ring.after(2, 10)
    assert (ids(page), page["lost"], page["next"]) == ([8, 9, 10], 5, 10)
    assert ring.after(10, 10)["lost"] == 0


def test_a_number_of_the_process_before_starts_anew() -> None:
    ring = Ring(3, "gw/2")
    ring.append(record())
    page = ring.after(5000, 10)
    assert (ids(page), page["instance"]) == ([1], "gw/2")


def test_another_namespaces_observations_are_passed_over_without_a_stop() -> None:
    ring = Ring(10, "gw/1")
    for namespace in ("a", "b", "b", "a"):
        ring.append(record(namespace))
    page = ring.after(0, 1, {"a"})
    assert (ids(page), page["next"]) == ([1], 1)
    page = ring.after(1, 1, {"a"})
    assert (ids(page), page["next"]) == ([4], 4)
    assert ring.after(0, 10, {"c"})["next"] == 4


@given(
    size=st.integers(1, 6),
    written=st.lists(st.sampled_from("ab"), max_size=15),
    last_seen=st.integers(0, 20),
    limit=st.integers(1, 6),
    scope=st.sampled_from([None, frozenset("a"), frozenset("ab")]),
)
def test_a_page_is_what_a_list_of_everything_would_give(
    size: int, written: list[str], last_seen: int, limit: int, scope: frozenset[str] | None
) -> None:
    ring = Ring(size, "gw/1")
    for namespace in written:
        ring.append(record(namespace))
    held = list(enumerate(written, start=1))[-size:]
    seen = 0 if last_seen > len(written) else last_seen
    wanted = [id_ for id_, it in held if id_ > seen and (scope is None or it in scope)]
    page = ring.after(last_seen, limit, scope)
    assert ids(page) == wanted[:limit]
    assert page["lost"] == max(0, len(written) - size - seen)
    rest = ids(ring.after(page["next"], 100, scope))
    assert ids(page) + rest == wanted


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ({}, (0, 1000)),
        ({"after": "7", "limit": "1"}, (7, 1)),
        ({"after": "-1"}, "after"),
        ({"after": "x"}, "after"),
        ({"after": "1_0"}, "after"),
        ({"after": "²"}, "after"),
        ({"after": "9" * 5000}, "after"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": ""}, "limit"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_query_is_read_or_refused_by_name(
    query: Mapping[str, str], read: tuple[int, int] | str
) -> None:
    if isinstance(read, str):
        with pytest.raises(ValueError, match=f"^{read}: "):
            observation.read_query(query)
    else:
        assert observation.read_query(query) == read
