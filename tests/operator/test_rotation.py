"""The internal token's rotation: whatever is late, a sender's key is one that receivers accept."""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_operator import children, documents, rotation
from slipstream_operator.plan import Plan, plan
from slipstream_operator.rotation import Keys, Pace
from tests.operator import world

SETTLE_S = 100
PACE = Pace(rotate_after_s=300, settle_s=SETTLE_S)
OFF = Pace(rotate_after_s=None, settle_s=SETTLE_S)


def at(seconds: float) -> str:
    return documents.format_time(world.START + timedelta(seconds=seconds))


def advance(data: Mapping[str, str], age_s: float, pace: Pace = PACE) -> rotation.Turn:
    keys = Keys(data, at(-age_s))
    return rotation.advance(keys, pace, "fresh", world.START)


@pytest.mark.parametrize(
    ("data", "age_s", "expected", "due_after_s"),
    [
        ({}, 0, {"current": "fresh"}, 300),
        ({"previous": "p"}, 0, {"current": "fresh"}, 300),
        ({"current": "a"}, 299, {"current": "a"}, 1),
        ({"current": "a"}, 300, {"current": "a", "next": "fresh"}, 100),
        ({"current": "a", "next": "b"}, 99, {"current": "a", "next": "b"}, 1),
        ({"current": "a", "next": "b"}, 100, {"current": "b", "previous": "a"}, 100),
        ({"current": "b", "previous": "a"}, 99, {"current": "b", "previous": "a"}, 1),
        ({"current": "b", "previous": "a"}, 100, {"current": "b"}, 300),
        (
            {"current": "a", "next": "b", "previous": "c"},
            100,
            {"current": "b", "previous": "a"},
            100,
        ),
        ({"current": "a", "next": "", "other": "x"}, 299, {"current": "a"}, 1),
    ],
)
def test_each_step_waits_for_its_time(
    data: dict[str, str], age_s: float, expected: dict[str, str], due_after_s: float
) -> None:
    turn = advance(data, age_s)
    assert (turn.keys.data, turn.due_after_s) == (expected, due_after_s)
    is_step = turn.keys.stepped_at == at(0)
    assert is_step == (expected != {k: v for k, v in data.items() if v and k != "other"})


def test_switched_off_a_key_stays_but_a_rotation_that_has_begun_ends() -> None:
    assert advance({"current": "a"}, 1e9, OFF) == rotation.Turn(
        Keys({"current": "a"}, at(-1e9)), None
    )
    assert advance({"current": "a", "next": "b"}, 100, OFF).keys.data == {
        "current": "b",
        "previous": "a",
    }
    last = advance({"current": "b", "previous": "a"}, 100, OFF)
    assert (last.keys.data, last.due_after_s) == ({"current": "b"}, None)


@pytest.mark.parametrize("stepped_at", [None, "yesterday", at(3600)])
def test_without_a_time_that_can_be_trusted_the_wait_begins_anew(stepped_at: str | None) -> None:
    keys = Keys({"current": "a", "next": "b"}, stepped_at)
    turn = rotation.advance(keys, PACE, "fresh", world.START)
    assert turn == rotation.Turn(Keys({"current": "a", "next": "b"}, at(0)), SETTLE_S)


@given(st.lists(st.integers(1, 250), min_size=5, max_size=40))
def test_no_sender_uses_a_key_that_a_late_receiver_does_not_know(gaps: list[int]) -> None:
    """Whoever reads sees a version that was the newest at some moment of the last SETTLE_S."""
    keys = rotation.advance(Keys({}, None), PACE, "key-0", world.START).keys
    versions = [(0, keys)]  # since when it is the newest
    now_s = 0
    for number, gap in enumerate(gaps, start=1):
        now_s += gap
        moment = world.START + timedelta(seconds=now_s)
        keys = rotation.advance(versions[-1][1], PACE, f"key-{number}", moment).keys
        if keys != versions[-1][1]:
            versions.append((now_s, keys))
        ends = [since for since, _ in versions[1:]] + [now_s + 1]
        visible = [v for (_, v), end in zip(versions, ends, strict=True) if end > now_s - SETTLE_S]
        for sender in visible:
            for receiver in visible:
                assert sender.data["current"] in receiver.data.values()
        assert len(keys.data) <= 2


def secret(data: dict[str, str], age_s: float) -> documents.Document:
    owner = world.model()
    made = children.token_secret(world.NAMESPACE, [owner], Keys(data, at(-age_s)), observed=None)
    return {**made, "metadata": {**made["metadata"], "uid": "uid-secret", "resourceVersion": "7"}}


def decide(token: documents.Document) -> Plan:
    model = world.model()
    observed = world.observe([model, token], "coder", world.START)
    return plan(model, observed, world.settings(token_pace=PACE), world.START, "fresh")


def test_a_step_replaces_only_the_version_that_was_observed() -> None:
    (written,) = [d for d in decide(secret({"current": "a"}, 300)).apply if d["kind"] == "Secret"]
    assert written["data"] == {"current": "a", "next": "fresh"}
    assert written["metadata"]["resourceVersion"] == "7"
    assert written["metadata"]["uid"] == "uid-secret"


def test_between_two_steps_nothing_is_written_and_the_next_one_is_not_missed() -> None:
    decided = decide(secret({"current": "a", "next": "b"}, 60))
    assert [d for d in decided.apply if d["kind"] == "Secret"] == []
    assert decided.requeue_after_s == 40
