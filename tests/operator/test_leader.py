"""The Lease decision: two processes in simulated time, with pauses, never write together."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_operator import leader
from slipstream_operator.heartbeat import Heartbeat, Late
from slipstream_operator.leader import Action, Sighting, Timing

TIMING = Timing(15.0)


def lease(holder: str | None, version: int = 1, duration_s: int = 15) -> dict[str, Any]:
    spec: dict[str, Any] = {"leaseDurationSeconds": duration_s}
    if holder is not None:
        spec["holderIdentity"] = holder
    return {"metadata": {"resourceVersion": str(version)}, "spec": spec}


@pytest.mark.parametrize("duration_s", [3.0, 4.0, 15.0, 300.0])
def test_a_write_ends_before_anybody_may_take_over(duration_s: float) -> None:
    timing = Timing(duration_s)
    assert timing.renew_deadline_s + timing.write_timeout_s < duration_s
    assert timing.retry_s * 2 < timing.renew_deadline_s


@pytest.mark.parametrize(
    ("document", "since", "now", "action"),
    [
        (None, 0.0, 0.0, Action.CREATE),
        (lease(None), 0.0, 0.0, Action.ACQUIRE),
        (lease("me"), 0.0, 100.0, Action.RENEW),
        (lease("other"), 0.0, 14.9, Action.WAIT),
        (lease("other"), 0.0, 15.0, Action.ACQUIRE),
        (lease("other", duration_s=60), 0.0, 59.0, Action.WAIT),
    ],
)
def test_the_decision(
    document: dict[str, Any] | None, since: float, now: float, action: Action
) -> None:
    assert leader.decide(document, "me", Sighting("1", since), now) is action


def test_a_renewed_record_is_seen_anew_and_an_unchanged_one_is_not() -> None:
    first = leader.sight(lease("other", 1), None, 10.0)
    assert leader.sight(lease("other", 1), first, 20.0) == first
    assert leader.sight(lease("other", 2), first, 20.0) == Sighting("2", 20.0)


@dataclass
class Process:
    """One operator: its rounds take time, and it may be paused anywhere."""

    name: str
    clock_offset: float
    renewed_at: float | None = None
    sighting: Sighting | None = None
    paused_until: float = 0.0
    pending: tuple[dict[str, Any], float] | None = field(default=None)

    def local(self, now: float) -> float:
        return now + self.clock_offset

    def may_write(self, now: float) -> bool:
        return leader.write_window_s(self.renewed_at, TIMING, self.local(now)) > 0


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1]), st.floats(0.1, 4.0), st.floats(0.0, 40.0)),
        min_size=1,
        max_size=60,
    )
)
def test_two_processes_with_pauses_and_different_clocks_never_overlap(
    turns: list[tuple[int, float, float]],
) -> None:
    """A write that starts now may land `write_timeout_s` later: nobody else may write by then."""
    processes = [Process("a", 0.0), Process("b", 1000.0)]
    record: dict[str, Any] | None = None
    version = 0
    now = 0.0
    last_landing = {"a": -1.0, "b": -1.0}
    for index, gap, pause in turns:
        now += gap
        process = processes[index]
        if now < process.paused_until:
            continue
        # Read the Lease, then perhaps be paused, then write it with its version as precondition.
        me = process.local(now)
        process.sighting = leader.sight(record, process.sighting, me)
        action = leader.decide(record, process.name, process.sighting, me)
        if action is Action.WAIT:
            process.renewed_at = None
        else:
            version += 1
            record = lease(process.name, version)
            process.sighting = leader.sight(record, process.sighting, me)
            process.renewed_at = me
        process.paused_until = now + (pause if pause > 30 else 0.0)
        for one in processes:
            if one.may_write(now) and now >= one.paused_until:
                other = "b" if one.name == "a" else "a"
                assert now > last_landing[other], "two writers"
                last_landing[one.name] = now + TIMING.write_timeout_s


LEASES = ("Lease", None)


def age_s(heartbeat: Heartbeat, now: float) -> float:
    late = heartbeat.most_late(now)
    return late.age_s if late is not None else 0.0


def test_the_watch_is_behind_only_while_something_told_is_unseen() -> None:
    heartbeat = Heartbeat()
    assert age_s(heartbeat, 100.0) == 0.0
    heartbeat.told(LEASES, "5", 10.0)
    heartbeat.told(LEASES, "6", 20.0)
    assert age_s(heartbeat, 30.0) == 20.0
    heartbeat.seen(LEASES, "5")
    assert age_s(heartbeat, 30.0) == 10.0
    heartbeat.seen(LEASES, "6")
    assert age_s(heartbeat, 1000.0) == 0.0
    heartbeat.told(LEASES, "6", 1001.0)
    assert age_s(heartbeat, 2000.0) == 0.0


def test_what_was_told_and_is_gone_by_the_next_list_is_owed_by_no_watch() -> None:
    heartbeat = Heartbeat()
    heartbeat.told(LEASES, "7", 10.0)
    heartbeat.listed(LEASES, "7", "9")
    assert age_s(heartbeat, 20.0) == 10.0, "it is there, so the watch owes it"
    heartbeat.listed(LEASES, "0", "6")
    assert age_s(heartbeat, 20.0) == 10.0, "an older list says nothing of it"
    heartbeat.listed(LEASES, "5", "12")
    assert age_s(heartbeat, 20.0) == 0.0


def test_a_living_watch_of_one_kind_does_not_hide_the_dead_one_of_another() -> None:
    heartbeat = Heartbeat()
    heartbeat.told(("Pod", "agents"), "7", 10.0)
    for version in range(8, 20):
        heartbeat.told(LEASES, str(version), float(version))
        heartbeat.seen(LEASES, str(version))
        heartbeat.seen(("Pod", "elsewhere"), str(version))
    heartbeat.told(("Service", "agents"), "20", 100.0)
    late = heartbeat.most_late(140.0)
    assert late == Late(("Pod", "agents"), 130.0)
    assert str(late) == "watch of Pod in agents is 130 s behind"
    heartbeat.seen(("Pod", "agents"), "21")
    assert heartbeat.most_late(140.0) == Late(("Service", "agents"), 40.0)
