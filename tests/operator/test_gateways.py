"""Entries of gateways that are no more: which ones go, and what counts as a sign of life."""

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_operator import gateways, kinds
from slipstream_operator.cache import Cache
from slipstream_operator.documents import Document, Ref
from slipstream_operator.gateways import FORGOTTEN_AFTER_S, Withdrawal
from slipstream_operator.observed import GatewayEntry, acknowledged
from slipstream_operator.signs import Signs
from tests.operator import world

ROUTE = ("agents", "coder")
OTHER = ("agents", "other")
GATEWAY = ("system", "gateway-0")
DEAD = ("system", "gateway-1")


def route(version: int, **generations: int) -> Document:
    entries = [
        {"namespace": "system", "name": name.replace("_", "-"), "observedGeneration": generation}
        for name, generation in generations.items()
    ]
    return {
        "apiVersion": "slipstream.dev/v1alpha1",
        "kind": "ModelRoute",
        "metadata": {
            "name": "coder",
            "namespace": world.NAMESPACE,
            "uid": "uid-route",
            "resourceVersion": str(version),
        },
        "status": {"gateways": entries},
    }


def lease(version: int, name: str = "gateway-0") -> Document:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "system", "resourceVersion": str(version)},
    }


@pytest.mark.parametrize(
    ("silent_s", "is_withdrawn"),
    [
        (0.0, False),
        (FORGOTTEN_AFTER_S, False),
        (FORGOTTEN_AFTER_S + 0.1, True),
        (30 * FORGOTTEN_AFTER_S, True),
    ],
)
def test_an_entry_goes_after_an_hour_of_silence(silent_s: float, is_withdrawn: bool) -> None:
    entries = (GatewayEntry(*GATEWAY, 1.0), GatewayEntry(*DEAD, silent_s))
    ref = Ref("slipstream.dev/v1alpha1", "ModelRoute", *ROUTE, uid="uid-route")
    expected = (Withdrawal(ref, DEAD),) if is_withdrawn else ()
    assert gateways.withdrawals(route(1), entries) == expected


def test_without_a_route_there_is_nothing_to_take_out() -> None:
    assert gateways.withdrawals(None, (GatewayEntry(*DEAD, 1e9),)) == ()


def told(signs: Signs, what: str, now: float) -> None:
    """One thing that a watch brings."""
    if what == "lease":
        signs.lease_changed(GATEWAY, now)
    elif what == "no lease":
        signs.lease_gone(GATEWAY, now)
    elif what == "no route":
        signs.route_gone(ROUTE)
    elif what == "taken out":
        signs.route_says(ROUTE, {DEAD: 1}, now)
    else:  # "generation <n>"
        generation = int(what.removeprefix("generation "))
        signs.route_says(ROUTE, {GATEWAY: generation, DEAD: 1}, now)


@pytest.mark.parametrize(
    ("history", "silent_s"),
    [
        # What came (in ten seconds each), and how long the gateway is silent ten seconds later.
        (["generation 1"], 10),
        (["generation 1", "generation 1"], 20),
        (["generation 1", "generation 2"], 10),
        (["generation 1", "lease"], 10),
        (["lease", "generation 1", "generation 1"], 20),
        (["generation 1", "lease", "generation 1"], 20),
        (["generation 1", "lease", "no lease", "generation 1"], 20),
        (["lease", "generation 1", "no lease"], 10),
        (["generation 1", "taken out", "generation 1"], 10),
        (["generation 1", "no route", "generation 1"], 10),
        (["lease", "generation 1", "taken out"], None),
        (["generation 1", "no route"], None),
    ],
    ids=str,
)
def test_what_counts_as_a_sign_of_life(history: list[str], silent_s: float | None) -> None:
    signs = Signs()
    for number, what in enumerate(history):
        told(signs, what, 10.0 * number)
    found = signs.entries_silent_s(ROUTE, 10.0 * len(history))
    assert found.get(GATEWAY) == silent_s


def test_an_entry_in_another_route_is_looked_at_for_itself() -> None:
    signs = Signs()
    signs.route_says(ROUTE, {GATEWAY: 1}, 0.0)
    signs.route_says(OTHER, {GATEWAY: 1}, 50.0)
    assert signs.entries_silent_s(ROUTE, 60.0) == {GATEWAY: 60.0}
    assert signs.entries_silent_s(OTHER, 60.0) == {GATEWAY: 10.0}
    signs.lease_changed(GATEWAY, 55.0)
    assert signs.entries_silent_s(ROUTE, 60.0) == {GATEWAY: 5.0}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lease", "no lease", "generation 1", "generation 2"]),
            st.integers(1, 2000),
        ),
        max_size=20,
    ),
    st.integers(0, 5000),
)
def test_silence_begins_with_the_last_news(history: list[tuple[str, int]], later_s: int) -> None:
    """A Lease that changed or went, an entry that appeared or changed."""
    signs = Signs()
    now, news_at, entry = 0.0, 0.0, ""
    for what, passed_s in history:
        now += passed_s
        told(signs, what, now)
        if what != entry:
            news_at = now
        if what.startswith("generation"):
            entry = what
    found = signs.entries_silent_s(ROUTE, now + later_s)
    assert found.get(GATEWAY) == (now + later_s - news_at if entry else None)


def silent_s(cache: Cache) -> dict[str, float]:
    return {entry.name: entry.silent_s for entry in cache.observe(ROUTE, {}).entries}


def test_the_cache_takes_signs_of_life_from_the_watches() -> None:
    now = 0.0
    cache = Cache(lambda: now)
    cache.feed(kinds.ROUTE, route(1, gateway_0=1, gateway_1=1))
    cache.feed(kinds.LEASE, lease(2))
    cache.feed(kinds.LEASE, lease(3, "gateway-1"))
    now = 100.0
    cache.feed(kinds.LEASE, lease(4))
    now = 101.0
    assert silent_s(cache) == {"gateway-0": 1.0, "gateway-1": 101.0}
    # What a list repeats is no sign of life.
    cache.replace(kinds.LEASE, [lease(4), lease(3, "gateway-1")], "5")
    cache.replace(kinds.ROUTE, [route(1, gateway_0=1, gateway_1=1)], "5")
    assert silent_s(cache) == {"gateway-0": 1.0, "gateway-1": 101.0}
    # Another version of the route repeats what the entries say.
    cache.feed(kinds.ROUTE, route(6, gateway_0=1, gateway_1=1))
    assert silent_s(cache) == {"gateway-0": 1.0, "gateway-1": 101.0}
    cache.feed(kinds.ROUTE, route(7, gateway_0=1, gateway_1=2))
    assert silent_s(cache) == {"gateway-0": 1.0, "gateway-1": 0.0}


def test_a_lease_that_goes_starts_the_wait_of_its_old_entries() -> None:
    now = 0.0
    cache = Cache(lambda: now)
    cache.feed(kinds.ROUTE, route(1, gateway_0=1, gateway_1=1))
    for name in ("gateway-0", "gateway-1"):
        cache.feed(kinds.LEASE, lease(2, name))
    now = 2 * FORGOTTEN_AFTER_S
    cache.feed(kinds.LEASE, lease(3), deleted=True)
    cache.replace(kinds.LEASE, [], "4")  # the other one went in a gap between two watches
    assert silent_s(cache) == {"gateway-0": 0.0, "gateway-1": 0.0}
    now += 10.0
    assert silent_s(cache) == {"gateway-0": 10.0, "gateway-1": 10.0}


def test_equal_snapshots_list_entries_in_one_order() -> None:
    generations = {f"gateway_{number}": 1 for number in range(9)}
    shuffled = list(generations)
    random.Random(1).shuffle(shuffled)
    snapshots = []
    for keys in (list(generations), shuffled):
        cache = Cache(lambda: 0.0)
        cache.feed(kinds.ROUTE, route(1, **dict.fromkeys(keys, 1)))
        snapshots.append(cache.observe(ROUTE, {}).entries)
    assert snapshots[0] == snapshots[1]


def test_a_pass_after_an_entry_went_writes_nothing() -> None:
    model = world.World()
    model.put(world.model())
    model.add_gateway("gateway-0")
    model.settle()
    model.add_gateway("gateway-1", renewed_at=model.now)
    model.acknowledge()
    model.reconcile()
    model.now += timedelta(seconds=FORGOTTEN_AFTER_S + 1)
    assert [w.gateway for w in model.reconcile().withdraw] == [DEAD]
    before = model.writes
    model.reconcile()
    assert model.writes == before
    assert list(acknowledged(model.route() or {})) == [GATEWAY]
