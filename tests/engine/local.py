"""The engine's parts put together in this process, and the naive loop they must equal."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from slipstream_engine import sampler
from slipstream_engine.kvpool import KvPool
from slipstream_engine.model import Decoder, ModelInput
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.scheduler import Batch, Limits, Scheduler
from slipstream_kernels.reference import Span
from slipstream_kvstore.layout import PageLayout, PoolLayout
from slipstream_weights import source
from slipstream_weights.checkpoint import Checkpoint


def layout(checkpoint: Checkpoint, page_tokens: int) -> PageLayout:
    shape = (checkpoint.num_layers, checkpoint.num_kv_heads, checkpoint.head_dim)
    return PageLayout(
        page_tokens, (PoolLayout("k", "float32", shape), PoolLayout("v", "float32", shape))
    )


def decoder(path: Path) -> Decoder:
    opened = source.open_checkpoint(path)
    return Decoder(opened.checkpoint, opened.tensors(), torch.float32)


def pool(model: Decoder, page_tokens: int, num_pages: int) -> KvPool:
    made = KvPool(layout(model.checkpoint, page_tokens), num_pages, torch.device("cpu"))
    # A page that nobody wrote must never be read: poison makes it seen.
    for name in ("k", "v"):
        for index in range(model.checkpoint.num_layers):
            made.layer(name, index).fill_(float("nan"))
    return made


def request(
    id_: str,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: SamplingParams | None = None,
    end_tokens: Iterable[int] = (),
) -> Request:
    greedy = SamplingParams(temperature=0.0)
    return Request(id_, tuple(prompt), max_tokens, sampling or greedy, frozenset(end_tokens))


class Runs(Protocol):
    """What runs a batch: the real runner, or the one for tests of the scheduler."""

    def run(self, batch: Batch) -> list[int]: ...


def drive(
    scheduler: Scheduler, runner: Runs, arrivals: Sequence[tuple[int, Request]]
) -> dict[str, list[int]]:
    """Submit each request at its step and run until all have finished."""
    answers: dict[str, list[int]] = {one.id: [] for _, one in arrivals}
    pending = sorted(arrivals, key=lambda arrival: arrival[0])
    step = 0
    unfinished = set(answers)
    while unfinished:
        while pending and pending[0][0] <= step:
            scheduler.submit(pending.pop(0)[1])
        step += 1
        batch = scheduler.schedule()
        if batch is None:
            continue
        for progress in scheduler.commit(batch, runner.run(batch)):
            answers[progress.request_id].append(progress.token)
            if progress.finish is not None:
                unfinished.remove(progress.request_id)
    return answers


def limits(
    max_context: int, *, running: int = 8, tokens: int = 512, page_tokens: int = 16
) -> Limits:
    return Limits(
        max_running_sequences=running,
        max_batch_tokens=tokens,
        page_tokens=page_tokens,
        max_context=max_context,
    )


def naive(model: Decoder, one: Request, max_context: int) -> tuple[list[int], FinishReason]:
    """No cache, no batch, no pages shared: the whole sequence again for every token."""
    tokens = list(one.prompt)
    answer: list[int] = []
    while True:
        token = sampler.sample(
            last_logits(model, tokens).unsqueeze(0), [one.sampling], [len(tokens)]
        )[0]
        answer.append(token)
        tokens.append(token)
        if token in one.end_tokens:
            return answer, FinishReason.STOP
        if len(answer) == one.max_tokens or len(tokens) == max_context:
            return answer, FinishReason.LENGTH


def last_logits(model: Decoder, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after the last token: [vocabulary]."""
    count = len(tokens)
    slots = torch.arange(count)
    batch = ModelInput(
        tokens=torch.tensor(tokens),
        positions=torch.arange(count),
        slots=slots,
        spans=[Span(0, count, count, slots)],
        last_rows=torch.tensor([count - 1]),
    )
    return model.forward(batch, pool(model, count, 1))[0]


class RecordingRunner:
    """A runner for tests of the scheduler alone: the next token follows from the tokens so far.

    Stands for the model; like one, it sees only what the batch brings and what it stored before.
    """

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._stored: dict[tuple[int, int], int] = {}

    def run(self, batch: Batch) -> list[int]:
        sampled = []
        for chunk in batch.chunks:
            for offset, token in enumerate(chunk.tokens):
                page, row = divmod(chunk.start + offset, self._page_tokens)
                self._stored[chunk.pages[page], row] = token
            if chunk.sampling is not None:
                end = chunk.start + len(chunk.tokens)
                places = (divmod(position, self._page_tokens) for position in range(end))
                sampled.append(next_token([self._stored[chunk.pages[p], r] for p, r in places]))
        return sampled


def next_token(tokens: Iterable[int]) -> int:
    value = 17
    for token in tokens:
        value = (value * 31 + token) % 997
    return value
