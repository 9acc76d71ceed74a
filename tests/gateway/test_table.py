"""Which model a name leads to, which track a session is on, which replica is taken."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_gateway import choice, table
from slipstream_gateway.choice import NotFound, NothingReady, Target
from slipstream_gateway.table import Endpoint, RoutingTable, ServiceSlice
from tests.gateway.support import route, service_slice

SESSIONS = [f"session-{i}".encode() for i in range(4000)]


def tracks_table(weights: dict[str, int], pods: int = 1) -> RoutingTable:
    return table.build(
        [route(weights=weights)],
        [
            service_slice({f"{track}-{i}": 9000 + i for i in range(pods)}, service=f"coder-{track}")
            for track in weights
        ],
    )


def track_of(made: RoutingTable, session: bytes) -> str:
    target = choice.resolve(made, "coder", session, {})
    assert isinstance(target, Target)
    return target.track.name


def test_every_name_of_a_route_leads_to_its_model() -> None:
    made = tracks_table({"stable": 10_000})
    for name in ("coder", "fast-coder", "agents/coder"):
        target = choice.resolve(made, name, b"s", {})
        assert isinstance(target, Target)
        assert (target.model.name, target.replica.pod) == ("coder", "stable-0")
    assert isinstance(choice.resolve(made, "other", b"s", {}), NotFound)
    assert isinstance(choice.resolve(table.EMPTY, "coder", b"s", {}), NotFound)


@pytest.mark.parametrize("swapped", [False, True], ids=["oldest first", "oldest last"])
def test_a_contested_short_name_belongs_to_the_oldest_route(swapped: bool) -> None:
    old = route(namespace="z", created_at="2026-01-01T00:00:00Z", names=("coder",))
    young = route(namespace="a", created_at="2026-01-02T00:00:00Z", names=("coder", "mine"))
    made = table.build([young, old] if swapped else [old, young], [])
    assert made.by_name["coder"].namespace == "z"
    assert made.by_name["a/coder"].namespace == "a"
    assert made.by_name["mine"].names == ("mine", "a/coder")


def test_a_deleted_route_keeps_no_name_that_another_one_has() -> None:
    gone = replace(route(created_at="2020-01-01T00:00:00Z", names=("x", "only")), is_gone=True)
    made = table.build([gone, route(name="heir", names=("x",))], [])
    assert {name: made.by_name[name].name for name in ("x", "only", "agents/coder")} == {
        "x": "heir",
        "only": "coder",
        "agents/coder": "coder",
    }


def test_of_equally_old_routes_the_first_by_name_keeps_a_contested_name() -> None:
    routes = [route(namespace="b", names=("x",)), route(namespace="a", names=("x",))]
    assert table.build(routes, []).by_name["x"].namespace == "a"


def test_a_qualified_name_is_never_taken_by_another_routes_alias() -> None:
    old = route(name="thief", names=("thief", "agents/coder"), created_at="2020-01-01T00:00:00Z")
    made = table.build([old, route(created_at="2026-01-01T00:00:00Z")], [])
    assert made.by_name["agents/coder"].name == "coder"


@given(st.permutations(range(5)), st.lists(st.sampled_from("pqr"), min_size=5, max_size=5))
def test_the_table_does_not_depend_on_the_order_of_events(
    order: list[int], aliases: list[str]
) -> None:
    routes = [
        route(name=f"m{i}", names=(f"m{i}", alias), created_at=f"2026-01-0{1 + i % 2}T00:00:00Z")
        for i, alias in enumerate(aliases)
    ]
    assert table.build([routes[i] for i in order], []) == table.build(routes, [])


@given(canary=st.integers(0, 10_000), baseline=st.integers(0, 5_000))
def test_sessions_are_spread_by_weight(canary: int, baseline: int) -> None:
    baseline = min(baseline, 10_000 - canary)
    weights = {"stable": 10_000 - canary - baseline, "canary": canary, "baseline": baseline}
    made = tracks_table(weights)
    some = SESSIONS[:200]
    counts = Counter(track_of(made, session) for session in some)
    for track, weight in weights.items():
        # Four standard deviations of a fair draw (at most 3.6 % each at 200 sessions).
        assert abs(counts[track] / len(some) - weight / 10_000) < 0.145
        if weight == 0:
            assert counts[track] == 0


def test_a_small_canary_gets_its_small_share() -> None:
    made = tracks_table({"stable": 9_500, "canary": 500})
    counts = Counter(track_of(made, session) for session in SESSIONS)
    assert abs(counts["canary"] / len(SESSIONS) - 0.05) < 4 * (0.05 * 0.95 / len(SESSIONS)) ** 0.5


@given(
    st.lists(st.integers(0, 5_000), min_size=2, max_size=2),
    st.lists(st.integers(0, 5_000), min_size=2, max_size=2),
)
def test_a_session_stays_on_its_canary_or_baseline_while_that_grows(
    canary: list[int], baseline: list[int]
) -> None:
    (c1, c2), (b1, b2) = sorted(canary), sorted(baseline)
    before = tracks_table({"stable": 10_000 - c1 - b1, "canary": c1, "baseline": b1})
    after = tracks_table({"stable": 10_000 - c2 - b2, "canary": c2, "baseline": b2})
    for session in SESSIONS[:60]:
        was = track_of(before, session)
        assert was == "stable" or track_of(after, session) == was


def test_different_models_try_their_canaries_on_different_sessions() -> None:
    weights = {"stable": 9_000, "canary": 1_000}
    made = table.build([route(weights=weights), route(name="b", names=(), weights=weights)], [])
    first, second = made.models
    on_first = {s for s in SESSIONS if choice.session_point(first, s) < 1_000}
    on_second = {s for s in SESSIONS if choice.session_point(second, s) < 1_000}
    assert len(on_first & on_second) < len(on_first) / 3


def test_a_track_without_a_replica_falls_back_to_one_that_has_a_weight() -> None:
    weights = {"stable": 0, "canary": 5_000, "baseline": 5_000}
    made = table.build(
        [route(weights=weights)],
        [
            service_slice({"s": 1}, service="coder-stable"),
            service_slice({"b": 1}, service="coder-baseline"),
        ],
    )
    targets = [choice.resolve(made, "coder", session, {}) for session in SESSIONS[:100]]
    assert all(isinstance(t, Target) and t.track.name == "baseline" for t in targets)
    fell_back = Counter(isinstance(t, Target) and t.fell_back for t in targets)
    assert set(fell_back) == {True, False}


def test_a_track_of_weight_zero_is_no_refuge() -> None:
    made = table.build(
        [route(weights={"stable": 10_000, "canary": 0})],
        [service_slice({"c": 1}, service="coder-canary")],
    )
    assert isinstance(choice.resolve(made, "coder", b"s", {}), NothingReady)


def test_draining_and_unready_pods_get_nothing() -> None:
    made = table.build(
        [route(draining=frozenset({"b"}))],
        [
            service_slice({"a": 1, "b": 1}),
            ServiceSlice("agents", "y", "coder-stable", (Endpoint("c", "::1", 1, False),)),
        ],
    )
    assert [replica.pod for replica in made.models[0].tracks[0].replicas] == ["a"]


@pytest.mark.parametrize("ready_first", [True, False])
def test_a_pod_in_two_slices_counts_once_and_as_ready(ready_first: bool) -> None:
    parts = [
        ServiceSlice("agents", name, "coder-stable", (Endpoint("p", "10.0.0.1", 1, ready),))
        for name, ready in (("a", ready_first), ("b", not ready_first))
    ]
    made = table.build([route()], parts)
    assert len(made.models[0].tracks[0].replicas) == 1


def test_slices_of_another_namespace_do_not_count() -> None:
    made = table.build([route()], [service_slice({"a": 1}, namespace="other")])
    assert isinstance(choice.resolve(made, "coder", b"s", {}), NothingReady)


def test_the_slices_port_wins_over_the_services() -> None:
    part = ServiceSlice(
        "agents", "x", "coder-stable", (Endpoint("a", "h", 7, True), Endpoint("b", "h", None, True))
    )
    replicas = table.build([route()], [part]).models[0].tracks[0].replicas
    assert [replica.port for replica in replicas] == [7, 8000]


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.binary(min_size=1, max_size=8))
def test_the_replica_has_the_least_outstanding_requests(load: list[int], session: bytes) -> None:
    made = tracks_table({"stable": 10_000}, pods=4)
    outstanding = {f"agents/stable-{i}": value for i, value in enumerate(load)}
    target = choice.resolve(made, "coder", session, outstanding)
    assert isinstance(target, Target)
    assert outstanding[f"agents/{target.replica.pod}"] == min(load)
    assert choice.resolve(made, "coder", session, dict(outstanding)) == target


def test_equally_busy_replicas_share_the_sessions_and_each_keeps_its_own() -> None:
    def pod(made: RoutingTable, session: bytes) -> str:
        target = choice.resolve(made, "coder", session, {})
        assert isinstance(target, Target)
        return target.replica.pod

    three, four = (tracks_table({"stable": 10_000}, pods=n) for n in (3, 4))
    counts = Counter(pod(three, session) for session in SESSIONS)
    assert min(counts.values()) > len(SESSIONS) / 3 * 0.85
    for session in SESSIONS[:500]:
        assert pod(four, session) in (pod(three, session), "stable-3")


def test_a_replica_that_failed_is_not_tried_again() -> None:
    made = tracks_table({"stable": 10_000}, pods=2)
    tried = frozenset({"agents/stable-0"})
    for session in SESSIONS[:20]:
        target = choice.resolve(made, "coder", session, {"agents/stable-1": 9}, excluded=tried)
        assert isinstance(target, Target)
        assert target.replica.pod == "stable-1"
    both = tried | {"agents/stable-1"}
    assert isinstance(choice.resolve(made, "coder", b"s", {}, excluded=both), NothingReady)
