"""Batched, cached, cut, preempted or split, a request gets the tokens of a naive loop."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream_engine.device import Cpu
from slipstream_engine.guides.spec import Guide, GuideKind
from slipstream_engine.model import Decoder
from slipstream_engine.recorded import RecordedDecode
from slipstream_engine.request import SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Limits, Scheduler
from tests.depth import cases
from tests.engine import drafters, guided, local, tiny, workloads
from tests.engine.workloads import MAX_CONTEXT, SHAPE, SPLITS, Drafted, Known, Workload

pytestmark = pytest.mark.slow  # minutes on a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny"), SHAPE)


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return local.decoder(folder)


@pytest.fixture(scope="module")
def known(model: Decoder) -> Known:
    return Known(model)


@cases(400, full=10_000)
@given(
    workload=workloads.workloads,
    limits=workloads.limits,
    spare_pages=st.integers(0, 12),
    preempted=workloads.preempted,
    drafted=workloads.drafted,
)
def test_every_answer_equals_the_naive_loop(
    model: Decoder,
    known: Known,
    workload: Workload,
    limits: Limits,
    spare_pages: int,
    preempted: set[int],
    drafted: Drafted | None,
) -> None:
    num_pages = workloads.num_pages(limits, spare_pages)
    runner = Runner(model, local.pool(model, limits.page_tokens, num_pages))
    workloads.compare(known, runner, limits, num_pages, workload, preempted, drafted)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@cases(25, full=250)
@given(
    workload=workloads.workloads,
    limits=workloads.limits,
    preempted=workloads.preempted,
    drafted=workloads.drafted,
)
def test_every_answer_of_a_split_model_equals_the_naive_loop(
    folder: Path,
    known: Known,
    split: tuple[int, int],
    workload: Workload,
    limits: Limits,
    preempted: set[int],
    drafted: Drafted | None,
) -> None:
    num_pages = workloads.num_pages(limits, 3)
    # Sums of several ranks are sums in another order.
    tolerance = workloads.ROUNDING if split[0] > 1 else workloads.TOLERANCE
    with workloads.ranks(folder, split).runner(limits.page_tokens, num_pages) as runner:
        workloads.compare(known, runner, limits, num_pages, workload, preempted, drafted, tolerance)


@cases(50, full=500)
@given(
    workload=workloads.workloads,
    limits=workloads.limits,
    preempted=workloads.preempted,
    drafted=workloads.drafted,
)
def test_every_answer_of_recorded_steps_equals_the_naive_loop(
    model: Decoder,
    known: Known,
    workload: Workload,
    limits: Limits,
    preempted: set[int],
    drafted: Drafted | None,
) -> None:
    num_pages = workloads.num_pages(limits, 3)
    pool = local.pool(model, limits.page_tokens, num_pages)
    recorded = RecordedDecode(
        model, pool, Cpu(), max_sequences=4, max_pages=-(-MAX_CONTEXT // limits.page_tokens)
    )
    runner = Runner(model, pool, recorded=recorded)
    # What is recorded attends by torch.
    tolerance = workloads.ROUNDING
    workloads.compare(known, runner, limits, num_pages, workload, preempted, drafted, tolerance)


@pytest.mark.parametrize("split", [(1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize("kind", [*drafters.KINDS, "all"])
def test_drafts_of_any_length_change_no_token(
    model: Decoder, folder: Path, kind: Literal["all"], split: tuple[int, int]
) -> None:
    """Answers that are long enough for the longest drafts, one of them with everything on it."""
    context = 128
    known = Known(model, context)
    limits = local.limits(context, tokens=150, page_tokens=4)
    whole = SamplingParams(temperature=0.8, frequency_penalty=0.5, seed=4, num_top_logprobs=2)
    requests = [
        local.request("a", range(9), 90),
        local.request("b", range(5, 20), 80, whole, num_samples=2),
        replace(
            local.request("c", range(30), 90, end_tokens=[guided.END]),
            guide=Guide(GuideKind.REGEX, "[a-z]+( [a-z0-9]+)*"),
        ),
    ]
    workload = tuple(enumerate(requests))
    longest = 0
    for max_tokens in (17, 33, 64):
        predicted = [workloads.predicted(known, one, 70) for one in requests]
        speculation = Drafted(kind, max_tokens, 5).speculation(known, predicted)
        told = workload if kind != "all" else tuple(enumerate(predicted))
        with workloads.running(model, folder, split, limits, 150) as runner:
            workloads.compare(
                known, runner, limits, 150, told, {4}, speculation, workloads.ROUNDING
            )
        outcomes = speculation.take_outcomes()
        longest = max(one.num_drafted for one in outcomes)
        if kind in ("oracle", "all"):
            assert max(one.num_accepted for one in outcomes) >= max_tokens - 1
    # What cuts at random seldom leaves all of it.
    assert longest == 64 if kind in ("oracle", "adversary", "tree", "wild tree", "all") else 32


def test_preemption_happens_in_such_workloads_and_changes_no_token(
    model: Decoder, known: Known
) -> None:
    limits = local.limits(MAX_CONTEXT, running=4, tokens=16, page_tokens=4)
    scheduler = Scheduler(limits, 12)
    runner = Runner(model, local.pool(model, 4, 12))
    requests = [local.request(str(i), range(i, i + 6), 24) for i in range(4)]
    answers = local.drive(scheduler, runner, [(0, one) for one in requests])
    assert scheduler.num_preemptions > 0
    for one in requests:
        assert answers[one.id, 0] == known.answer(one, 0)


def test_a_prefix_is_found_again_and_changes_no_token(model: Decoder, known: Known) -> None:
    limits = local.limits(MAX_CONTEXT, page_tokens=4)
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
