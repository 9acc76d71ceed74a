"""Who runs in the next step, and what became of the last one; integers only.

First come, first served. Every running sequence that only needs its next token gets it; what is
left of the token budget goes to prompts, oldest first, in chunks. A sequence is admitted when the
pages of all its tokens are free, and when pages run out later, the newest running sequence gives
its own back and is computed again.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from slipstream_engine.pages import PageAllocator
from slipstream_engine.request import FinishReason, Request, SamplingParams, Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    max_running_sequences: int
    max_batch_tokens: int
    page_tokens: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence. `sampling` is None while its prompt is incomplete."""

    request_id: str
    start: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    sampling: SamplingParams | None


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass. Chunks stand in the order in which their sequences came."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Progress:
    """A new token of a request, and its end if that was the last one."""

    request_id: str
    token: int
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class Load:
    num_running: int
    num_waiting: int
    num_pages_used: int
    num_pages: int


class Scheduler:
    """Owns the queues and the pages; the caller runs the batches in between."""

    def __init__(self, limits: Limits, num_pages: int) -> None:
        if -(-limits.max_context // limits.page_tokens) > num_pages:
            raise ValueError(f"{num_pages} pages cannot hold one context of {limits.max_context}")
        self._limits = limits
        self._pages = PageAllocator(num_pages)
        # Both in the order of arrival, and whoever waits came after everyone who runs.
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._num_submitted = 0
        self.num_preemptions = 0

    @property
    def waiting(self) -> Seq[Sequence]:
        return tuple(self._waiting)

    @property
    def running(self) -> Seq[Sequence]:
        return tuple(self._running)

    def load(self) -> Load:
        return Load(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_pages_used=self._pages.num_used,
            num_pages=self._pages.num_pages,
        )

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ValueError for one that can never run."""
        if not 0 < len(request.prompt) < self._limits.max_context:
            raise ValueError(f"a prompt of {len(request.prompt)} tokens")
        if request.max_tokens < 1:
            raise ValueError(f"at most {request.max_tokens} tokens")
        self._waiting.append(Sequence(request, order=self._num_submitted))
        self._num_submitted += 1

    def abort(self, request_id: str) -> None:
        """Forget a request and free its pages; one that is gone already is no error."""
        for queue in (self._running, self._waiting):
            for sequence in queue:
                if sequence.request.id == request_id:
                    queue.remove(sequence)
                    self._release(sequence)
                    return

    def schedule(self) -> Batch | None:
        """The next forward pass, or None when there is nothing to do."""
        planned = self._secure_pages(self._plan_running())
        budget = self._limits.max_batch_tokens - sum(count for _, count in planned)
        planned += self._admit(budget)
        if not planned:
            return None
        return Batch(tuple(self._chunk(sequence, count) for sequence, count in planned))

    def commit(self, batch: Batch, sampled: Seq[int]) -> list[Progress]:
        """Record a batch that ran: `sampled` holds a token for every chunk with sampling."""
        running = {sequence.request.id: sequence for sequence in self._running}
        tokens = iter(sampled)
        progress: list[Progress] = []
        for chunk in batch.chunks:
            sequence = running[chunk.request_id]
            sequence.num_computed += len(chunk.tokens)
            if chunk.sampling is None:
                continue
            token = next(tokens)
            sequence.tokens.append(token)
            finish = self._finish(sequence, token)
            progress.append(Progress(chunk.request_id, token, finish))
            if finish is not None:
                self._running.remove(sequence)
                self._release(sequence)
        return progress

    def _plan_running(self) -> dict[int, int]:
        """Tokens per running sequence (by order): next tokens first, then prompts."""
        budget = self._limits.max_batch_tokens
        plan: dict[int, int] = {}
        decoding = [s for s in self._running if s.num_uncomputed == 1]
        filling = [s for s in self._running if s.num_uncomputed > 1]
        for sequence in decoding + filling:
            count = min(sequence.num_uncomputed, budget)
            if count == 0:
                break
            plan[sequence.order] = count
            budget -= count
        return plan

    def _secure_pages(self, plan: dict[int, int]) -> list[tuple[Sequence, int]]:
        """Pages for the planned tokens, oldest sequence first; the newest one pays for them."""
        planned: list[tuple[Sequence, int]] = []
        # Victims are taken from the end, so whoever is already planned keeps its pages.
        index = 0
        while index < len(self._running):
            sequence = self._running[index]
            index += 1
            count = plan.get(sequence.order)
            if count is None:
                continue
            while not self._grow(sequence, sequence.num_computed + count):
                victim = self._running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                planned.append((sequence, count))
        return planned

    def _admit(self, budget: int) -> list[tuple[Sequence, int]]:
        admitted: list[tuple[Sequence, int]] = []
        while (
            budget > 0 and self._waiting and len(self._running) < self._limits.max_running_sequences
        ):
            sequence = self._waiting[0]
            # One page more for each that runs: a newcomer that must go at once is wasted work.
            reserve = len(self._running)
            if self._pages.num_free < self._missing(sequence, len(sequence.tokens)) + reserve:
                break
            self._grow(sequence, len(sequence.tokens))
            self._waiting.pop(0)
            self._running.append(sequence)
            count = min(sequence.num_uncomputed, budget)
            budget -= count
            admitted.append((sequence, count))
        return admitted

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        pages = self._pages.allocate(self._missing(sequence, num_tokens))
        if pages is None:
            return False
        sequence.pages.extend(pages)
        return True

    def _missing(self, sequence: Sequence, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self._limits.page_tokens) - len(sequence.pages))

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._running.remove(sequence)
        self._release(sequence)
        self._waiting.insert(0, sequence)

    def _release(self, sequence: Sequence) -> None:
        self._pages.free(sequence.pages)
        sequence.pages.clear()
        sequence.num_computed = 0

    def _chunk(self, sequence: Sequence, count: int) -> Chunk:
        start, end = sequence.num_computed, sequence.num_computed + count
        is_last = end == len(sequence.tokens)
        return Chunk(
            request_id=sequence.request.id,
            start=start,
            tokens=tuple(sequence.tokens[start:end]),
            pages=tuple(sequence.pages[: -(-end // self._limits.page_tokens)]),
            sampling=sequence.request.sampling if is_last else None,
        )

    def _finish(self, sequence: Sequence, token: int) -> FinishReason | None:
        if token in sequence.request.end_tokens:
            return FinishReason.STOP
        if sequence.num_generated >= sequence.request.max_tokens:
            return FinishReason.LENGTH
        if len(sequence.tokens) >= self._limits.max_context:
            return FinishReason.LENGTH
        return None
