"""The watch cache: whatever order news comes in, the newest version wins."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_api import names
from slipstream_operator import documents, kinds
from slipstream_operator.cache import Cache
from slipstream_operator.documents import Document
from tests.operator import world


def pod(name: str, version: int, *, model: str = "coder") -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": world.NAMESPACE,
            "resourceVersion": str(version),
            "labels": {names.LABEL_MODEL: model},
        },
    }


def seen(cache: Cache) -> dict[str, str]:
    pods = cache.observe((world.NAMESPACE, "coder"), {}).pods
    return {documents.name(p): p["metadata"]["resourceVersion"] for p in pods}


def test_an_older_version_is_no_news() -> None:
    cache = Cache(lambda: 0.0)
    assert cache.feed(kinds.POD, pod("a", 5))
    assert not cache.feed(kinds.POD, pod("a", 4))
    assert not cache.feed(kinds.POD, pod("a", 5))
    assert seen(cache) == {"a": "5"}


def test_a_late_event_does_not_revive_a_deleted_object() -> None:
    cache = Cache(lambda: 0.0)
    cache.feed(kinds.POD, pod("a", 5))
    assert cache.feed(kinds.POD, pod("a", 8), deleted=True)
    assert not cache.feed(kinds.POD, pod("a", 7))
    assert seen(cache) == {}
    assert cache.feed(kinds.POD, pod("a", 9))


def test_a_late_deletion_does_not_remove_a_successor_of_the_same_name() -> None:
    cache = Cache(lambda: 0.0)
    cache.feed(kinds.POD, pod("a", 9))
    assert not cache.feed(kinds.POD, pod("a", 8), deleted=True)
    assert seen(cache) == {"a": "9"}


def test_a_list_removes_what_vanished_in_a_gap_but_nothing_that_is_newer() -> None:
    cache = Cache(lambda: 0.0)
    cache.feed(kinds.POD, pod("vanished", 3))
    cache.feed(kinds.POD, pod("kept", 4))
    cache.feed(kinds.POD, pod("newer", 12))
    news = cache.replace(kinds.POD, [pod("kept", 4), pod("found", 6)], "10")
    assert sorted(documents.name(d) for d in news) == ["found", "vanished"]
    assert seen(cache) == {"kept": "4", "newer": "12", "found": "6"}


def test_a_list_of_one_namespace_leaves_the_others_alone() -> None:
    cache = Cache(lambda: 0.0)
    cache.feed(kinds.POD, pod("a", 3))
    assert cache.replace(kinds.POD, [], "10", namespace="elsewhere") == []
    assert seen(cache) == {"a": "3"}


def test_a_relabelled_pod_leaves_its_model() -> None:
    cache = Cache(lambda: 0.0)
    cache.feed(kinds.POD, pod("a", 3))
    cache.feed(kinds.POD, pod("a", 4, model="other"))
    assert seen(cache) == {}


def test_a_model_that_goes_wakes_those_that_want_its_names() -> None:
    cache = Cache(lambda: 0.0)
    for number, (name, aliases) in enumerate((("a", ["x"]), ("b", ["x"]), ("c", ["y"]))):
        document = world.model(name, model={"source": "file:///m", "aliases": aliases})
        document["metadata"]["resourceVersion"] = str(number + 1)
        cache.feed(kinds.MODEL, document)
    gone = cache.get(kinds.MODEL, world.NAMESPACE, "a")
    assert gone is not None
    woken = cache.concerned(kinds.MODEL, gone)
    assert woken == {(world.NAMESPACE, "a"), (world.NAMESPACE, "b")}


def test_a_deleted_route_wakes_its_model() -> None:
    cache = Cache(lambda: 0.0)
    cache.feed(kinds.MODEL, world.model())
    route = {**pod("coder", 5), "apiVersion": kinds.ROUTE.api_version, "kind": "ModelRoute"}
    cache.feed(kinds.ROUTE, route)
    gone = {**pod("coder", 6), "apiVersion": kinds.ROUTE.api_version, "kind": "ModelRoute"}
    assert cache.take(kinds.ROUTE, gone, deleted=True) == {(world.NAMESPACE, "coder")}


def test_a_model_that_gives_up_a_name_wakes_those_that_want_it() -> None:
    cache = Cache(lambda: 0.0)
    for number, (name, aliases) in enumerate((("a", ["x"]), ("b", ["x"]), ("a", []))):
        document = world.model(name, model={"source": "file:///m", "aliases": aliases})
        document["metadata"]["resourceVersion"] = str(number + 1)
        woken = cache.take(kinds.MODEL, document)
    assert woken == {(world.NAMESPACE, "a"), (world.NAMESPACE, "b")}


def gateway_lease(version: int, renewed: str, *, duration_s: int = 20) -> Document:
    labels = {names.LABEL_COMPONENT: "gateway"}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "gateway-0",
            "namespace": "system",
            "resourceVersion": str(version),
            "labels": labels,
        },
        "spec": {"leaseDurationSeconds": duration_s, "renewTime": renewed},
    }


@pytest.mark.parametrize("year", ["1999", "2099"])
def test_a_gateway_lives_as_long_as_its_lease_changes_whatever_its_clock_says(year: str) -> None:
    now = 1000.0
    cache = Cache(lambda: now)

    def is_alive() -> bool:
        (gateway,) = cache.observe((world.NAMESPACE, "coder"), {}).gateways
        return gateway.is_alive

    for version in range(1, 4):
        cache.feed(kinds.LEASE, gateway_lease(version, f"{year}-01-01T00:00:{version:02}Z"))
        now += 19
        assert is_alive()
        # The same version again, out of a list, is no sign of life.
        cache.replace(
            kinds.LEASE, [gateway_lease(version, f"{year}-01-01T00:00:{version:02}Z")], "50"
        )
        assert is_alive()
    now += 1
    assert not is_alive()
    cache.replace(kinds.LEASE, [], "60")
    assert cache.observe((world.NAMESPACE, "coder"), {}).gateways == ()


@given(st.lists(st.sampled_from(["put", "delete"]), max_size=12), st.randoms(use_true_random=False))
def test_any_order_of_events_and_a_list_end_in_the_truth(
    history: list[str], rng: random.Random
) -> None:
    events: list[tuple[Document, bool]] = []
    exists = False
    for version, what in enumerate(history, start=1):
        if what == "put":
            events.append((pod("a", version), False))
            exists = True
        elif exists:
            events.append((pod("a", version), True))
            exists = False
    truth = {"a": events[-1][0]["metadata"]["resourceVersion"]} if exists else {}
    listed = [events[-1][0]] if exists else []
    rng.shuffle(events)
    cache = Cache(lambda: 0.0)
    cut = rng.randrange(len(events) + 1)
    for document, deleted in events[:cut]:
        cache.feed(kinds.POD, document, deleted=deleted)
    cache.replace(kinds.POD, listed, str(len(history)))
    for document, deleted in events[cut:]:
        # A watch that starts at the list's version brings nothing older.
        if int(document["metadata"]["resourceVersion"]) > len(history):
            cache.feed(kinds.POD, document, deleted=deleted)
    assert seen(cache) == truth
