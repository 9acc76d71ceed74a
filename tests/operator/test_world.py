"""plan() in a simulated cluster: whatever happens, requests keep their replicas and it settles."""

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_api import names
from slipstream_operator import documents, rollout
from tests.operator.world import World, model

SOURCES = [f"file:///models/{letter}.gguf" for letter in "abc"]
GATEWAYS = ("gateway-0", "gateway-1")

# What may happen between two writes of the operator.
events = st.one_of(
    st.tuples(st.just("ready"), st.integers(0, 7)),
    st.tuples(st.just("ready"), st.integers(0, 7)),
    st.tuples(st.just("unready"), st.integers(0, 7)),
    st.tuples(st.just("fail"), st.integers(0, 7)),
    st.tuples(st.just("vanish"), st.integers(0, 7)),
    st.tuples(st.just("gone"), st.just(0)),
    st.tuples(st.just("scale"), st.integers(0, 3)),
    st.tuples(st.just("source"), st.integers(0, 2)),
    st.tuples(st.just("invalid"), st.just(0)),
    st.tuples(st.just("acknowledge"), st.just(0)),
    st.tuples(st.just("unroute"), st.just(0)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("time"), st.integers(1, 40)),
)
# `kill_after`: the operator dies after so many writes of the pass, and starts again later.
turns = st.lists(
    st.tuples(st.lists(events, max_size=4), st.booleans(), st.integers(0, 9)), max_size=15
)


def happen(world: World, what: str, number: int) -> None:
    pods = world.pods()
    pod = documents.name(pods[number % len(pods)]) if pods else ""
    if what in ("ready", "unready"):
        world.set_ready(pod, what == "ready")
    elif what == "fail":
        world.fail(pod)
    elif what == "vanish":
        world.vanish(pod)
    elif what == "gone":
        world.finish_deletions()
    elif what == "scale":
        world.edit(scaling={"replicas": number})
    elif what == "source":
        world.edit(model={"source": SOURCES[number]})
    elif what == "invalid":
        world.edit(model={"source": "ftp://nowhere"})
    elif what == "acknowledge":
        world.acknowledge()
    elif what == "sync":
        world.sync()
    elif what == "unroute":
        world.objects.pop(("ModelRoute", "coder"), None)
    else:
        world.now += timedelta(seconds=number)


def routed_ready(world: World) -> set[str]:
    """Pods that get new requests: ready, of the routed revision, not draining."""
    route = world.route()
    if route is None:
        return set()
    (track,) = route["spec"]["tracks"]
    return {
        documents.name(p)
        for p in world.pods()
        if documents.is_ready(p)
        and documents.label(p, names.LABEL_REVISION) == track["revision"]
        and documents.name(p) not in track["drainingPods"]
    }


def desired(world: World) -> int:
    return int(world.model()["spec"].get("scaling", {}).get("replicas", 1))


def check_write(world: World, verb: str, what: Any, *, fresh: bool) -> None:
    """What must hold around every single write that a fresh snapshot led to."""
    before = routed_ready(world)
    world.carry_out(verb, what)
    if not fresh:
        return
    if before and desired(world) > 0:
        assert routed_ready(world), f"{verb} {what} left no ready replica"
    if verb == "delete" and what.kind == "Pod":
        assert what.name not in before, f"{what.name} was deleted while it got requests"
    live = [p for p in world.pods() if not documents.is_terminating(p)]
    live = [p for p in live if not documents.is_finished(p)]
    for revision in {documents.label(p, names.LABEL_REVISION) for p in live}:
        assert len(rollout.live(live, str(revision))) <= 3


def new_world() -> World:
    world = World()
    world.put(model(scaling={"replicas": 1}))
    for gateway in GATEWAYS:
        world.add_gateway(gateway)
    world.sync()
    return world


@settings(deadline=None)
@given(turns)
def test_no_sequence_of_faults_takes_the_last_replica_and_all_of_them_settle(
    script: list[tuple[list[tuple[str, int]], bool, int]],
) -> None:
    world = new_world()
    for happenings, fresh, kill_after in script:
        for what, number in happenings:
            happen(world, what, number)
        if fresh:
            world.sync()
        decided = world.plan()
        for verb, what in world.steps(decided)[:kill_after]:
            check_write(world, verb, what, fresh=fresh)
    world.edit(model={"source": SOURCES[0]}, scaling={"replicas": 2})
    world.settle()
    assert len(world.pods()) == 2
    assert len(routed_ready(world)) == 2
    conditions = {c["type"]: c for c in world.model()["status"]["conditions"]}
    assert {t: c["status"] for t, c in conditions.items()} == {
        "Accepted": "True",
        "Progressing": "False",
        "Degraded": "False",
        "Ready": "True",
    }


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=8))
def test_quick_edits_keep_pods_of_the_newest_and_the_routed_revision_only(
    edits: list[tuple[int, int]],
) -> None:
    world = new_world()
    world.settle()
    for source, replicas in edits:
        world.edit(model={"source": SOURCES[source]}, scaling={"replicas": replicas})
        world.reconcile()
        live = [p for p in world.pods() if not documents.is_terminating(p)]
        # One that carried requests until a moment ago stays until the gateways know.
        starting = [p for p in live if not documents.is_ready(p)]
        assert len({documents.label(p, names.LABEL_REVISION) for p in starting}) <= 2
        assert len(starting) <= 6
    world.settle()
    assert len(world.pods()) == edits[-1][1]


def test_a_settled_model_is_left_alone() -> None:
    world = new_world()
    world.settle()
    world.sync()
    decided = world.plan()
    assert (decided.create, decided.apply, decided.delete, decided.status) == ((), (), (), None)


def test_a_route_that_is_deleted_while_a_new_revision_starts_leads_to_the_old_one_again() -> None:
    world = new_world()
    world.settle()
    before = routed_ready(world)
    world.edit(model={"source": SOURCES[1]})
    world.reconcile()
    happen(world, "unroute", 0)
    for _ in range(3):
        world.reconcile()
        assert routed_ready(world) == before
    world.settle()
    assert len(routed_ready(world)) == 1
    assert routed_ready(world) != before
