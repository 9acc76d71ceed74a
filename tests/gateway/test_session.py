"""Which requests are one session, and that nobody can read it back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_gateway import session


def chat(*contents: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in contents], **more}


def test_the_header_wins_then_the_cache_key_then_the_user() -> None:
    full = chat("hi", prompt_cache_key="k", user="u")
    assert session.session_digest("h", "", full) == session.session_digest("h", "t", chat("x"))
    by_key = session.session_digest("", "", full)
    assert by_key == session.session_digest("", "", chat("other", prompt_cache_key="k"))
    by_user = session.session_digest("", "", chat("hi", user="u"))
    assert by_user == session.session_digest("", "", chat("other", user="u"))
    assert len({by_key, by_user, session.session_digest("h", "", full)}) == 3


def test_every_turn_of_a_conversation_is_one_session() -> None:
    turns = [
        {
            "messages": [
                {"role": "system", "content": f"time: {turn}"},
                {"role": "user", "content": "fix the bug"},
                *({"role": "assistant", "content": str(i)} for i in range(turn)),
            ]
        }
        for turn in range(3)
    ]
    assert len({session.session_digest("", "tenant", turn) for turn in turns}) == 1


def test_two_tenants_with_one_opening_are_two_sessions() -> None:
    assert session.session_digest("", "a", chat("hi")) != session.session_digest(
        "", "b", chat("hi")
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "text"},
        {"messages": [1, None, {"role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2, 3]},
        {"user": 7, "prompt_cache_key": ["x"]},
    ],
    ids=str,
)
def test_a_body_of_any_shape_has_a_session(body: dict[str, Any]) -> None:
    assert session.session_digest("", "", body) == session.session_digest("", "", body)


def test_a_completions_session_is_the_head_of_its_prompt() -> None:
    head = "x" * 2000
    first, second = (session.session_digest("", "", {"prompt": head + end}) for end in "ab")
    assert first == second
    assert first != session.session_digest("", "", {"prompt": "y" + head})


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_session_headers_are_different_sessions(one: str, other: str) -> None:
    same = session.session_digest(one, "", {}) == session.session_digest(other, "", {})
    assert same == (one == other)


def test_the_hash_that_leaves_the_gateway_depends_on_the_key() -> None:
    digest = session.session_digest("alice", "", {})
    hashes = {session.keyed_hash(digest, key) for key in (b"a", b"b", b"x" * 100)}
    assert len(hashes) == 3
    assert session.keyed_hash(digest, b"a") in hashes
    assert "alice" not in "".join(hashes)
