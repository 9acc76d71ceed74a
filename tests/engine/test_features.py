"""The seam for drafters that need what the target makes of its tokens, with a toy on it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slipstream_engine.model import Boundaries, Decoder, ModelInput
from slipstream_engine.request import Request
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Scheduler
from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Subject
from slipstream_engine.spec.speculation import Speculation
from slipstream_kernels.reference import Span
from tests.engine import local, tiny

_BOUNDARIES = (1, 3)
_CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return local.decoder(tiny.write(folder, tiny.config(num_hidden_layers=3)))


class Toy:
    """A `FeatureDrafter`: the token that it drafts is a sum over all features of the sequence."""

    name = "toy"
    features = _BOUNDARIES

    def __init__(self) -> None:
        self.prompts: dict[str, dict[int, Tensor]] = {}
        self.rows: dict[Key, list[Tensor]] = {}
        self.cold: set[Key] = set()
        self.first_drafts: dict[Key, tuple[int, ...]] = {}
        self.stopped: list[tuple[Key, bool]] = []

    def prefill(self, request_id: str, start: int, features: object) -> None:
        assert isinstance(features, Tensor)
        known = self.prompts.setdefault(request_id, {})
        for offset, row in enumerate(features):
            known[start + offset] = row

    def start(self, subject: Subject) -> None:
        known = self.prompts.get(subject.key[0], {})
        if set(known) != set(range(len(subject.prompt))):
            self.cold.add(subject.key)
        self.rows[subject.key] = [known[place] for place in sorted(known)]

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        return [self._draft(key, budget) for key, budget in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        if features is not None:
            assert isinstance(features, Tensor)
            assert len(features) == len(tokens)
            self.rows[key] += list(features)

    def stop(self, key: Key, finished: bool) -> None:
        self.stopped.append((key, finished))

    def _draft(self, key: Key, budget: int) -> Draft:
        if key in self.cold or budget == 0:
            return NO_DRAFT
        # To a tenth: rows of a batch are not summed in one order.
        total = int(torch.stack(self.rows[key]).sum().mul(10).round())
        draft = Draft((total % 384,) * min(budget, 3), (), (0.5,) * min(budget, 3), self.name)
        self.first_drafts.setdefault(key, draft.tokens)
        return draft


def _run(
    model: Decoder, requests: list[Request], *, tokens: int, preempt_at: int | None = None
) -> tuple[Toy, local.Answers]:
    toy = Toy()
    limits = local.limits(_CONTEXT, tokens=tokens, page_tokens=4)
    speculation = Speculation(Chooser([Member(toy)]), 8)
    scheduler = Scheduler(limits, 40, speculation=speculation)
    runner = Runner(model, local.pool(model, 4, 40), boundaries=speculation.features)
    answers: local.Answers = {(one.id, it): [] for one in requests for it in range(one.num_samples)}
    pending = list(requests)
    step = 0
    while pending or not scheduler.is_idle:
        if pending and scheduler.is_idle:
            scheduler.submit(pending.pop(0))
        if step == preempt_at:
            scheduler.preempt_newest()
        step += 1
        batch = scheduler.schedule()
        if batch is None:
            continue
        sampled = runner.run(batch)
        for told in scheduler.commit(batch, sampled, runner.take_features()):
            answers[told.request_id, told.sample].append(told.sampled.token)
    return toy, answers


class _Copies(Boundaries):
    """Keeps all of them, by itself."""

    def __init__(self) -> None:
        super().__init__(())
        self.seen: list[Tensor] = []

    def see(self, boundary: int, x: Tensor) -> None:
        self.seen.append(x.clone())


def _whole(model: Decoder, tokens: Sequence[int]) -> Tensor:
    """Features of all tokens in one pass."""
    count, boundaries = len(tokens), _Copies()
    batch = ModelInput(
        tokens=torch.tensor(tokens),
        positions=torch.arange(count),
        slots=torch.arange(count),
        rows=torch.tensor([count - 1]),
        reach=[Span(0, count, ((0, count),))],
    )
    model.forward(batch, local.pool(model, count, 1), boundaries)
    return torch.cat([boundaries.seen[one] for one in _BOUNDARIES], dim=-1)


@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_the_first_draft_is_the_same_however_the_prompt_was_cut(
    model: Decoder, tokens: int
) -> None:
    """vllm-project/vllm#14922: the feature at the end of a chunk was lost."""
    one = local.request("a", range(23), 12)
    expected, _ = _run(model, [one], tokens=64)
    toy, answers = _run(model, [one], tokens=tokens)
    assert answers["a", 0] == local.naive(model, one, _CONTEXT)[0]
    assert toy.first_drafts == expected.first_drafts != {}


@pytest.mark.parametrize("preempt_at", [None, 2, 4])
def test_features_after_any_steps_are_those_of_a_fresh_pass(
    model: Decoder, preempt_at: int | None
) -> None:
    """vllm-project/vllm#14649: entries made from guessed features were not made anew."""
    one = local.request("a", range(11), 20)
    toy, answers = _run(model, [one], tokens=16, preempt_at=preempt_at)
    expected = _whole(model, [*one.prompt, *answers["a", 0][:-1]])
    assert torch.allclose(
        torch.stack(toy.rows["a", 0]), expected[: len(toy.rows["a", 0])], atol=1e-4
    )
    assert len(toy.rows["a", 0]) >= len(one.prompt) + 18


def test_a_request_whose_prompt_was_in_the_cache_is_cold_and_still_right(model: Decoder) -> None:
    one, two = local.request("a", range(20), 8), local.request("b", range(20), 8)
    toy, answers = _run(model, [one, two], tokens=64)
    assert toy.cold == {("b", 0)}
    assert answers["a", 0] == answers["b", 0]


def test_samples_share_what_was_made_of_their_prompt(model: Decoder) -> None:
    one = local.request("a", range(9), 6, num_samples=3)
    toy, answers = _run(model, [one], tokens=64)
    assert not toy.cold
    assert set(toy.rows) == {("a", 0), ("a", 1), ("a", 2)}
    assert answers["a", 1] == answers["a", 2] == local.naive(model, one, _CONTEXT)[0]


def test_a_boundary_that_the_model_does_not_have_is_refused(model: Decoder) -> None:
    boundaries = Boundaries((1, 9))
    boundaries.see(1, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"\[9\]"):
        boundaries.features()


def test_of_a_request_that_nobody_waits_for_before_its_answer_it_hears_the_end(
    model: Decoder,
) -> None:
    """Or what was kept of its prompt would be kept for ever."""
    toy = Toy()
    speculation = Speculation(Chooser([Member(toy)]), 8)
    scheduler = Scheduler(
        local.limits(_CONTEXT, tokens=4, page_tokens=4), 40, speculation=speculation
    )
    runner = Runner(model, local.pool(model, 4, 40), boundaries=speculation.features)
    scheduler.submit(local.request("a", range(12), 4))
    batch = scheduler.schedule()
    assert batch is not None
    assert scheduler.commit(batch, runner.run(batch), runner.take_features()) == []
    assert list(toy.prompts) == ["a"]
    scheduler.abort("a")
    assert toy.stopped == [(("a", 0), False)]
