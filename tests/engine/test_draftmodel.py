"""A small model drafts: whatever it says and keeps, answers are the target's."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from slipstream_api.config import ConfigError, EngineConfig
from slipstream_engine import loading
from slipstream_engine.batch import Batch, Sampled
from slipstream_engine.draftmodel import ModelDrafter
from slipstream_engine.guides.spec import Guide, GuideKind
from slipstream_engine.messages import Submit
from slipstream_engine.model import Decoder
from slipstream_engine.request import SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Limits, Scheduler
from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import Draft, Key, Subject
from slipstream_engine.spec.speculation import Speculation
from slipstream_engine.split import Split
from tests.depth import cases
from tests.engine import guided, local, served, tiny, workloads
from tests.engine.workloads import MAX_CONTEXT, SHAPE, Known, Workload

_KEY: Key = ("a", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("tiny"), SHAPE)


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return local.decoder(folder)


@pytest.fixture(scope="module")
def known(model: Decoder) -> Known:
    return Known(model)


def _drafter(
    model: Decoder, num_pages: int = 40, max_context: int = MAX_CONTEXT, *, is_drawing: bool = False
) -> ModelDrafter:
    runner = Runner(model, local.pool(model, 4, num_pages))
    return ModelDrafter(runner, num_pages, 4, max_context, 16, is_drawing=is_drawing)


def _continued(model: Decoder, tokens: Sequence[int], count: int) -> tuple[int, ...]:
    one = local.request("x", tokens, count)
    return tuple(local.naive(model, one, MAX_CONTEXT + 9)[0])


def test_it_drafts_what_it_would_say_after_any_output(model: Decoder) -> None:
    """What it keeps of its own drafts never shows: accepted in part, wholly, or not at all."""
    drafter = _drafter(model)
    text = list(range(20))
    drafter.start(Subject(_KEY, tuple(text)))
    for step in range(8):
        (draft,) = drafter.propose([(_KEY, 3)])
        assert draft.tokens == _continued(model, text, 3)
        assert all(0 < chance <= 1 for chance in draft.accept)
        told = [*draft.tokens[: step % 4], (step * 31) % 384][: 1 + step % 4]
        drafter.commit(_KEY, told)
        text += told
    drafter.stop(_KEY, finished=True)
    assert drafter.num_pages_used == 0


def test_proposing_again_gives_the_same(model: Decoder) -> None:
    drafter = _drafter(model)
    other: Key = ("b", 0)
    drafter.start(Subject(_KEY, tuple(range(9))))
    drafter.start(Subject(other, tuple(range(5, 12))))
    both = drafter.propose([(_KEY, 4), (other, 2)])
    again = drafter.propose([(other, 2), (_KEY, 4)])[::-1]
    assert [draft.tokens for draft in again] == [draft.tokens for draft in both]
    assert [len(draft.tokens) for draft in both] == [4, 2]
    assert drafter.propose([(_KEY, 0)]) == [Draft()]


def test_where_its_context_or_its_pages_end_it_stops_to_draft(model: Decoder) -> None:
    """vllm-project/vllm#57941: a draft model's table was read past its end."""
    short = _drafter(model, max_context=12)
    short.start(Subject(_KEY, tuple(range(10))))
    assert len(short.propose([(_KEY, 8)])[0].tokens) == 2
    short.commit(_KEY, [1, 2, 3])
    assert short.propose([(_KEY, 8)]) == [Draft()]
    full = _drafter(model, num_pages=3)
    full.start(Subject(_KEY, tuple(range(30))))
    assert full.propose([(_KEY, 4)]) == [Draft()]
    full.commit(_KEY, [1])
    full.stop(_KEY, finished=False)
    assert full.num_pages_used == 0


@pytest.mark.slow
@cases(40, full=1000)
@given(
    workload=workloads.workloads,
    limits=workloads.limits,
    preempted=workloads.preempted,
    num_draft_pages=st.integers(1, 60),
    max_draft_tokens=st.integers(1, 6),
)
def test_every_answer_equals_the_naive_loop(
    model: Decoder,
    known: Known,
    workload: Workload,
    limits: Limits,
    preempted: set[int],
    num_draft_pages: int,
    max_draft_tokens: int,
) -> None:
    num_pages = workloads.num_pages(limits, 6)
    runner = Runner(model, local.pool(model, limits.page_tokens, num_pages))
    drafter = _drafter(model, num_draft_pages)
    speculation = Speculation(Chooser([Member(drafter)]), max_draft_tokens)
    workloads.compare(known, runner, limits, num_pages, workload, preempted, speculation)
    assert drafter.num_pages_used == 0


def test_the_target_as_its_own_draft_is_accepted_whole(model: Decoder, known: Known) -> None:
    one = local.request("a", range(12), 21)
    speculation = Speculation(Chooser([Member(_drafter(model))]), 4)
    scheduler = Scheduler(local.limits(MAX_CONTEXT), 40, speculation=speculation)
    runner = Runner(model, local.pool(model, 16, 40))
    assert local.drive(scheduler, runner, [(0, one)])["a", 0] == known.answer(one, 0)
    outcomes = speculation.take_outcomes()
    assert [one.num_accepted for one in outcomes] == [4, 4, 4, 4]


def test_drawn_drafts_carry_what_they_were_drawn_from(model: Decoder) -> None:
    """huggingface/transformers#47932: q was not the distribution that was drawn from."""
    drafter = _drafter(model, is_drawing=True)
    drafter.start(Subject(_KEY, tuple(range(12)), temperature=1.5, seed=3))
    (draft,) = drafter.propose([(_KEY, 5)])
    logits = local.last_logits(model, range(12))
    first = draft.proposals[0]
    values, tokens = logits.topk(20)
    assert first.tokens == tuple(tokens.tolist())
    assert first.probs == pytest.approx(torch.softmax(values.double() / 1.5, -1).tolist())
    assert len(draft.proposals) == len(draft.tokens) == 5
    assert all(
        token in one.tokens and sum(one.probs) == pytest.approx(1)
        for token, one in zip(draft.tokens, draft.proposals, strict=True)
    )
    assert drafter.propose([(_KEY, 5)])[0].tokens == draft.tokens


def test_drawn_drafts_of_the_target_itself_are_accepted(model: Decoder) -> None:
    """p is q but for the cut at twenty tokens: nearly all are kept."""
    sampling = SamplingParams(temperature=0.7, top_k=20, seed=11)
    one = local.request("a", range(12), 30, sampling)
    drafter = _drafter(model, is_drawing=True)
    speculation = Speculation(Chooser([Member(drafter)]), 4)
    scheduler = Scheduler(local.limits(MAX_CONTEXT), 40, speculation=speculation)
    runner = Runner(model, local.pool(model, 16, 40))
    local.drive(scheduler, runner, [(0, one)])
    outcomes = speculation.take_outcomes()
    drafted = sum(one.num_drafted for one in outcomes)
    assert sum(one.num_accepted for one in outcomes) > 0.9 * drafted > 10


def test_under_a_guide_nothing_is_drawn_for_a_draft(model: Decoder) -> None:
    """It is cut where its tokens do not fit, and what was drawn may not be cut by what it is."""
    sampling = SamplingParams(temperature=1.5, seed=3)
    one = local.request("a", range(12), 12, sampling, end_tokens=[guided.END])
    form = replace(one, id="b", guide=Guide(GuideKind.REGEX, r"(.|\n)*"))
    speculation = Speculation(Chooser([Member(_drafter(model, is_drawing=True))]), 4)
    guides = guided.matchers()
    scheduler = Scheduler(local.limits(MAX_CONTEXT), 40, speculation=speculation, guides=guides)
    drawn: Counter[bool] = Counter()
    runner = Runner(model, local.pool(model, 16, 40))

    class Looking:
        def run(self, batch: Batch) -> list[Sampled]:
            for chunk in batch.chunks:
                for draw in chunk.draws:
                    drawn[bool(draw.allowed)] += draw.proposal is not None
            return runner.run(batch)

    local.drive(scheduler, Looking(), [(0, one), (0, form)])
    assert drawn[False] > 0
    assert drawn[True] == 0


def test_a_tiny_temperature_drafts_the_likeliest_tokens(model: Decoder) -> None:
    drafter = _drafter(model, is_drawing=True)
    drafter.start(Subject(_KEY, tuple(range(12)), temperature=5e-324, seed=3))
    (draft,) = drafter.propose([(_KEY, 3)])
    assert draft.tokens == _continued(model, range(12), 3)
    assert draft.accept == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("is_drawing", [False, True])
def test_a_draft_model_whose_logits_are_no_numbers_drafts_nothing(
    model: Decoder, *, is_drawing: bool
) -> None:
    """Drawn from no numbers, a token that was not accepted was replaced by any at all."""

    class Broken:
        def logits(self, batch: Batch) -> torch.Tensor:
            return torch.full((sum(len(one.draws) for one in batch.chunks), 384), math.nan)

    drafter = ModelDrafter(Broken(), 40, 4, MAX_CONTEXT, 16, is_drawing=is_drawing)
    chooser = Chooser([Member(drafter)])
    chooser.start(Subject(_KEY, tuple(range(12)), temperature=1.0, seed=3))
    assert chooser.propose([(_KEY, 5)]) == [Draft()]
    assert chooser.num_failures == {"model": 1}


def _config(folder: Path, path: Path, **speculator: object) -> EngineConfig:
    document = served.config(
        folder, speculator={"draft": {"path": str(path)}, "adaptive": False, **speculator}
    )
    return EngineConfig.model_validate(document)


def test_a_configuration_names_the_draft_model(folder: Path) -> None:
    part = loading.load(_config(folder, folder, method="model", maxDraftTokens=3), Split(), "")
    assert part.draft_model is not None
    # A model that is as dear as the target is rightly never asked: let it cost nothing.
    part = replace(part, draft_model=replace(part.draft_model, cost=0.0))
    loop = part.loop(part.runner, guided.matchers())
    loop.take(Submit(local.request("a", range(9), 9)))
    sources = set()
    num_steps = 0
    while not loop.is_idle:
        step = loop.step()
        num_steps += 1
        sources |= {one.source for one in step.outcomes}
    assert sources == {"model"}
    assert num_steps < 6


def test_a_draft_model_with_other_tokens_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tiny.write(tmp_path, SHAPE)
    path = other / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match="tokens differ") as refused:
        loading.load(_config(folder, other), Split(), "")
    assert refused.value.field == "speculator.draft.path"


def test_pages_of_a_draft_model_that_hold_no_context_are_refused_by_its_own_field(
    folder: Path,
) -> None:
    draft = {"path": str(folder), "kvBytes": 9}
    with pytest.raises(ConfigError, match="one context") as refused:
        loading.load(_config(folder, folder, draft=draft), Split(), "")
    assert refused.value.field == "speculator.draft.kvBytes"


@pytest.mark.parametrize("adaptive", [True, False])
def test_steps_are_measured_only_where_something_depends_on_what_they_cost(
    folder: Path, *, adaptive: bool
) -> None:
    config = EngineConfig.model_validate(served.config(folder, speculator={"adaptive": adaptive}))
    part = loading.load(config, Split(), "")
    asked: list[Batch] = []

    class Counting:
        def run(self, batch: Batch) -> list[Sampled]:
            asked.append(batch)
            return part.runner.run(batch)

    part.loop(Counting(), guided.matchers())
    assert bool(asked) is adaptive


def test_a_draft_model_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        loading.load(_config(folder, tmp_path / "missing"), Split(), "")
    assert refused.value.field == "speculator.draft.path"


def test_a_draft_model_with_weights_that_are_no_numbers_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    other = tiny.write(tmp_path, SHAPE)
    tensors = load_file(other / "model.safetensors")
    tensors["lm_head.weight"][7] = np.inf
    save_file(tensors, other / "model.safetensors")
    with pytest.raises(ConfigError, match=r"NaN or infinite.*lm_head") as refused:
        loading.load(_config(folder, other), Split(), "")
    assert refused.value.field == "speculator.draft.path"
