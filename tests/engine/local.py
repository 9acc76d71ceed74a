"""The engine's parts put together in this process, and the naive loop they must equal."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from slipstream_engine import ranks, sampler
from slipstream_engine.batch import Batch, Draw, Progress, Sampled
from slipstream_engine.group import Alone, Group, PeerLostError
from slipstream_engine.kvpool import KvPool
from slipstream_engine.layers import Builder
from slipstream_engine.model import Decoder, ModelInput
from slipstream_engine.ranks import LeadingRunner
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.runner import Runner
from slipstream_engine.scheduler import Limits, Scheduler
from slipstream_engine.spec.draft import NO_DRAFT
from slipstream_engine.split import Split
from slipstream_kernels import dispatch
from slipstream_kernels.reference import Span
from slipstream_kvstore.layout import KvDtype, PageLayout, PoolLayout
from slipstream_weights import source
from slipstream_weights.checkpoint import Checkpoint
from tests.engine import guided

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0.0)
_VOCABULARY = guided.vocabulary()
Answers = dict[tuple[str, int], list[int]]


def layout(
    checkpoint: Checkpoint,
    page_tokens: int,
    split: Split | None = None,
    dtype: KvDtype = "float32",
) -> PageLayout:
    """Two pools: keys and values of the rank's layers and heads."""
    split = split or Split()
    shape = (
        len(split.layers(checkpoint.num_layers)),
        checkpoint.num_kv_heads // split.tensor,
        checkpoint.head_dim,
    )
    return PageLayout(page_tokens, (PoolLayout("k", dtype, shape), PoolLayout("v", dtype, shape)))


def decoder(
    path: Path,
    *,
    is_packed: bool = False,
    dtype: torch.dtype = torch.float32,
    split: Split | None = None,
    group: Group | None = None,
) -> Decoder:
    split = split or Split()
    opened = source.open_checkpoint(path)
    tensors = opened.packed_tensors() if is_packed else opened.tensors()
    weights = Builder(opened.checkpoint, split, dtype, CPU).build(tensors)
    kernels = dispatch.for_device(CPU)
    return Decoder(opened.checkpoint, weights, split, group or Alone(), kernels, dtype, CPU)


def pool(
    model: Decoder,
    page_tokens: int,
    num_pages: int,
    split: Split | None = None,
    dtype: KvDtype = "float32",
) -> KvPool:
    made = KvPool(layout(model.checkpoint, page_tokens, split, dtype), num_pages, CPU)
    # A page that nobody wrote must never be read: poison makes it seen.
    for pool_layout in made.layout.pools:
        for index in range(pool_layout.token_shape[0]):
            made.layer(pool_layout.name, index).fill_(float("nan"))
    return made


def request(
    id_: str,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: SamplingParams = GREEDY,
    end_tokens: Iterable[int] = (),
    num_samples: int = 1,
    priority: int = 0,
) -> Request:
    return Request(
        id_,
        tuple(prompt),
        max_tokens,
        sampling,
        frozenset(end_tokens),
        num_samples=num_samples,
        priority=priority,
    )


class Runs(Protocol):
    def run(self, batch: Batch) -> list[Sampled]: ...


def drive(
    scheduler: Scheduler,
    runner: Runs,
    arrivals: Sequence[tuple[int, Request]],
    disturb: Callable[[int], None] = lambda step: None,
) -> Answers:
    """Submit each request at its step and run until all have finished; check every step.

    `disturb` is called before each step with its number.
    """
    told = drive_to_draws(scheduler, runner, arrivals, disturb)
    return {key: [one.sampled.token for one in progress] for key, progress in told.items()}


def drive_to_draws(
    scheduler: Scheduler,
    runner: Runs,
    arrivals: Sequence[tuple[int, Request]],
    disturb: Callable[[int], None] = lambda step: None,
) -> dict[tuple[str, int], list[Progress]]:
    """The same, with all that was told of each token."""
    told: dict[tuple[str, int], list[Progress]] = {
        (one.id, sample): [] for _, one in arrivals for sample in range(one.num_samples)
    }
    pending = sorted(arrivals, key=lambda arrival: arrival[0])
    step = 0
    unfinished = set(told)
    while unfinished:
        while pending and pending[0][0] <= step:
            scheduler.submit(pending.pop(0)[1])
        disturb(step)
        step += 1
        batch = scheduler.schedule()
        if batch is None:
            continue
        for progress in scheduler.commit(batch, runner.run(batch)):
            key = (progress.request_id, progress.sample)
            assert key in unfinished, "a token after the end"
            told[key].append(progress)
            if progress.finish is not None:
                unfinished.remove(key)
        scheduler.check()
    return told


def limits(
    max_context: int,
    *,
    running: int = 8,
    tokens: int = 512,
    page_tokens: int = 16,
    prefix_cache: bool = True,
) -> Limits:
    return Limits(
        max_running_sequences=running,
        max_batch_tokens=tokens,
        page_tokens=page_tokens,
        max_context=max_context,
        prefix_cache=prefix_cache,
    )


def naive(
    model: Decoder, one: Request, max_context: int, sample: int = 0
) -> tuple[list[int], FinishReason]:
    """No cache, no batch, no pages shared: the whole sequence again for every token."""
    drawn, finish = naive_draws(model, one, max_context, sample)
    return [one.token for one in drawn], finish


def naive_draws(
    model: Decoder, one: Request, max_context: int, sample: int = 0
) -> tuple[list[Sampled], FinishReason]:
    """The same, with log-probabilities where they are asked for."""
    tokens = list(one.prompt)
    answer: list[Sampled] = []
    guides, key = guided.matchers(_VOCABULARY), (one.id, sample)
    if one.guide is not None:
        guides.start(one.id, one.guide, one.end_tokens, one.min_tokens)
    while True:
        is_short = len(answer) < one.min_tokens and one.guide is None
        draw = Draw(
            row=0,
            position=len(tokens),
            sample=sample,
            sampling=one.sampling,
            history=tuple(tokens) if one.sampling.needs_history else (),
            num_prompt_tokens=len(one.prompt),
            banned=tuple(sorted(one.end_tokens)) if is_short else (),
            allowed=guides.masks(key, NO_DRAFT)[0],
        )
        drawn = sampler.sample(last_logits(model, tokens).unsqueeze(0), [0], [draw])[0]
        answer.append(drawn)
        tokens.append(drawn.token)
        guides.commit(key, [drawn.token])
        if drawn.token in one.end_tokens:
            return answer, FinishReason.STOP
        if len(answer) == one.max_tokens or len(tokens) == max_context:
            return answer, FinishReason.LENGTH


def last_logits(model: Decoder, tokens: Sequence[int]) -> Tensor:
    """Logits after the last token: [vocabulary]."""
    count = len(tokens)
    return all_logits(model, tokens, [count - 1])[0]


def all_logits(
    model: Decoder, tokens: Sequence[int], rows: Sequence[int], kv_dtype: KvDtype = "float32"
) -> Tensor:
    """Logits after some of the tokens: [rows, vocabulary]."""
    count = len(tokens)
    batch = ModelInput(
        tokens=torch.tensor(tokens),
        positions=torch.arange(count),
        slots=torch.arange(count),
        rows=torch.tensor(rows),
        reach=[Span(0, count, ((0, count),))],
    )
    logits = model.forward(batch, pool(model, count, 1, dtype=kv_dtype))
    assert logits is not None
    return logits


class ThreadGroup:
    """Ranks as threads: stands for torch.distributed, with the same sums in the same order."""

    def __init__(self, split: Split, shared: "Shared") -> None:
        self._split = split
        self._shared = shared

    def sum_(self, x: Tensor) -> Tensor:
        parts = self._exchange("sum", x.clone())
        return x.copy_(torch.stack(parts).sum(0))

    def gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._exchange("gather", x), dim=-1)

    def receive_hidden(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> Tensor:
        hidden = self._shared.take(("hidden", self._split.rank))
        assert isinstance(hidden, Tensor)
        assert hidden.shape == (num_tokens, hidden_size)
        assert hidden.dtype is dtype
        return hidden

    def send_hidden(self, x: Tensor) -> None:
        self._shared.put(("hidden", self._split.rank + self._split.tensor), x.clone())

    def broadcast(self, content: bytes | None, source: int) -> bytes:
        if self._split.rank != source:
            told = self._shared.take(("bytes", self._split.rank))
            assert isinstance(told, bytes)
            return told
        assert content is not None
        for rank in range(self._split.num_ranks):
            if rank != source:
                self._shared.put(("bytes", rank), content)
        return content

    def _exchange(self, kind: str, x: Tensor) -> list[Tensor]:
        size, own, stage = self._split.tensor, self._split.tensor_rank, self._split.stage
        for other in range(size):
            self._shared.put((kind, stage, own, other), x)
        parts = [self._shared.take((kind, stage, other, own)) for other in range(size)]
        return [part for part in parts if isinstance(part, Tensor)]


class Shared:
    """Mailboxes between the threads; a thread that fails ends them all."""

    def __init__(self) -> None:
        self._boxes: dict[object, list[object]] = {}
        self._changed = threading.Condition()
        self._is_broken = False

    def put(self, box: object, item: object) -> None:
        with self._changed:
            self._boxes.setdefault(box, []).append(item)
            self._changed.notify_all()

    def take(self, box: object) -> object:
        with self._changed:
            self._changed.wait_for(lambda: self._is_broken or self._boxes.get(box), timeout=60)
            if self._is_broken or not self._boxes.get(box):
                raise PeerLostError("a thread failed")
            return self._boxes[box].pop(0)

    def fail(self) -> None:
        with self._changed:
            self._is_broken = True
            self._changed.notify_all()


class Ranks:
    """All ranks of one replica over the same weights, in threads of this process."""

    def __init__(self, path: Path, tensor: int, pipeline: int) -> None:
        self._shared = Shared()
        self._splits = [Split(tensor, pipeline, rank) for rank in range(tensor * pipeline)]
        self._groups = [ThreadGroup(split, self._shared) for split in self._splits]
        self._models = [
            decoder(path, split=split, group=group)
            for split, group in zip(self._splits, self._groups, strict=True)
        ]

    @contextmanager
    def runner(self, page_tokens: int, num_pages: int) -> Iterator[LeadingRunner]:
        """A runner over fresh pools; the threads end with it."""
        runners = [
            Runner(
                model,
                pool(model, page_tokens, num_pages, split),
                is_drawing=split.tensor_rank == 0,
            )
            for model, split in zip(self._models, self._splits, strict=True)
        ]
        threads = [
            threading.Thread(target=self._follow, args=(runner, rank))
            for rank, runner in enumerate(runners)
            if rank > 0
        ]
        for thread in threads:
            thread.start()
        leading = LeadingRunner(runners[0], self._groups[0], self._splits[0])
        try:
            yield leading
            leading.end()
        except BaseException:
            self._shared.fail()
            raise
        finally:
            for thread in threads:
                thread.join(timeout=60)

    def _follow(self, runner: Runner, rank: int) -> None:
        try:
            ranks.follow(runner, self._groups[rank], self._splits[rank])
        except BaseException:
            self._shared.fail()
            raise
