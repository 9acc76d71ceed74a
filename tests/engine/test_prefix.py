"""The prefix cache: what is found, what never is, and what is given up first."""

import pytest

from slipstream_engine.prefix import PrefixIndex
from tests.engine import policy
from tests.engine.policy import Simulation

_TEXT = [(5 * number + number * number) % 7 for number in range(60)]


def _cached_tokens(simulation: Simulation, prompt: list[int], root_key: bytes = b"") -> int:
    """Of a prompt that is submitted and forgotten again, how many tokens were found."""
    simulation.submit(policy.request("probe", prompt, 1, root_key=root_key))
    simulation.run()
    return simulation.cached.pop("probe")


def _seen(simulation: Simulation, id_: str, prompt: list[int], max_tokens: int = 1) -> None:
    simulation.submit(policy.request(id_, prompt, max_tokens))
    simulation.run()


@pytest.mark.parametrize(
    ("seen", "asked", "found"),
    [
        (3, 9, 0),
        (4, 9, 4),
        (7, 9, 4),
        (8, 9, 8),
        (8, 8, 4),
        (12, 9, 8),
        (12, 8, 4),
        (12, 5, 4),
        (12, 4, 0),
        (12, 1, 0),
        (20, 21, 20),
    ],
)
def test_whole_pages_of_a_known_prefix_are_found_and_the_last_token_never(
    seen: int, asked: int, found: int
) -> None:
    simulation = Simulation(policy.limits(page_tokens=4), 64)
    _seen(simulation, "a", _TEXT[:seen])
    assert _cached_tokens(simulation, _TEXT[:asked]) == found


def test_answers_are_found_too_up_to_their_last_computed_token() -> None:
    simulation = Simulation(policy.limits(page_tokens=4), 64)
    _seen(simulation, "a", _TEXT[:6], 7)
    whole = _TEXT[:6] + simulation.answers["a", 0]
    # Thirteen tokens, of which the last one was never computed: three full pages.
    assert _cached_tokens(simulation, [*whole, 1, 1, 1, 1]) == 12
    simulation = Simulation(policy.limits(page_tokens=4), 64)
    _seen(simulation, "a", _TEXT[:6], 6)
    whole = _TEXT[:6] + simulation.answers["a", 0]
    # Twelve tokens, eleven computed: the third page is not full.
    assert _cached_tokens(simulation, [*whole, 1, 1, 1, 1]) == 8


def test_a_page_is_found_only_behind_the_same_beginning() -> None:
    simulation = Simulation(policy.limits(page_tokens=4), 64)
    _seen(simulation, "a", _TEXT[:16])
    assert _cached_tokens(simulation, [*_TEXT[:4], 6, 6, 6, 6, *_TEXT[8:16], 0]) == 4
    assert _cached_tokens(simulation, _TEXT[4:16]) == 0


def test_prompts_under_different_roots_never_share_a_page() -> None:
    simulation = Simulation(policy.limits(page_tokens=4), 64)
    _seen(simulation, "a", _TEXT[:16])
    one, other = b"\1" * 32, b"\2" * 32
    assert _cached_tokens(simulation, _TEXT[:16], one) == 0
    assert _cached_tokens(simulation, _TEXT[:16], other) == 0
    assert _cached_tokens(simulation, _TEXT[:16], one) == 12
    assert _cached_tokens(simulation, _TEXT[:16], policy.ROOT) == 12


def test_a_prefix_that_is_still_in_use_is_found() -> None:
    simulation = Simulation(policy.limits(page_tokens=4, tokens=8), 64)
    simulation.submit(policy.request("a", _TEXT[:16], 9))
    simulation.step()
    # Only what is computed: eight of its sixteen tokens.
    simulation.submit(policy.request("b", _TEXT[:16], 1))
    simulation.step()
    simulation.step()
    assert simulation.cached["b"] == 12
    first, *_ = simulation.scheduler.running
    assert first.request.id == "a"
    simulation.run()


def test_the_same_prompt_computed_twice_at_once_ends_in_the_same_pages() -> None:
    simulation = Simulation(policy.limits(page_tokens=4), 64)
    simulation.submit(*(policy.request(name, _TEXT[:10], 9) for name in "abc"))
    simulation.step()
    pages = [one.pages for one in simulation.scheduler.running]
    assert pages[0][:2] == pages[1][:2] == pages[2][:2]
    assert len({one[2] for one in pages}) == 3
    assert simulation.scheduler.load().num_pages_used == 2 + 3
    simulation.run()


def test_prompts_that_are_prefixes_of_each_other_share_what_they_have_in_common() -> None:
    simulation = Simulation(policy.limits(page_tokens=4, running=8), 64)
    requests = [policy.request(str(n), _TEXT[:n], 12) for n in range(1, 33, 3)]
    simulation.submit(*requests)
    simulation.run()
    simulation.check_answers(requests)
    simulation.check_empty()


def test_a_hundred_times_the_same_prompt_takes_no_more_pages_than_once() -> None:
    simulation = Simulation(policy.limits(page_tokens=4), 64)
    _seen(simulation, "first", _TEXT[:21], 9)
    cached = simulation.scheduler.load().num_pages_cached
    for number in range(100):
        _seen(simulation, str(number), _TEXT[:21], 9)
    load = simulation.scheduler.load()
    assert load.num_pages_cached == cached
    assert load.num_prefix_hits == 100 * 20


def test_the_least_recently_used_prefix_is_given_up_first_and_its_end_before_its_beginning() -> (
    None
):
    simulation = Simulation(policy.limits(32, page_tokens=4), 8)
    other = [6, *_TEXT[1:]]
    _seen(simulation, "old", _TEXT[:13])
    _seen(simulation, "new", other[:13])
    # Three pages each; five more tokens of a third text need two of six, with two free.
    _seen(simulation, "third", [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5])
    assert _cached_tokens(simulation, other[:13]) == 12
    assert 0 < _cached_tokens(simulation, _TEXT[:13]) < 12


def test_use_renews_a_prefix() -> None:
    simulation = Simulation(policy.limits(32, page_tokens=4), 8)
    other = [6, *_TEXT[1:]]
    _seen(simulation, "a", _TEXT[:13])
    _seen(simulation, "b", other[:13])
    _seen(simulation, "a again", _TEXT[:13])
    _seen(simulation, "c", [5] * 13)
    assert _cached_tokens(simulation, _TEXT[:13]) == 12


def test_a_matched_page_is_not_given_up_for_the_rest_of_its_own_prompt() -> None:
    simulation = Simulation(policy.limits(32, page_tokens=4), 8)
    _seen(simulation, "a", _TEXT[:13])
    _seen(simulation, "b", [6, *_TEXT[1:20]])
    # Eight pages for a context of 31 tokens: everything else must go, the three matched ones not.
    assert _cached_tokens(simulation, _TEXT[:31]) == 12


def test_a_prompt_that_needs_the_whole_pool_runs_beside_a_full_cache() -> None:
    simulation = Simulation(policy.limits(32, page_tokens=4), 8)
    for number in range(4):
        one = policy.request(str(number), [number, *_TEXT[:30]], 1)
        simulation.submit(one)
        simulation.run()
        simulation.check_answers([one])
    assert simulation.scheduler.load().num_pages_cached == 7


def test_the_index_refuses_a_second_entry_and_gives_up_no_parent() -> None:
    index = PrefixIndex()
    index.enter(3, b"a", None)
    index.enter(4, b"b", 3)
    for page, key in ((3, b"c"), (5, b"a")):
        with pytest.raises(ValueError, match="already"):
            index.enter(page, key, None)
    index.rest(3)
    with pytest.raises(ValueError, match="before its 1 children"):
        index.evict()
