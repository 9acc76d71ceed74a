"""Public bug reports about speculation, each as what must hold: with any drafter as without one.

Those that are about one part alone stand beside it: stop strings in
`conformance/test_predictions.py`, ends and limits in `test_policy.py`, features in
`test_features.py`, forms in `test_guides.py`, lengths in `test_lengths.py`, distributions in
`test_rejection.py`.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slipstream_engine.guides.spec import Guide, GuideKind
from slipstream_engine.model import Decoder
from slipstream_engine.request import Request, SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Scheduler
from tests.engine import drafters, guided, local, tiny, workloads
from tests.engine.workloads import MAX_CONTEXT, SHAPE, Drafted, Known

pytestmark = pytest.mark.slow  # half a minute on a busy machine

_KINDS = (*drafters.KINDS, "all")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return local.decoder(tiny.write(_folder(tmp_path_factory), SHAPE))


def _folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("tiny")


@pytest.fixture(scope="module")
def known(model: Decoder) -> Known:
    return Known(model)


def _check(
    model: Decoder,
    known: Known,
    requests: list[Request],
    kind: str,
    max_tokens: int = 8,
    *,
    preempted: set[int] | None = None,
    chunk_tokens: int = 64,
) -> None:
    limits = local.limits(MAX_CONTEXT, running=6, tokens=chunk_tokens, page_tokens=4)
    runner = Runner(model, local.pool(model, 4, 60))
    workload = tuple((number, one) for number, one in enumerate(requests))
    drafted = Drafted(kind, max_tokens, seed=3)  # type: ignore[arg-type]
    workloads.compare(known, runner, limits, 60, workload, preempted or set(), drafted)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("penalty", [-2.0, 2.0])
def test_penalties_count_every_drafted_token(
    model: Decoder, known: Known, kind: str, penalty: float
) -> None:
    """vllm#18902, sglang#33643, sglang#28180: a step that brings many tokens counted the last."""
    for params in (
        SamplingParams(temperature=0.0, frequency_penalty=penalty),
        SamplingParams(temperature=0.0, presence_penalty=penalty),
        SamplingParams(temperature=0.0, repetition_penalty=1.0 + penalty / 4),
        SamplingParams(temperature=1.0, seed=4, frequency_penalty=penalty),
    ):
        one = local.request("a", [7, 8, 9] * 4, 30, params)
        _check(model, known, [one], kind)


@pytest.mark.parametrize("kind", _KINDS)
def test_an_end_token_is_first_drawn_when_the_answer_is_long_enough(
    model: Decoder, known: Known, kind: str
) -> None:
    """sglang#33643: min_new_tokens counted steps."""
    ends = range(0, 384, 2)
    for num_least in (0, 1, 7, 12):
        one = replace(local.request("a", range(9), 30, end_tokens=ends), min_tokens=num_least)
        _check(model, known, [one], kind)


@pytest.mark.parametrize("kind", _KINDS)
def test_an_end_token_or_the_limit_inside_a_draft_ends_the_answer_there(
    model: Decoder, known: Known, kind: str
) -> None:
    """sglang#31599, transformers#47912: the end in an accepted draft was passed over."""
    whole = known.answer(local.request("a", range(9), 20), 0)
    for place in range(1, 17, 3):
        for limit in (place, place + 1, place + 2, 20):
            one = local.request("a", range(9), limit, end_tokens=[whole[place]])
            _check(model, known, [one], kind, 16)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("num_top", [0, 3])
def test_log_probabilities_are_the_models_for_accepted_tokens_too(
    model: Decoder, known: Known, kind: str, num_top: int
) -> None:
    """llama.cpp#27972, sglang#10660: 0.0 for every token with a draft, or missing."""
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=6, num_top_logprobs=num_top)
        _check(model, known, [local.request("a", range(9), 25, params)], kind)


@pytest.mark.parametrize("kind", ["seldom", "cutter"])
def test_a_step_without_a_draft_after_one_with_a_draft_goes_on_from_what_was_accepted(
    model: Decoder, known: Known, kind: str
) -> None:
    """vllm#39273: the step after read a state that was not the accepted one."""
    for start in range(6):
        _check(model, known, [local.request("a", range(start, start + 9), 30)], kind)


@pytest.mark.parametrize("kind", ["adversary", "wild tree"])
def test_what_was_not_accepted_leaves_nothing_behind(
    model: Decoder, known: Known, kind: str
) -> None:
    """llama.cpp#20075: rejected tokens stayed in the cache, and other requests found them."""
    one = local.request("a", range(20), 20)
    again = local.request("b", [*range(20), *known.answer(one, 0)[:9]], 12)
    _check(model, known, [one, again, replace(one, id="c")], kind)


@pytest.mark.parametrize("kind", _KINDS)
def test_seeds_give_the_same_alone_and_beside_others(
    model: Decoder, known: Known, kind: str
) -> None:
    """vllm#6038, vllm#13196, vllm#9441: seeds ignored, or gibberish beside other seeds."""
    requests = [
        local.request(
            str(number),
            range(number, number + 8),
            16,
            SamplingParams(temperature=0.0 if number % 3 == 2 else 0.9, seed=number),
            num_samples=3,
        )
        for number in range(4)
    ]
    _check(model, known, requests, kind)


@pytest.mark.parametrize("kind", _KINDS)
def test_preemption_at_any_step_takes_no_result_of_another_life(
    model: Decoder, known: Known, kind: str
) -> None:
    """vllm#41190: the result of a step in flight reached the request that was reset."""
    requests = [local.request(str(number), range(number, number + 7), 14) for number in range(3)]
    for step in range(1, 8):
        _check(model, known, requests, kind, preempted={step, step + 1})


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("end", [(guided.END,), (guided.END, 40)])
def test_a_form_holds_whatever_illegal_tokens_are_drafted(
    model: Decoder, known: Known, kind: str, end: tuple[int, ...]
) -> None:
    """vllm#53777, vllm#44006, sglang#9187: drafts advanced the matcher, past the end too."""
    guides = [
        guided.schema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        Guide(GuideKind.CHOICE, '["one thing", "another", "one thing more"]'),
        Guide(GuideKind.REGEX, "(ab|cd)*e?"),
    ]
    for number, guide in enumerate(guides):
        one = local.request(str(number), range(9), 24, end_tokens=end)
        seeded = replace(one, id="s", sampling=SamplingParams(temperature=1.2, seed=number))
        _check(model, known, [replace(it, guide=guide) for it in (one, seeded)], kind)


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("chunk_tokens", [1, 3, 64])
def test_no_proposal_changes_an_answer_however_long_it_may_be(
    model: Decoder, known: Known, kind: str, chunk_tokens: int
) -> None:
    """vllm#41758, vllm#40875: called artefacts; n-grams changed greedy answers."""
    for max_tokens in (0, 1, 5, 64):
        requests = [local.request("a", [5, 6, 7] * 5, 20), local.request("b", range(11), 20)]
        _check(model, known, requests, kind, max_tokens, chunk_tokens=chunk_tokens)


def test_drafts_are_accepted_here_so_that_equality_means_something(
    model: Decoder, known: Known
) -> None:
    one = local.request("a", range(9), 30)
    accepted = {}
    for kind in _KINDS:
        drafted = Drafted(kind, 8, seed=3)  # type: ignore[arg-type]
        predicted = workloads.predicted(known, one, 3)
        speculation = drafted.speculation(known, [predicted])
        limits = local.limits(MAX_CONTEXT, page_tokens=4)
        scheduler = Scheduler(limits, 40, speculation=speculation)
        local.drive(scheduler, Runner(model, local.pool(model, 4, 40)), [(0, predicted)])
        outcomes = speculation.take_outcomes()
        accepted[kind] = sum(it.num_accepted for it in outcomes)
    assert accepted["oracle"] == 25
    assert accepted["adversary"] == 0
    assert all(accepted[kind] > 3 for kind in ("cutter", "seldom", "tree", "all"))


@pytest.mark.parametrize("count", [2, 5, 17, 40])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_moe", "glm4_moe"])
def test_a_pass_of_many_tokens_and_one_of_each_do_not_differ(
    architecture: str, count: int, tmp_path: Path
) -> None:
    """vllm#8783: how far apart they are is known: by no bit where the kernels in C run."""
    model = local.decoder(tiny.write(tmp_path, tiny.config(architecture)))
    tokens = [(index * 29 + 3) % 384 for index in range(count)]
    together = local.all_logits(model, tokens, list(range(count)))
    apart = torch.stack([local.last_logits(model, tokens[: end + 1]) for end in range(count)])
    difference = float((together - apart).abs().max())
    assert difference <= workloads.TOLERANCE * float(apart.abs().max())
