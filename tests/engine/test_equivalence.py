"""Batched, cached, cut, preempted or split, a request gets the tokens of a naive loop."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.device import Cpu
from slipstream_engine.model import Decoder
from slipstream_engine.recorded import RecordedDecode
from slipstream_engine.request import Request, SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Limits, Scheduler
from tests.depth import cases
from tests.engine import local, tiny
from tests.engine.local import GREEDY, Ranks

pytestmark = pytest.mark.slow  # minutes on a busy machine

_MAX_CONTEXT = 48
# Splits that the tiny model (8 heads, 4 KV heads) allows: tensor ranks, stages.
_SPLITS = ((2, 1), (4, 1), (1, 2), (2, 2))
_SHAPE = tiny.config(num_attention_heads=8, num_key_value_heads=4, head_dim=16, num_hidden_layers=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny"), _SHAPE)


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return local.decoder(folder)


@pytest.fixture(scope="module")
def known(model: Decoder) -> "Known":
    return Known(model)


class Known:
    """Answers of the naive loop, kept between examples."""

    def __init__(self, model: Decoder) -> None:
        self._model = model
        self._answers: dict[tuple[Request, int], list[int]] = {}

    def answer(self, one: Request, sample: int) -> list[int]:
        key = (replace(one, id="", priority=0, num_samples=1), sample)
        if key not in self._answers:
            self._answers[key] = local.naive(self._model, one, _MAX_CONTEXT, sample)[0]
        return self._answers[key]


_sampling = st.sampled_from(
    [
        GREEDY,
        GREEDY,
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.8, top_p=0.7, seed=-3),
        SamplingParams(temperature=1.5, top_k=5, min_p=0.02, seed=1 << 40),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4),
        SamplingParams(temperature=0.9, presence_penalty=0.5, logit_bias=((5, 3.0),), seed=2),
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
        num_samples=draw(st.sampled_from([1, 1, 1, 3])),
        priority=draw(st.sampled_from([0, 0, 1])),
    )
    return draw(st.integers(0, 8)), request


_workloads = st.integers(1, 6).flatmap(lambda n: st.tuples(*(_arrival(i) for i in range(n))))
_limits = st.builds(
    Limits,
    max_running_sequences=st.integers(1, 8),
    max_batch_tokens=st.sampled_from([1, 3, 8, 64]),
    page_tokens=st.sampled_from([1, 4, 16]),
    max_context=st.just(_MAX_CONTEXT),
    prefix_cache=st.booleans(),
)
_preempted = st.sets(st.integers(0, 40), max_size=6)
_Workload = tuple[tuple[int, Request], ...]


def _compare(
    known: Known,
    runner: local.Runs,
    limits: Limits,
    num_pages: int,
    workload: _Workload,
    preempted: set[int],
) -> None:
    scheduler = Scheduler(limits, num_pages)

    def disturb(step: int) -> None:
        if step in preempted:
            scheduler.preempt_newest()

    answers = local.drive(scheduler, runner, workload, disturb)
    for _, one in workload:
        for sample in range(one.num_samples):
            assert answers[one.id, sample] == known.answer(one, sample)


def _num_pages(limits: Limits, spare_pages: int) -> int:
    return -(-_MAX_CONTEXT // limits.page_tokens) + spare_pages


@cases(400)
@given(workload=_workloads, limits=_limits, spare_pages=st.integers(0, 12), preempted=_preempted)
def test_every_answer_equals_the_naive_loop(
    model: Decoder,
    known: Known,
    workload: _Workload,
    limits: Limits,
    spare_pages: int,
    preempted: set[int],
) -> None:
    num_pages = _num_pages(limits, spare_pages)
    runner = Runner(model, local.pool(model, limits.page_tokens, num_pages))
    _compare(known, runner, limits, num_pages, workload, preempted)


@pytest.mark.parametrize("split", _SPLITS, ids=str)
@cases(25)
@given(workload=_workloads, limits=_limits, preempted=_preempted)
def test_every_answer_of_a_split_model_equals_the_naive_loop(
    folder: Path,
    known: Known,
    split: tuple[int, int],
    workload: _Workload,
    limits: Limits,
    preempted: set[int],
) -> None:
    num_pages = _num_pages(limits, 3)
    with _ranks(folder, split).runner(limits.page_tokens, num_pages) as runner:
        _compare(known, runner, limits, num_pages, workload, preempted)


_made: dict[tuple[Path, tuple[int, int]], Ranks] = {}


def _ranks(folder: Path, split: tuple[int, int]) -> Ranks:
    """Made once: the weights are the same in every example."""
    if (folder, split) not in _made:
        _made[folder, split] = Ranks(folder, *split)
    return _made[folder, split]


@cases(50)
@given(workload=_workloads, limits=_limits, preempted=_preempted)
def test_every_answer_of_recorded_steps_equals_the_naive_loop(
    model: Decoder, known: Known, workload: _Workload, limits: Limits, preempted: set[int]
) -> None:
    num_pages = _num_pages(limits, 3)
    pool = local.pool(model, limits.page_tokens, num_pages)
    recorded = RecordedDecode(
        model, pool, Cpu(), max_sequences=4, max_pages=-(-_MAX_CONTEXT // limits.page_tokens)
    )
    runner = Runner(model, pool, recorded=recorded)
    _compare(known, runner, limits, num_pages, workload, preempted)


def test_preemption_happens_in_such_workloads_and_changes_no_token(
    model: Decoder, known: Known
) -> None:
    limits = local.limits(_MAX_CONTEXT, running=4, tokens=16, page_tokens=4)
    scheduler = Scheduler(limits, 12)
    runner = Runner(model, local.pool(model, 4, 12))
    requests = [local.request(str(i), range(i, i + 6), 24) for i in range(4)]
    answers = local.drive(scheduler, runner, [(0, one) for one in requests])
    assert scheduler.num_preemptions > 0
    for one in requests:
        assert answers[one.id, 0] == known.answer(one, 0)


def test_a_prefix_is_found_again_and_changes_no_token(model: Decoder, known: Known) -> None:
    limits = local.limits(_MAX_CONTEXT, page_tokens=4)
    scheduler = Scheduler(limits, 24)
    runner = Runner(model, local.pool(model, 4, 24))
    one = local.request("first", range(30), 6)
    two = local.request("second", [*range(29), 7, 7], 6)
    first = local.drive(scheduler, runner, [(0, one)])
    second = local.drive(scheduler, runner, [(0, two)])
    assert scheduler.load().num_prefix_hits == 28
    assert first["first", 0] == known.answer(one, 0)
    assert second["second", 0] == known.answer(two, 0)


def test_answers_of_the_tiny_model_vary_so_that_equality_means_something(
    model: Decoder, known: Known
) -> None:
    greedy = known.answer(local.request("x", range(8), 20), 0)
    assert len(set(greedy)) > 5
    seeded = local.request("x", range(8), 20, SamplingParams(temperature=1.0, seed=7))
    answers = [tuple(known.answer(seeded, sample)) for sample in range(3)]
    assert len(set(answers)) == 3


def test_bfloat16_weights_give_nearly_the_same_logits(folder: Path, model: Decoder) -> None:
    narrow = local.decoder(folder, dtype=torch.bfloat16)
    tokens = list(range(20))
    (logits,) = local.all_logits(narrow, tokens, [19], "bfloat16")
    expected = local.last_logits(model, tokens)
    assert logits.dtype is torch.float32
    assert float((logits - expected).abs().max()) < 0.05 * float(expected.abs().max())
