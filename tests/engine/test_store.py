"""The store of past answers: whose they are, how many, and how they go."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.spec.draft import NO_DRAFT, Key, Subject
from slipstream_engine.spec.speculation import Speculation
from slipstream_engine.spec.store import Store, StoreDrafter, StoreLimits
from tests.depth import cases

KEY: Key = ("asks", 0)
ANSWER = list(range(100, 140))


def answer(
    drafter: StoreDrafter,
    tokens: Sequence[int],
    tenant: bytes = b"",
    *,
    key: Key = ("r", 0),
    finished: bool = True,
) -> None:
    drafter.start(Subject(key, (1, 2, 3), tenant=tenant))
    for start in range(0, len(tokens), 5):
        drafter.commit(key, tokens[start : start + 5])
    drafter.stop(key, finished)


def draft(
    drafter: StoreDrafter, said: Sequence[int], tenant: bytes = b"", budget: int = 64
) -> tuple[int, ...]:
    """What a new answer of the tenant is drafted after what it has said."""
    drafter.start(Subject(KEY, (1, 2, 3), tenant=tenant))
    drafter.commit(KEY, said)
    found = drafter.propose([(KEY, budget)])[0].tokens
    drafter.stop(KEY, finished=False)
    return found


def test_an_answer_is_drafted_from_an_earlier_one_to_its_end_and_no_further() -> None:
    drafter = StoreDrafter()
    answer(drafter, ANSWER)
    answer(drafter, [7, 8, 9])
    assert draft(drafter, ANSWER[10:14]) == tuple(ANSWER[14:])
    assert draft(drafter, [5, 5, *ANSWER[10:14]], budget=3) == tuple(ANSWER[14:17])
    assert draft(drafter, ANSWER[-2:]) == ()
    assert draft(drafter, [5]) == ()


def test_the_later_of_two_answers_is_followed() -> None:
    drafter = StoreDrafter()
    answer(drafter, [1, 2, 3, 4])
    answer(drafter, [1, 2, 3, 5])
    assert draft(drafter, [2, 3]) == (5,)


def test_the_longer_match_decides_also_between_parts() -> None:
    drafter = StoreDrafter(StoreLimits(tenant_tokens=12))
    answer(drafter, [1, 2, 3, 4])
    answer(drafter, [2, 3, 5, 6])
    assert draft(drafter, [1, 2, 3]) == (4,)
    assert draft(drafter, [9, 2, 3]) == (5, 6)


def test_a_tenant_never_drafts_from_anothers_answers() -> None:
    drafter = StoreDrafter()
    answer(drafter, ANSWER, b"a")
    assert draft(drafter, ANSWER[:4], b"a") == tuple(ANSWER[4:])
    assert draft(drafter, ANSWER[:4], b"b") == ()
    assert draft(drafter, ANSWER[:4]) == ()


def test_an_answer_that_is_not_whole_is_not_learnt() -> None:
    drafter = StoreDrafter()
    answer(drafter, ANSWER, finished=False)
    assert drafter.num_tokens == 0
    assert draft(drafter, ANSWER[:4]) == ()


def test_what_is_forgotten_is_gone_and_does_not_come_back() -> None:
    drafter = StoreDrafter()
    answer(drafter, ANSWER, b"a")
    answer(drafter, ANSWER, b"b")
    running: Key = ("running", 0)
    drafter.start(Subject(running, (1,), tenant=b"a"))
    drafter.commit(running, ANSWER[:4])
    assert drafter.propose([(running, 2)])[0].tokens == (104, 105)
    drafter.forget(b"a")
    assert drafter.propose([(running, 2)])[0].tokens == ()
    drafter.commit(running, ANSWER[4:])
    drafter.stop(running, finished=True)
    # What was being said when it was deleted was said before.
    assert draft(drafter, ANSWER[:4], b"a") == ()
    assert draft(drafter, ANSWER[:4], b"b") == tuple(ANSWER[4:])
    answer(drafter, ANSWER, b"a")
    assert draft(drafter, ANSWER[:4], b"a") == tuple(ANSWER[4:])


def test_an_answer_that_has_begun_is_forgotten_also_where_no_drafter_has_heard_of_it() -> None:
    """A drafter hears of an answer only when its first draft is asked for."""
    drafter = StoreDrafter()
    speculation = Speculation(drafter, 8, forget=drafter.forget)
    for tenant in (b"a", b"b"):
        speculation.start(Subject((tenant.decode(), 0), (1,), tenant=tenant), ANSWER[:1])
    speculation.forget(b"a")
    for name in ("a", "b"):
        speculation.commit((name, 0), ANSWER[1:], NO_DRAFT, 0)
        speculation.stop((name, 0), finished=True)
    assert draft(drafter, ANSWER[:4], b"a") == ()
    assert draft(drafter, ANSWER[:4], b"b") == tuple(ANSWER[4:])


def test_a_full_tenant_loses_what_was_said_longest_ago() -> None:
    drafter = StoreDrafter(StoreLimits(tenant_tokens=200))
    for number in range(20):
        answer(drafter, [1000 * number + place for place in range(20)])
    assert drafter.num_tokens <= 200
    for number in (19, 18, 17, 16):
        assert draft(drafter, [1000 * number, 1000 * number + 1], budget=1) != ()
    assert draft(drafter, [0, 1], budget=1) == ()


def test_of_a_long_answer_the_end_is_kept() -> None:
    drafter = StoreDrafter(StoreLimits(tenant_tokens=40))
    answer(drafter, list(range(500)))
    assert drafter.num_tokens <= 40
    assert draft(drafter, [490, 491], budget=2) == (492, 493)
    assert draft(drafter, [0, 1], budget=2) == ()


def test_the_tenant_that_was_used_longest_ago_goes() -> None:
    drafter = StoreDrafter(StoreLimits(tenants=2))
    answer(drafter, ANSWER, b"a")
    answer(drafter, ANSWER, b"b")
    assert draft(drafter, ANSWER[:4], b"a") != ()
    answer(drafter, ANSWER, b"c")
    assert drafter.num_tenants == 2
    assert draft(drafter, ANSWER[:4], b"b") == ()
    assert draft(drafter, ANSWER[:4], b"a") != ()


def test_a_tenant_that_only_asks_takes_no_place() -> None:
    drafter = StoreDrafter(StoreLimits(tenants=1))
    answer(drafter, ANSWER, b"a")
    answer(drafter, [], b"b")
    draft(drafter, ANSWER[:4], b"c")
    assert draft(drafter, ANSWER[:4], b"a") != ()


def test_an_answer_under_way_hears_of_one_that_is_finished_meanwhile() -> None:
    drafter = StoreDrafter()
    drafter.start(Subject(KEY, (1,)))
    drafter.commit(KEY, ANSWER[:4])
    answer(drafter, ANSWER)
    drafter.commit(KEY, ANSWER[4:5])
    assert drafter.propose([(KEY, 2)])[0].tokens == (105, 106)


@pytest.mark.parametrize("limits", [StoreLimits(tenant_tokens=3), StoreLimits(tenants=0)])
def test_a_store_that_holds_nothing_is_refused(limits: StoreLimits) -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        Store(limits)


tokens = st.lists(st.integers(1, 3), min_size=1, max_size=30)
deeds = st.lists(
    st.tuples(st.sampled_from([b"", b"a", b"b", b"c"]), st.sampled_from("+-?"), tokens), max_size=30
)


@cases(150)
@given(deeds, st.integers(4, 60), st.integers(1, 3))
def test_bounds_hold_and_every_draft_was_said_to_its_tenant(
    done: list[tuple[bytes, str, list[int]]], tenant_tokens: int, tenants: int
) -> None:
    drafter = StoreDrafter(StoreLimits(tenant_tokens, tenants))
    said: dict[bytes, list[list[int]]] = {}
    for tenant, deed, content in done:
        if deed == "+":
            answer(drafter, content, tenant)
            said.setdefault(tenant, []).append(content)
        elif deed == "-":
            drafter.forget(tenant)
            said.pop(tenant, None)
        else:
            found = list(draft(drafter, content, tenant))
            assert not found or any(
                found == one[start : start + len(found)]
                for one in said.get(tenant, [])
                for start in range(len(one))
            )
        assert drafter.num_tenants <= tenants
        assert drafter.num_tokens <= tenants * tenant_tokens
