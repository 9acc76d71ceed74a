"""Conditions: the transition time moves with the status only, and the order is fixed."""

from slipstream_api.conditions import Condition, ConditionType, Reason, find, upsert


def set_ready(conditions: list[Condition], status: str, now: str) -> list[Condition]:
    return upsert(
        conditions,
        ConditionType.READY,
        "True" if status == "True" else "False",
        Reason.ALL_REPLICAS_READY if status == "True" else Reason.STARTING,
        "words",
        generation=2,
        now=now,
    )


def test_a_repeated_status_keeps_its_transition_time() -> None:
    first = set_ready([], "False", "2026-01-01T00:00:00Z")
    second = set_ready(first, "False", "2026-01-01T00:01:00Z")
    assert second[0].last_transition_time == "2026-01-01T00:00:00Z"


def test_a_changed_status_moves_its_transition_time() -> None:
    first = set_ready([], "False", "2026-01-01T00:00:00Z")
    second = set_ready(first, "True", "2026-01-01T00:01:00Z")
    ready = find(second, ConditionType.READY)
    assert ready is not None
    assert ready.last_transition_time == "2026-01-01T00:01:00Z"
    assert len(second) == 1


def test_conditions_keep_the_order_in_which_a_person_reads_them() -> None:
    ready = set_ready([], "True", "2026-01-01T00:00:00Z")
    both = upsert(
        ready,
        ConditionType.ACCEPTED,
        "True",
        Reason.VALID,
        "",
        generation=2,
        now="2026-01-01T00:00:00Z",
    )
    assert [c.type for c in both] == ["Accepted", "Ready"]


def test_an_oversize_message_is_cut_to_what_the_api_server_takes() -> None:
    condition = upsert(
        [],
        ConditionType.READY,
        "False",
        Reason.CRASH_LOOP,
        "x" * 100_000,
        generation=1,
        now="2026-01-01T00:00:00Z",
    )[0]
    assert len(condition.message) == 32768
