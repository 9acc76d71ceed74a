"""Any workload, batched in any way, gives the answers of a naive loop, with every page in order."""

from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_engine.guides.spec import Guide, GuideKind
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.scheduler import Limits
from slipstream_engine.spec.draft import Key
from slipstream_engine.spec.speculation import Speculation
from slipstream_engine.spec.synthetic import Synthetic, SyntheticDrafter
from tests.engine import drafters, policy
from tests.engine.drafters import Scripted
from tests.engine.policy import Simulation

_MAX_CONTEXT = 40
# At depth full the profile asks for ten thousand.
_CASES = settings(max_examples=max(300, settings().max_examples))

_ROOTS = [b"", b"", b"", b"\1" * 32, b"\2" * 32]
_SAMPLING = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.5, seed=8, presence_penalty=0.5),
    policy.FRAGILE,
]
# Prompts are beginnings of two texts with a few other tokens: they share prefixes of any length.
_prompts = st.builds(
    lambda text, length, tail: (tuple((text * 5 + i * i) % 3 for i in range(length)) + tail)[:39],
    st.integers(0, 1),
    st.integers(0, 36),
    st.lists(st.integers(0, 2), max_size=3).map(tuple),
).filter(bool)
_GUIDES = [
    Guide(GuideKind.REGEX, "(ab|[c-f])*g?a"),
    Guide(GuideKind.REGEX, "[a-d]{3,9}", is_patient=True),
    Guide(GuideKind.REGEX, "(abc)*", begins_after=(1, 1)),
    Guide(GuideKind.CHOICE, '["abba", "abbacaddabra", "gagaga"]', begins_after=(3,), opening=2),
]
_requests = st.builds(
    Request,
    id=st.just(""),
    prompt=_prompts,
    max_tokens=st.integers(1, 30),
    sampling=st.sampled_from(_SAMPLING),
    end_tokens=st.frozensets(st.integers(0, policy.VOCABULARY - 1), max_size=2),
    min_tokens=st.sampled_from([0, 0, 3]),
    num_samples=st.sampled_from([1, 1, 1, 2, 3, 5]),
    priority=st.sampled_from([0, 0, 0, -1, 2]),
    root_key=st.sampled_from(_ROOTS),
    guide=st.sampled_from([None, None, None, *_GUIDES]),
)
_limits = st.builds(
    Limits,
    max_running_sequences=st.integers(1, 6),
    max_batch_tokens=st.one_of(st.integers(1, 9), st.integers(10, 64)),
    page_tokens=st.integers(1, 9),
    max_context=st.just(_MAX_CONTEXT),
    prefix_cache=st.booleans(),
)


@dataclass(frozen=True)
class Event:
    """What happens in a step: before it, or while its batch runs."""

    step: int
    kind: str
    number: int
    sample: int
    is_meanwhile: bool


_events = st.builds(
    Event,
    step=st.integers(0, 40),
    kind=st.sampled_from(["preempt", "preempt", "abort", "abort sample"]),
    number=st.integers(0, 9),
    sample=st.integers(0, 4),
    is_meanwhile=st.booleans(),
)


def _happen(simulation: Simulation, event: Event, requests: list[Request]) -> None:
    one = requests[event.number % len(requests)]
    match event.kind:
        case "preempt":
            simulation.scheduler.preempt_newest()
        case "abort":
            simulation.abort(one.id)
        case _:
            simulation.abort_sample(one.id, event.sample % one.num_samples)


@_CASES
@given(
    workload=st.lists(st.tuples(st.integers(0, 20), _requests), min_size=1, max_size=9),
    limits=_limits,
    spare_pages=st.integers(0, 30),
    events=st.lists(_events, max_size=12),
    kind=st.sampled_from([None, *drafters.KINDS]),
    max_draft_tokens=st.one_of(st.integers(0, 6), st.just(64)),
    seed=st.integers(0, 99),
)
@pytest.mark.slow
def test_every_answer_is_the_naive_loops_and_no_page_is_ever_in_the_wrong_place(
    workload: list[tuple[int, Request]],
    limits: Limits,
    spare_pages: int,
    events: list[Event],
    kind: drafters.Kind | None,
    max_draft_tokens: int,
    seed: int,
) -> None:
    num_pages = -(-_MAX_CONTEXT // limits.page_tokens) + spare_pages
    requests = [replace(one, id=str(number)) for number, (_, one) in enumerate(workload)]
    drafter = None if kind is None else _drafter(kind, requests, seed)
    speculation = None if drafter is None else Speculation(drafter, max_draft_tokens)
    simulation = Simulation(limits, num_pages, speculation)
    arrived: list[Request] = []
    for step in range(41):
        for one, (at, _) in zip(requests, workload, strict=True):
            if at == step:
                simulation.submit(one)
                arrived.append(one)
        now = [event for event in events if event.step == step and arrived]
        for event in now:
            if not event.is_meanwhile:
                _happen(simulation, event, arrived)

        def meanwhile(now: list[Event] = now) -> None:
            for event in now:
                if event.is_meanwhile:
                    _happen(simulation, event, arrived)

        simulation.step(meanwhile)
    simulation.run()
    simulation.check_answers(requests)
    simulation.check_empty()
    assert drafter is None or not drafter.outputs, "a sequence was never stopped"


def _drafter(kind: drafters.Kind, requests: list[Request], seed: int = 0) -> Scripted:
    known = {one.id: one for one in requests}

    @cache
    def answers(key: Key) -> list[int]:
        return policy.naive(known[key[0]], key[1], _MAX_CONTEXT)[0]

    return Scripted(kind, answers, policy.VOCABULARY, seed)


@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("kind", drafters.KINDS)
def test_a_step_brings_as_many_tokens_as_the_draft_has_of_the_answer(
    kind: drafters.Kind, page_tokens: int
) -> None:
    one = policy.request("a", policy.text(0, 9), 30, sampling=_SAMPLING[3])
    drafter = _drafter(kind, [one])
    speculation = Speculation(drafter, 8)
    limits = policy.limits(_MAX_CONTEXT, tokens=32, page_tokens=page_tokens)
    simulation = Simulation(limits, 60, speculation)
    simulation.submit(one)
    simulation.run()
    simulation.check_answers([one])
    outcomes = speculation.take_outcomes()
    num_steps = len(outcomes)
    num_accepted = sum(outcome.num_accepted for outcome in outcomes)
    assert all(outcome.num_accepted <= outcome.num_drafted <= 8 for outcome in outcomes)
    match kind:
        case "oracle":
            # 1 from the prompt; 9 a step; what is left has no room for a draft but its last token.
            assert (num_steps, num_accepted) == (4, 25)
        case "adversary":
            assert num_accepted == 0
        case "tree":
            assert simulation.store.num_moves > 0
            assert num_accepted > 5
        case "cutter" | "seldom":
            assert 0 < num_accepted < 29


@pytest.mark.parametrize("length", [1.0, 2.5, 6.0])
def test_acceptance_as_if_yields_the_length_that_was_asked_for(length: float) -> None:
    """For load tests: whatever the model says, and with every page in its place."""
    synthetic = Synthetic.of_length(length, seed=3)
    speculation = Speculation(SyntheticDrafter(synthetic), 8, synthetic=synthetic)
    simulation = Simulation(policy.limits(400, tokens=64), 400, speculation)
    simulation.submit(*(policy.request(str(it), policy.text(0, 9), 300) for it in range(4)))
    simulation.run()
    simulation.check_empty()
    assert all(len(answer) == 300 for answer in simulation.answers.values())
    outcomes = speculation.take_outcomes()
    # The last step of an answer may have no room for as many.
    tokens = sum(one.num_accepted + 1 for one in outcomes)
    assert tokens / len(outcomes) == pytest.approx(length, rel=0.1)
    assert {one.source for one in outcomes} == {"synthetic"}


def test_a_stop_inside_the_limit_ends_the_answer_and_nothing_follows_it() -> None:
    """Wherever in an accepted draft the end token and the limit stand."""
    whole = policy.naive(policy.request("a", policy.text(1, 7), 24), 0, _MAX_CONTEXT)[0]
    for end in range(policy.VOCABULARY):
        for limit in range(1, 24):
            one = policy.request("a", policy.text(1, 7), limit, end_tokens=[end])
            simulation = Simulation(
                policy.limits(_MAX_CONTEXT), 40, Speculation(_drafter("oracle", [one]), 16)
            )
            simulation.submit(one)
            simulation.run()
            simulation.check_answers([one])
            place = whole.index(end) + 1 if end in whole else 99
            assert len(simulation.answers["a", 0]) == min(limit, place)
            is_stopped = simulation.finished["a", 0] is FinishReason.STOP
            assert is_stopped == (place <= limit)


def test_an_end_token_is_first_drawn_at_exactly_the_least_number_of_tokens() -> None:
    for num_least in range(1, 20):
        one = policy.request(
            "a",
            policy.text(1, 7),
            24,
            end_tokens=range(policy.VOCABULARY - 1),
            min_tokens=num_least,
        )
        simulation = Simulation(
            policy.limits(_MAX_CONTEXT), 40, Speculation(_drafter("oracle", [one]), 16)
        )
        simulation.submit(one)
        simulation.run()
        simulation.check_answers([one])
        assert len(simulation.answers["a", 0]) > num_least


@pytest.mark.slow  # half a minute
@_CASES
@given(
    requests=st.lists(_requests, min_size=2, max_size=6),
    limits=_limits,
    spare_pages=st.integers(0, 10),
)
def test_the_order_of_arrival_and_the_cache_change_no_token(
    requests: list[Request], limits: Limits, spare_pages: int
) -> None:
    num_pages = -(-_MAX_CONTEXT // limits.page_tokens) + spare_pages
    # A guide that finds no token to end with fails in one sample, and takes the others with it;
    # so does a draw that fails.
    solid = [one for one in requests if one.sampling is not policy.FRAGILE]
    named = [
        replace(one, id=str(number), guide=one.guide if one.end_tokens else None)
        for number, one in enumerate(solid)
    ]
    told = []
    for order in (named, named[::-1]):
        for prefix_cache in (True, False):
            simulation = Simulation(replace(limits, prefix_cache=prefix_cache), num_pages)
            # Twice, so that the second time finds what the first one left in the cache.
            for run in ("first", "second"):
                simulation.submit(*(replace(one, id=f"{run} {one.id}") for one in order))
                simulation.run()
            told.append(simulation.answers)
    assert all(answers == told[0] for answers in told)


@pytest.mark.parametrize("kind", ["abort", "abort sample", "preempt"])
@pytest.mark.parametrize("is_meanwhile", [False, True], ids=["between steps", "in a step"])
def test_whatever_leaves_at_any_moment_the_others_go_on_and_no_page_is_lost(
    kind: str, is_meanwhile: bool
) -> None:
    """The smallest pool that holds a context; prompts that share, samples that part."""
    requests = [
        policy.request("a", policy.text(0, 11), 6, sampling=_SAMPLING[2], num_samples=3),
        policy.request("b", policy.text(0, 17), 6, priority=1),
        policy.request("c", policy.text(0, 11), 6, num_samples=2),
    ]
    for step in range(24):
        for number in range(3):
            simulation = Simulation(policy.limits(_MAX_CONTEXT, running=4, tokens=7), 10)
            simulation.submit(*requests)
            event = Event(step, kind, number, 1, is_meanwhile)
            for _ in range(step):
                simulation.step()
            if is_meanwhile:
                simulation.step(partial(_happen, simulation, event, requests))
            else:
                _happen(simulation, event, requests)
            simulation.run()
            simulation.check_answers(requests)
            simulation.check_empty()
