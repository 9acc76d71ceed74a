"""Batched, chunked, paged and preempted answers equal a naive loop on a tiny random model."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_engine.model import Decoder
from slipstream_engine.request import Request, SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Limits, Scheduler
from tests.engine import local, tiny

_MAX_CONTEXT = 48


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return local.decoder(tiny.write(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def known() -> dict[Request, list[int]]:
    """Answers of the naive loop, kept between examples."""
    return {}


_sampling = st.sampled_from(
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.8, top_p=0.7, seed=-3),
        SamplingParams(temperature=1.5, top_k=5, seed=1 << 40),
    ]
)
_requests = st.builds(
    lambda start, length, count, sampling: (
        tuple((start * 37 + i * 13) % 384 for i in range(length)),
        count,
        sampling,
    ),
    st.integers(0, 5),
    st.integers(1, 30),
    st.integers(1, 12),
    _sampling,
)


@settings(max_examples=60)
@given(
    workload=st.lists(st.tuples(st.integers(0, 6), _requests), min_size=1, max_size=5),
    limits=st.builds(
        Limits,
        max_running_sequences=st.integers(1, 5),
        max_batch_tokens=st.sampled_from([1, 3, 8, 64]),
        page_tokens=st.sampled_from([1, 4, 16]),
        max_context=st.just(_MAX_CONTEXT),
    ),
    spare_pages=st.integers(0, 6),
)
def test_every_answer_equals_the_naive_loop_whatever_it_was_batched_with(
    model: Decoder,
    known: dict[Request, list[int]],
    workload: list[tuple[int, tuple[tuple[int, ...], int, SamplingParams]]],
    limits: Limits,
    spare_pages: int,
) -> None:
    num_pages = -(-_MAX_CONTEXT // limits.page_tokens) + spare_pages
    arrivals = [
        (at, local.request(str(index), prompt, count, sampling))
        for index, (at, (prompt, count, sampling)) in enumerate(workload)
    ]
    runner = Runner(model, local.pool(model, limits.page_tokens, num_pages))
    answers = local.drive(Scheduler(limits, num_pages), runner, arrivals)
    for _, one in arrivals:
        key = Request("", one.prompt, one.max_tokens, one.sampling, one.end_tokens)
        if key not in known:
            known[key] = local.naive(model, one, _MAX_CONTEXT)[0]
        assert answers[one.id] == known[key]


def test_preemption_happens_in_these_workloads_and_changes_no_token(model: Decoder) -> None:
    limits = local.limits(_MAX_CONTEXT, running=4, tokens=16, page_tokens=4)
    scheduler = Scheduler(limits, 12)
    runner = Runner(model, local.pool(model, 4, 12))
    requests = [local.request(str(i), range(i, i + 6), 24) for i in range(4)]
    answers = local.drive(scheduler, runner, [(0, one) for one in requests])
    assert scheduler.num_preemptions > 0
    for one in requests:
        assert answers[one.id] == local.naive(model, one, _MAX_CONTEXT)[0]


def test_greedy_answers_of_the_tiny_model_vary_so_that_equality_means_something(
    model: Decoder,
) -> None:
    answer = local.naive(model, local.request("x", range(8), 20), _MAX_CONTEXT)[0]
    assert len(set(answer)) > 5


def test_bfloat16_weights_give_nearly_the_same_logits(tmp_path: Path) -> None:
    from slipstream_weights import source

    opened = source.open_checkpoint(tiny.write(tmp_path))
    wide = local.decoder(tmp_path)
    narrow = Decoder(opened.checkpoint, opened.tensors(), torch.bfloat16)
    assert narrow.layers[0].qkv.dtype is torch.bfloat16
    tokens = list(range(20))
    from slipstream_engine.kvpool import KvPool
    from slipstream_engine.model import ModelInput
    from slipstream_kernels.reference import Span
    from slipstream_kvstore.layout import PageLayout, PoolLayout

    shape = (2, 2, 16)
    layout = PageLayout(
        20, (PoolLayout("k", "bfloat16", shape), PoolLayout("v", "bfloat16", shape))
    )
    slots = torch.arange(20)
    logits = narrow.forward(
        ModelInput(
            torch.tensor(tokens), slots, slots, [Span(0, 20, 20, slots)], torch.tensor([19])
        ),
        KvPool(layout, 1, torch.device("cpu")),
    )[0]
    expected = local.last_logits(wide, tokens)
    assert logits.dtype is torch.float32
    assert float((logits - expected).abs().max()) < 0.05 * float(expected.abs().max())
