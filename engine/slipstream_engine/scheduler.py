"""Who runs in the next step, and what became of the last one; integers only.

Every running sequence that only needs its next token gets it. What is left of the token budget
goes to prompts in chunks, by priority and then by arrival. A sequence is admitted when there are
pages for all its tokens; when pages run out later, the last running sequence in that order gives
its own back and is computed again. A waiting request also takes the place of running ones of a
worse priority, never of its own. So the first in order can always finish: the pool holds one
whole context. Whoever has a worse priority waits for as long as better ones keep coming.
"""

from bisect import insort
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import attrgetter

from slipstream_engine import invariants
from slipstream_engine.batch import Batch, Chunk, Draw, Failure, Load, Progress, Sampled
from slipstream_engine.continuations import Continuations, Rows
from slipstream_engine.guides.interface import Guides
from slipstream_engine.invariants import Queues
from slipstream_engine.pages import PagePool
from slipstream_engine.request import Request
from slipstream_engine.room import Room
from slipstream_engine.sequences import Sequence
from slipstream_engine.spec import verify
from slipstream_engine.spec.draft import NO_DRAFT, Draft
from slipstream_engine.spec.speculation import Speculation
from slipstream_engine.tables import PageTables
from slipstream_kvstore.keys import KEY_BYTES

_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class Limits:
    max_running_sequences: int
    max_batch_tokens: int
    page_tokens: int
    max_context: int
    prefix_cache: bool = True


class Scheduler:
    """Owns the queues and the pages; the caller runs the batches in between.

    One batch is out at a time: `schedule`, run, `commit`. Requests may come and go at any moment.
    Schedule and commit of a decode step, together: 45 µs for 8 sequences of 500 tokens, 51 µs of
    4,000 tokens, 85 µs for 16 of 500 (medians, CPython 3.11, one of two noisy 2.6 GHz cores).
    """

    def __init__(
        self,
        limits: Limits,
        num_pages: int,
        root_key: bytes = bytes(KEY_BYTES),
        speculation: Speculation | None = None,
        guides: Guides | None = None,
    ) -> None:
        """`root_key`: the start of the page keys of requests that bring none.

        Raises ValueError for a pool that cannot hold one context.
        """
        if -(-limits.max_context // limits.page_tokens) > num_pages:
            raise ValueError(f"{num_pages} pages cannot hold one context of {limits.max_context}")
        self.pages = PagePool(num_pages)
        self._limits = limits
        self._root_key = root_key
        self._tables = PageTables(self.pages, limits.page_tokens, limits.prefix_cache)
        # Both sorted by rank.
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._requests: dict[str, list[Sequence]] = {}
        self._room = Room(self.pages, self._tables, self._running, limits.max_running_sequences)
        # The batch that is out, and whose its chunks are.
        self._batch: Batch | None = None
        self._scheduled: list[Sequence] = []
        self._continuations = Continuations(speculation, guides)
        self._drafts: dict[Sequence, Draft] = {}
        # Rows of the pool to be moved before the next batch (`Batch.moves`).
        self._moves: list[tuple[int, int]] = []
        self._num_submitted = 0
        self._num_prefix_queries = 0
        self._num_prefix_hits = 0
        self._admitted: list[str] = []
        self.num_preemptions = 0

    @property
    def waiting(self) -> Seq[Sequence]:
        return tuple(self._waiting)

    @property
    def running(self) -> Seq[Sequence]:
        return tuple(self._running)

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting

    def load(self) -> Load:
        return Load(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_pages_used=self.pages.num_used,
            num_pages_cached=self.pages.num_cached,
            num_pages=self.pages.num_pages,
            num_prefix_queries=self._num_prefix_queries,
            num_prefix_hits=self._num_prefix_hits,
            num_preemptions=self.num_preemptions,
        )

    def submit(self, request: Request) -> None:
        """Queue a request. Raises ValueError, or GuideError, for one that can never run."""
        request.check(self._limits.max_context, KEY_BYTES)
        if request.id in self._requests:
            raise ValueError(f"a second request {request.id}")
        self._continuations.submit(request)
        root_key = request.root_key or self._root_key
        sequence = Sequence(request, self._num_submitted, root_key)
        self._num_submitted += 1
        self._requests[request.id] = [sequence]
        insort(self._waiting, sequence, key=_rank)

    def abort(self, request_id: str) -> None:
        """Forget a request and free its pages; one that is gone already is no error."""
        for sequence in self._requests.pop(request_id, ()):
            self._remove(sequence)
            self._continuations.stop(sequence, finished=False)
        self._continuations.end(request_id)

    def abort_sample(self, request_id: str, sample: int) -> None:
        """Forget one sample of a request, now or when it would part from the others."""
        for sequence in self._requests.get(request_id, ()):
            if sample in sequence.samples:
                others = tuple(one for one in sequence.samples if one != sample)
                if others:
                    sequence.keep_samples(others)
                else:
                    self._end(sequence)
                return

    def take_admitted(self) -> tuple[str, ...]:
        """Requests that ran for the first time since this was last asked."""
        admitted, self._admitted = tuple(self._admitted), []
        return admitted

    def take_failures(self) -> list[Failure]:
        """Requests that must end with an error, and why; aborted. No token of theirs is wanted."""
        failures = self._continuations.take_failures()
        for failure in failures:
            self.abort(failure.request_id)
        return failures

    def preempt_newest(self) -> bool:
        """The last running sequence in order gives its pages back; False where none runs."""
        if not self._running:
            return False
        self._preempt(self._running[-1])
        return True

    def schedule(self) -> Batch | None:
        """The next forward pass, or None when there is nothing to do.

        Raises ValueError while a batch is out.
        """
        if self._batch is not None:
            raise ValueError("the last batch is not committed yet")
        limits = self._limits
        plan = self._plan_decodes()
        if self._yield_to_better():
            plan = [(sequence, count) for sequence, count in plan if sequence.is_running]
        num_left = limits.max_batch_tokens - len(plan)
        drafts = self._continuations.drafts(
            [sequence for sequence, _ in plan], limits.max_context, self._num_prompt(), num_left
        )
        num_drafted = sum(len(draft.tokens) for draft in drafts.values())
        plan += self._plan_prefills(num_left - num_drafted)
        copies = self._tables.take_copies()
        if not plan:
            return None
        # Last, so that no draft has a page that somebody needs.
        self._drafts = drafts = {
            sequence: verify.cut(draft, self._tables.grow_for(sequence, len(draft.tokens)))
            for sequence, draft in drafts.items()
        }
        chunks: list[Chunk] = []
        num_prefill = 0
        for sequence, count in plan:
            draft = drafts.get(sequence, NO_DRAFT)
            allowed = self._continuations.allowed(sequence, count, draft)
            chunks.append(sequence.chunk(count, limits.page_tokens, draft, allowed))
            num_prefill += sequence.num_prompt_in(count)
        self._scheduled = [sequence for sequence, _ in plan]
        moves, self._moves = tuple(self._moves), []
        self._batch = Batch(tuple(chunks), copies, num_prefill, moves)
        return self._batch

    def commit(
        self, batch: Batch, sampled: Seq[Sampled], features: Rows | None = None
    ) -> list[Progress]:
        """Record a batch that ran: `sampled` holds a token for every draw, in order.

        What was aborted or preempted while it ran is skipped. `features`: rows for drafters. Raises
        ValueError for a batch that is not out, and for too few or too many tokens.
        """
        if batch is not self._batch or len(sampled) != batch.num_draws:
            raise ValueError(f"{len(sampled)} tokens, or not for the batch that is out")
        scheduled, self._scheduled, self._batch = self._scheduled, [], None
        self._continuations.see(scheduled, batch.chunks, features)
        progress, first = list[Progress](), 0
        for sequence, chunk in zip(scheduled, batch.chunks, strict=True):
            draws = chunk.draws
            last = first + len(draws)
            if sequence.is_running and draws and sequence.num_generated:
                draft = self._drafts.get(sequence, NO_DRAFT)
                self._append_drawn(sequence, chunk, draft, sampled[first:last], progress)
            elif sequence.is_running:
                sequence.num_computed = chunk.end
                self._tables.seal(sequence)
                if draws:
                    self._append_first(sequence, draws, sampled[first:last], progress)
            first = last
        return progress

    def check(self) -> None:
        """Raises AssertionError for a broken invariant."""
        queues = Queues(self._running, self._waiting, self._requests)
        limits = self._limits
        invariants.check(queues, self.pages, limits.page_tokens, prefix_cache=limits.prefix_cache)

    def _yield_to_better(self) -> bool:
        """Whether running sequences of a worse priority made room for the first waiting one.

        After the others have taken their pages, so that what was freed is there for it.
        """
        num_before = self.num_preemptions
        while self._waiting and self._running:
            head, last = self._waiting[0], self._running[-1]
            if last.rank[0] <= head.rank[0]:
                break
            matched = self._tables.match(head)
            if self._room.has(head, matched) or not self._room.could_have(head, matched):
                break
            self._preempt(last)
        return self.num_preemptions > num_before

    def _plan_decodes(self) -> list[tuple[Sequence, int]]:
        """Running sequences whose next token is computed now, with the pages for it.

        In order, and the last one pays for the pages: whoever is planned keeps its own.
        """
        planned: list[tuple[Sequence, int]] = []
        running, budget = self._running, self._limits.max_batch_tokens
        index = 0
        while index < len(running) and len(planned) < budget:
            sequence = running[index]
            index += 1
            if len(sequence.tokens) - sequence.num_computed != 1:
                continue
            while not self._tables.grow(sequence):
                victim = running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                planned.append((sequence, 1))
        return planned

    def _num_prompt(self) -> int:
        """Tokens of prompts that could be computed now."""
        chunks = [one.num_uncomputed for one in self._running if one.num_uncomputed > 1]
        return sum(chunks) + (self._waiting[0].num_uncomputed if self._waiting else 0)

    def _plan_prefills(self, budget: int) -> list[tuple[Sequence, int]]:
        """Prompts, running and waiting ones by rank, and how many tokens of each."""
        planned: list[tuple[Sequence, int]] = []
        filling = [one for one in self._running if one.num_uncomputed > 1]
        filling.reverse()
        is_full = False
        while budget > 0:
            head = self._waiting[0] if self._waiting and not is_full else None
            if filling and (head is None or filling[-1].rank < head.rank):
                sequence = filling.pop()
            elif head is not None:
                # Nobody overtakes a sequence that finds no room.
                is_full = not self._admit(head)
                if is_full:
                    continue
                sequence = head
            else:
                break
            count = min(sequence.num_uncomputed, budget)
            budget -= count
            planned.append((sequence, count))
        return planned

    def _admit(self, sequence: Sequence) -> bool:
        matched = self._tables.match(sequence)
        if not self._room.has(sequence, matched):
            return False
        self._tables.place(sequence, matched)
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
            self._admitted.append(sequence.request.id)
            if self._limits.prefix_cache:
                self._num_prefix_queries += len(sequence.tokens)
                self._num_prefix_hits += sequence.num_cached
        self._waiting.remove(sequence)
        self._run(sequence)
        return True

    def _run(self, sequence: Sequence) -> None:
        sequence.is_running = True
        insort(self._running, sequence, key=_rank)

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._remove(sequence)
        insort(self._waiting, sequence, key=_rank)

    def _remove(self, sequence: Sequence) -> None:
        """Out of its queue, without its pages."""
        queue = self._running if sequence.is_running else self._waiting
        queue.remove(sequence)
        sequence.is_running = False
        self._tables.release(sequence)

    def _end(self, sequence: Sequence) -> None:
        self._remove(sequence)
        self._continuations.stop(sequence, finished=True)
        siblings = self._requests[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self._requests[sequence.request.id]
            self._continuations.end(sequence.request.id)

    def _append_drawn(
        self,
        sequence: Sequence,
        chunk: Chunk,
        draft: Draft,
        sampled: Seq[Sampled],
        progress: list[Progress],
    ) -> None:
        """The next tokens of one sample: those of its draft that were drawn, and one after them.

        What the pages hold of the draft behind them is cut off before anything is sealed.
        """
        taken = self._continuations.take(sequence, chunk, draft, sampled, self._limits.max_context)
        progress += taken.progress
        self._moves += self._tables.moves(chunk, taken.rows)
        self._tables.shrink(sequence)
        self._tables.seal(sequence)
        if taken.finish is not None:
            self._end(sequence)

    def _append_first(
        self,
        sequence: Sequence,
        draws: tuple[Draw, ...],
        sampled: Seq[Sampled],
        progress: list[Progress],
    ) -> None:
        """The first tokens of an answer: of all the samples that the sequence stands for."""
        id_, num_cached = sequence.request.id, sequence.num_cached or 0
        if self._continuations.fails(id_, sampled):
            return
        going_on: list[tuple[int, int]] = []
        for draw, result in zip(draws, sampled, strict=True):
            if draw.sample not in sequence.samples:
                continue
            finish = sequence.finish_at(result.token, self._limits.max_context)
            progress.append(Progress(id_, draw.sample, result, finish, num_cached))
            if finish is None:
                going_on.append((draw.sample, result.token))
        if not going_on:
            self._end(sequence)
            return
        if len(going_on) > 1 or len(draws) > 1:
            self._part(sequence, going_on)
        sequence.tokens.append(going_on[0][1])
        self._continuations.begin(sequence, going_on)

    def _part(self, sequence: Sequence, going_on: list[tuple[int, int]]) -> None:
        """Every sample but the first one becomes a sequence of its own.

        It shares the pages where there is a slot and a page to write to; else it waits.
        """
        sequence.keep_samples((going_on[0][0],))
        slots = self._limits.max_running_sequences - len(self._running)
        num_left = min(slots, self.pages.num_available)
        for sample, token in going_on[1:]:
            fork = sequence.fork(sample)
            self._requests[sequence.request.id].append(fork)
            if num_left > 0:
                num_left -= 1
                self._tables.share(sequence, fork)
                self._run(fork)
            else:
                insort(self._waiting, fork, key=_rank)
            fork.tokens.append(token)
