"""The small pure parts: Kubernetes documents, the view, the tokens, the start."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slipstream_api import failure
from slipstream_gateway import documents, process
from slipstream_gateway.documents import DocumentError
from slipstream_gateway.view import Acknowledgement, SeenRoute, Tokens, View
from tests.gateway.support import SCOPE, route, service_slice

METADATA = {
    "namespace": "agents",
    "name": "coder",
    "uid": "u",
    "generation": 3,
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
TRACK = {"name": "stable", "revision": "r", "service": "s", "port": 8000, "weight": 10_000}


def route_document(**changes: Any) -> dict[str, Any]:
    spec = {"model": "coder", "names": ["coder"], "tracks": [TRACK], **changes}
    entries = [
        {"name": "gw-1", "namespace": "n", "observedGeneration": 2},
        {"name": "gw-2", "namespace": "n", "observedGeneration": 3},
    ]
    return {"metadata": METADATA, "spec": spec, "status": {"gateways": entries}}


def test_a_route_document_is_read_with_this_gateways_own_acknowledgement() -> None:
    track = {**TRACK, "drainingPods": ["p"]}
    seen = documents.route(route_document(tracks=[track]), ("n", "gw-1"))
    assert (seen.route.generation, seen.acknowledged) == (3, 2)
    assert seen.route.tracks[0].draining_pods == frozenset({"p"})
    assert documents.route(route_document(), ("n", "gw-9")).acknowledged is None


def test_another_installations_gateway_of_the_same_name_is_another_one() -> None:
    assert documents.route(route_document(), ("elsewhere", "gw-1")).acknowledged is None


def test_fields_of_a_newer_operator_are_passed_over() -> None:
    newer = route_document(scaling={"x": 1}, tracks=[{**TRACK, "future": True}])
    mine = ("n", "gw-1")
    assert documents.route(newer, mine) == documents.route(route_document(), mine)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"names": 7}, "names"), ({"tracks": [{**TRACK, "weight": -1}]}, "tracks.0.weight")],
)
def test_a_route_that_cannot_be_read_is_named_with_its_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(DocumentError, match=f"agents/coder: {field}"):
        documents.route(route_document(**changes), ("n", "gw-1"))


@pytest.mark.parametrize(
    ("conditions", "is_ready"),
    [
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({}, True),
        (None, True),
        ({"ready": None}, True),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": True}, False),
    ],
    ids=str,
)
def test_an_endpoint_is_ready_unless_it_says_otherwise_or_is_ending(
    conditions: Mapping[str, Any] | None, is_ready: bool
) -> None:
    endpoint = {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": {"name": "p"}}
    part = documents.service_slice(
        {
            "metadata": {**METADATA, "labels": {"kubernetes.io/service-name": "s"}},
            "ports": [{"name": "metrics", "port": 1}, {"name": "http", "port": 2}],
            "endpoints": [endpoint],
        }
    )
    assert part.service == "s"
    [read] = part.endpoints
    assert (read.pod, read.port, read.is_ready) == ("p", 2, is_ready)


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        (None, None),
        ([], None),
        ([{"port": 5}], 5),
        ([{"name": "a", "port": 1}, {"name": "b", "port": 2}], None),
    ],
    ids=str,
)
def test_a_port_without_a_name_counts_only_alone(ports: Any, port: int | None) -> None:
    document = {"metadata": METADATA, "ports": ports, "endpoints": [{"addresses": ["h"]}]}
    assert documents.service_slice(document).endpoints[0].port == port


def test_a_token_secret_is_read_and_never_shown() -> None:
    data = {key: base64.b64encode(key.encode() * 3).decode() for key in ("current", "previous")}
    read = documents.tokens({"metadata": METADATA, "data": {**data, "other": "!"}})
    assert read.current == "current" * 3
    assert read.accepted == ("current" * 3, "previous" * 3)
    assert "currentcurrent" not in repr(read)
    assert documents.tokens({"metadata": METADATA}).accepted == ()
    with pytest.raises(DocumentError):
        documents.tokens({"metadata": METADATA, "data": {"current": "not base64!"}})


def test_the_current_token_is_sent_at_once_and_the_last_one_when_the_secret_is_gone() -> None:
    view = View([SCOPE])
    view.routes.replace(SCOPE, {})
    view.slices.replace(SCOPE, {})
    view.tokens.replace(SCOPE, {})
    sent = []
    for read in (
        None,
        Tokens("agents", "a", ("a",)),
        Tokens("agents", "a", ("a", "b")),
        Tokens("agents", "b", ("b", "a")),
        Tokens("agents", None, ("b",)),
        None,
        Tokens("agents", "c", ("c",)),
    ):
        view.tokens.set(SCOPE, ("agents", "t"), read)
        view.refresh()
        sent.append(view.token("agents"))
    assert sent == [None, "a", "a", "b", "b", "b", "c"]
    assert view.token("other") is None


def test_the_table_is_not_in_use_before_everything_was_listed() -> None:
    view = View(["a", "b"])
    for scope in ("a", "b"):
        for store in (view.routes, view.slices, view.tokens):
            view.refresh()
            assert not view.is_in_use
            store.replace(scope, {})
    assert view.refresh()
    assert view.is_in_use


def test_only_a_generation_that_is_in_use_is_acknowledged() -> None:
    view = View([SCOPE])
    key = ("agents", "coder")
    view.slices.replace(SCOPE, {})
    view.tokens.replace(SCOPE, {})
    view.routes.replace(SCOPE, {key: SeenRoute(route(generation=1), None)})
    assert view.unacknowledged() == []
    view.refresh()
    first = Acknowledgement("agents", "coder", 1)
    assert view.unacknowledged() == [first]
    view.routes.set(SCOPE, key, SeenRoute(route(generation=2), None))
    assert view.unacknowledged() == [first], "2 is known, and not in use"
    view.note_acknowledged(first)
    view.refresh()
    assert view.unacknowledged() == [Acknowledgement("agents", "coder", 2)]
    view.note_acknowledged(Acknowledgement("agents", "coder", 2))
    assert view.unacknowledged() == []
    view.routes.set(SCOPE, key, SeenRoute(route(generation=2), None))
    assert len(view.unacknowledged()) == 1, "somebody took the entry away"


def followed(*names: str) -> View:
    view = View([SCOPE])
    view.tokens.replace(SCOPE, {})
    view.slices.replace(SCOPE, {})
    routes = {("agents", name): SeenRoute(route(name=name), None) for name in names}
    view.routes.replace(SCOPE, routes)
    view.refresh()
    return view


def test_a_deleted_route_is_followed_until_it_is_let_go() -> None:
    view, key = followed("coder"), ("agents", "coder")
    held = view.hold_route(SCOPE, key)
    assert held is not None
    view.refresh()
    assert "coder" in view.table.by_name
    assert view.unacknowledged() == [], "there is no object that would take it"
    view.let_go(SCOPE, key, held)
    assert view.stale.is_set()
    view.refresh()
    assert view.table.by_name == {}
    assert view.hold_route(SCOPE, key) is None


def test_a_route_that_was_made_again_is_not_let_go() -> None:
    view, key = followed("coder"), ("agents", "coder")
    first = view.hold_route(SCOPE, key)
    assert first is not None
    view.routes.set(SCOPE, key, SeenRoute(route(), None))
    view.let_go(SCOPE, key, first)
    second = view.hold_route(SCOPE, key)
    view.let_go(SCOPE, key, first)
    view.refresh()
    assert "coder" in view.table.by_name, "the second deletion has a time of its own"
    assert second is not None
    view.let_go(SCOPE, key, second)
    view.refresh()
    assert view.table.by_name == {}


def test_a_refresh_says_whether_the_table_changed() -> None:
    view = View([SCOPE])
    view.tokens.replace(SCOPE, {})
    view.routes.replace(SCOPE, {("agents", "coder"): SeenRoute(route(), None)})
    view.slices.replace(SCOPE, {})
    assert view.refresh()
    assert not view.refresh()
    view.slices.set(SCOPE, ("agents", "x"), service_slice({"a": 1}))
    assert view.refresh()
    view.slices.set(SCOPE, ("agents", "x"), None)
    assert view.refresh()


@pytest.mark.parametrize(
    ("config", "environment", "field"),
    [
        ({"schemaVersion": 2}, {}, "schemaVersion"),
        ({"schemaVersion": 1, "nosuch": 1}, {}, "nosuch"),
        ({"schemaVersion": 1}, {"POD_NAME": ""}, ""),
        ({"schemaVersion": 1}, {"KUBECONFIG": "/does/not/exist"}, ""),
    ],
    ids=["version", "unknown key", "no identity", "no cluster"],
)
def test_a_gateway_that_cannot_start_says_why(
    config: dict[str, Any],
    environment: dict[str, str],
    field: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = tmp_path / "termination"
    for name, value in {"POD_NAME": "p", "POD_NAMESPACE": "n", **environment}.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps(config))
    assert process.serve(file, log) == 1
    told = failure.parse(log.read_text())
    assert told is not None
    assert (told.reason, told.field) == ("ConfigInvalid", field)
