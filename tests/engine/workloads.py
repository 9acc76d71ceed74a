"""Random workloads for a tiny model, and what they must be answered whatever is done to them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import strategies as st

from slipstream_engine.batch import Sampled
from slipstream_engine.guides.spec import Guide, GuideKind
from slipstream_engine.model import Decoder
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Limits, Scheduler
from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import Drafter, Key
from slipstream_engine.spec.edit import EditDrafter
from slipstream_engine.spec.lengths import CostTable
from slipstream_engine.spec.lookup import COMMON, LookupDrafter
from slipstream_engine.spec.speculation import Speculation
from slipstream_engine.spec.store import StoreDrafter, StoreLimits
from slipstream_engine.spec.suffix import SuffixDrafter
from slipstream_kernels import native
from tests.engine import drafters, guided, local, tiny
from tests.engine.local import GREEDY, Ranks

MAX_CONTEXT = 48
VOCABULARY = 384
# Splits that the tiny model (8 heads, 4 KV heads) allows: tensor ranks, stages.
SPLITS = ((2, 1), (4, 1), (1, 2), (2, 2))
SHAPE = tiny.config(num_attention_heads=8, num_key_value_heads=4, head_dim=16, num_hidden_layers=3)


_VOCABULARY = guided.vocabulary()


class Known:
    """Answers of the naive loop, kept between examples."""

    def __init__(self, model: Decoder, max_context: int = MAX_CONTEXT) -> None:
        self._model = model
        self._max_context = max_context
        self._answers: dict[tuple[Request, int], tuple[list[Sampled], FinishReason]] = {}

    def answer(self, one: Request, sample: int) -> list[int]:
        return [drawn.token for drawn in self.draws(one, sample)[0]]

    def draws(self, one: Request, sample: int) -> tuple[list[Sampled], FinishReason]:
        alike = replace(one, id="", priority=0, num_samples=1, prediction=(), is_predicted=False)
        key = (alike, sample)
        if key not in self._answers:
            self._answers[key] = local.naive_draws(self._model, one, self._max_context, sample)
        return self._answers[key]


@dataclass(frozen=True)
class Drafted:
    """By whom a workload's answers are drafted."""

    kind: drafters.Kind | Literal["all"]
    max_tokens: int
    seed: int
    # Seconds of a step of 1 and of 100 tokens; None: drafts are verified whole.
    cost_s: tuple[float, float] | None = None

    def speculation(self, known: Known, requests: Iterable[Request]) -> Speculation:
        cost = None
        if self.cost_s is not None:
            cost = CostTable(dict(zip((1, 100), self.cost_s, strict=True)))
        by_id = {one.id: one for one in requests}
        if self.kind == "all":
            store = StoreDrafter(StoreLimits(64, 2))
            every = (EditDrafter(), SuffixDrafter(20, 20), store, LookupDrafter(COMMON))
            drafter: Drafter = Chooser([Member(one) for one in every])
            return Speculation(drafter, self.max_tokens, cost, patience_steps=1)

        def answers(key: Key) -> list[int]:
            return known.answer(by_id[key[0]], key[1])

        drafter = drafters.Scripted(self.kind, answers, VOCABULARY, self.seed)
        return Speculation(drafter, self.max_tokens, cost, patience_steps=1)


_sampling = st.sampled_from(
    [
        GREEDY,
        GREEDY,
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.8, top_p=0.7, seed=-3),
        SamplingParams(temperature=1.5, top_k=5, min_p=0.02, seed=1 << 40),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4),
        SamplingParams(temperature=0.9, presence_penalty=0.5, logit_bias=((5, 3.0),), seed=2),
        SamplingParams(temperature=0.0, frequency_penalty=-2.0, num_top_logprobs=3),
        SamplingParams(temperature=1.0, frequency_penalty=2.0, seed=5, num_top_logprobs=0),
    ]
)


_guides = st.sampled_from(
    [
        *[None] * 4,
        Guide(GuideKind.REGEX, "[a-z]+( [a-z0-9]+)*"),
        Guide(GuideKind.CHOICE, '["a word", "another", "12345"]'),
        guided.schema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        Guide(GuideKind.REGEX, "(yes|no)*"),
    ]
)


@st.composite
def _arrival(draw: st.DrawFn, index: int) -> tuple[int, Request]:
    """Prompts of few families, so that many begin alike and some continue others."""
    start, length = draw(st.integers(0, 2)), draw(st.integers(1, 30))
    prompt = [(start * 37 + i * 13) % 384 for i in range(length)]
    request = local.request(
        str(index),
        prompt,
        draw(st.integers(1, 12)),
        draw(_sampling),
        end_tokens=draw(st.sampled_from([(), (), tuple(range(0, 384, 9))])),
        num_samples=draw(st.sampled_from([1, 1, 1, 3])),
        priority=draw(st.sampled_from([0, 0, 1])),
    )
    if (guide := draw(_guides)) is not None:
        request = replace(request, guide=guide, end_tokens=request.end_tokens | {guided.END})
    request = replace(request, min_tokens=draw(st.sampled_from([0, 0, min(4, request.max_tokens)])))
    return draw(st.integers(0, 8)), request


workloads = st.integers(1, 6).flatmap(lambda n: st.tuples(*(_arrival(i) for i in range(n))))
limits = st.builds(
    Limits,
    max_running_sequences=st.integers(1, 8),
    max_batch_tokens=st.sampled_from([1, 3, 8, 64]),
    page_tokens=st.sampled_from([1, 4, 16]),
    max_context=st.just(MAX_CONTEXT),
    prefix_cache=st.booleans(),
)
drafted = st.one_of(
    st.none(),
    st.builds(
        Drafted,
        kind=st.sampled_from([*drafters.KINDS, "all", "all"]),
        max_tokens=st.one_of(st.integers(0, 8), st.sampled_from([16, 64])),
        seed=st.integers(0, 99),
        # Free, as long as pays, and never worth it: then sequences rest.
        cost_s=st.sampled_from([None, None, (0.01, 0.01), (0.01, 0.1), (0.01, 1.0)]),
    ),
)
# Of log-probabilities. The kernels in C compute a row alike in any batch, torch's products do not.
ROUNDING = 1e-4
TOLERANCE = ROUNDING if native.best() is None else 0.0
preempted = st.sets(st.integers(0, 40), max_size=6)
Workload = tuple[tuple[int, Request], ...]


def compare(
    known: Known,
    runner: local.Runs,
    limits: Limits,
    num_pages: int,
    workload: Workload,
    preempted: set[int] | frozenset[int] = frozenset(),
    drafted: Drafted | Speculation | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Every token, log-probability and end is the naive loop's."""
    speculation = None
    if isinstance(drafted, Drafted) and drafted.kind == "all":
        # With something to draft from: most of the answer.
        workload = tuple((step, predicted(known, one, drafted.seed)) for step, one in workload)
    if isinstance(drafted, Drafted):
        speculation = drafted.speculation(known, [one for _, one in workload])
    elif drafted is not None:
        speculation = drafted
    guides = guided.matchers(_VOCABULARY)
    scheduler = Scheduler(limits, num_pages, speculation=speculation, guides=guides)

    def disturb(step: int) -> None:
        if step in preempted:
            scheduler.preempt_newest()

    told = local.drive_to_draws(scheduler, runner, workload, disturb)
    for _, one in workload:
        for sample in range(one.num_samples):
            progress = told[one.id, sample]
            expected, finish = known.draws(one, sample)
            drawn = [it.sampled for it in progress]
            assert [it.token for it in drawn] == [it.token for it in expected]
            assert [it.finish for it in progress] == [None] * (len(expected) - 1) + [finish]
            for it, other in zip(drawn, expected, strict=True):
                _check_logprobs(it, other, tolerance)
    assert guides.num_requests == 0
    assert not guides.take_failures()


def predicted(known: Known, one: Request, seed: int) -> Request:
    """The request with its answer as a prediction in which a token is another one."""
    answer = known.answer(one, 0)
    answer[seed % len(answer)] = seed
    return replace(one, prediction=tuple(answer), is_predicted=True)


def _check_logprobs(drawn: Sampled, expected: Sampled, tolerance: float) -> None:
    if tolerance == 0.0:
        assert drawn == expected
    assert drawn.logprob == pytest.approx(expected.logprob, abs=tolerance)
    assert [one.logprob for one in drawn.top] == pytest.approx(
        [one.logprob for one in expected.top], abs=tolerance
    )


def num_pages(limits: Limits, spare_pages: int) -> int:
    return -(-MAX_CONTEXT // limits.page_tokens) + spare_pages


@contextmanager
def running(
    model: Decoder, folder: Path, split: tuple[int, int], limits: Limits, num_pages: int
) -> Iterator[local.Runs]:
    """A model in one piece, or its ranks."""
    if split == (1, 1):
        yield Runner(model, local.pool(model, limits.page_tokens, num_pages))
    else:
        with ranks(folder, split).runner(limits.page_tokens, num_pages) as runner:
            yield runner


_made: dict[tuple[Path, tuple[int, int]], Ranks] = {}


def ranks(folder: Path, split: tuple[int, int]) -> Ranks:
    """Made once: the weights are the same in every example."""
    if (folder, split) not in _made:
        _made[folder, split] = Ranks(folder, *split)
    return _made[folder, split]
