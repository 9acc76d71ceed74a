"""The policy half without a model: a runner that stands for one, its naive loop, and a simulation.

Torch is not imported here: these tests take milliseconds to start.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from slipstream_engine.batch import Batch, Chunk, Draw, Progress, Sampled
from slipstream_engine.guides.compiled import Compiler
from slipstream_engine.guides.matcher import Matchers
from slipstream_engine.guides.spec import Guide, Vocabulary
from slipstream_engine.request import FinishReason, Request, SamplingParams
from slipstream_engine.scheduler import Limits, Scheduler
from slipstream_engine.spec.draft import NO_DRAFT
from slipstream_engine.spec.speculation import Speculation
from slipstream_kvstore import keys

# So few tokens that answers meet each other's prefixes and their end tokens often.
VOCABULARY = 7
ROOT = bytes(keys.KEY_BYTES)
GREEDY = SamplingParams(temperature=0.0)
# Whose draws may fail.
FRAGILE = SamplingParams(temperature=0.0, top_k=11)
# The text of each token, for guides.
LETTERS = "abcdefg"
_compiler = Compiler(Vocabulary(tuple(one.encode() for one in LETTERS), {}))


def request(
    id_: str,
    prompt: Iterable[int],
    max_tokens: int = 8,
    *,
    sampling: SamplingParams = GREEDY,
    end_tokens: Iterable[int] = (),
    min_tokens: int = 0,
    num_samples: int = 1,
    priority: int = 0,
    root_key: bytes = b"",
    guide: Guide | None = None,
) -> Request:
    return Request(
        id_,
        tuple(prompt),
        max_tokens,
        sampling,
        frozenset(end_tokens),
        min_tokens=min_tokens,
        num_samples=num_samples,
        priority=priority,
        root_key=root_key,
        guide=guide,
    )


def guides() -> Matchers:
    return Matchers(_compiler)


def limits(
    max_context: int = 64,
    *,
    running: int = 8,
    tokens: int = 64,
    page_tokens: int = 4,
    prefix_cache: bool = True,
) -> Limits:
    return Limits(running, tokens, page_tokens, max_context, prefix_cache)


def text(start: int, length: int) -> tuple[int, ...]:
    """Tokens that begin differently for every start."""
    return (start, *((start + number * number) % VOCABULARY for number in range(1, length)))


def shape(batch: Batch) -> list[tuple[int, int, int]]:
    """Start, tokens and draws of each chunk."""
    return [(one.start, len(one.tokens), len(one.draws)) for one in batch.chunks]


def state_after(state: int, token: int) -> int:
    """What a model knows after one more token."""
    return hash((state, token))


def drawn(state: int, draw: Draw, tokens: Sequence[int]) -> int:
    """The token that follows; it depends on everything that a draw may depend on. -1: none."""
    value = state
    if draw.sampling.temperature > 0:
        value = hash((value, draw.sampling.seed, draw.sample, draw.position))
    if draw.sampling.needs_history:
        value = hash((value, sum(tokens), sum(tokens[: draw.num_prompt_tokens])))
    if draw.sampling.top_k == FRAGILE.top_k and value % 11 == 0:
        return -1
    token = value % VOCABULARY
    while token in draw.banned or (draw.allowed and not draw.allowed[0] >> token & 1):
        token = (token + 1) % VOCABULARY
    return token


# Without a reason where the guide or a draw has failed.
Answer = tuple[list[int], FinishReason | None]


def naive(one: Request, sample: int, max_context: int) -> Answer:
    """No pages, no batch, no scheduler."""
    tokens = list(one.prompt)
    answer: list[int] = []
    asked, key = guides(), (one.id, sample)
    if one.guide is not None:
        asked.start(one.id, one.guide, one.end_tokens, one.min_tokens)
    while True:
        state = 0
        for token in tokens:
            state = state_after(state, token)
        is_short = len(answer) < one.min_tokens
        banned = tuple(sorted(one.end_tokens)) if is_short and one.guide is None else ()
        (allowed,) = asked.masks(key, NO_DRAFT)
        if asked.take_failures():
            return answer, None
        draw = Draw(0, len(tokens), sample, one.sampling, (), len(one.prompt), banned, allowed)
        token = drawn(state, draw, tokens)
        if token < 0:
            return answer, None
        answer.append(token)
        asked.commit(key, [token])
        tokens.append(token)
        if token in one.end_tokens:
            return answer, FinishReason.STOP
        if len(answer) == one.max_tokens or len(tokens) == max_context:
            return answer, FinishReason.LENGTH


@dataclass(frozen=True)
class Cell:
    """What stands at one place of one page: a token and everything before it."""

    position: int
    token: int
    state: int


class PageStore:
    """A runner that stands for the model: it knows only what batches bring and what it stored.

    Every chunk must read exactly the tokens before it from its own pages, in a chain that is
    unbroken; a page that one chunk writes is in no other chunk; copies are made in a
    wrong-footing order.
    """

    def __init__(self, page_tokens: int, num_pages: int) -> None:
        self._page_tokens = page_tokens
        self._pages: list[list[Cell | None]] = [[None] * page_tokens for _ in range(num_pages)]
        self.num_computed = 0
        self.num_copies = 0
        self.num_moves = 0

    def run(self, batch: Batch) -> list[Sampled]:
        self._move(batch)
        self._copy(batch)
        self._check_writers(batch)
        for chunk in batch.chunks:
            self._write(chunk)
        sampled: list[Sampled] = []
        for chunk in batch.chunks:
            before = self._read(chunk.pages, chunk.start)
            own = [self._cell(chunk.pages, chunk.start + row) for row in range(len(chunk.tokens))]
            assert [cell.token for cell in own] == list(chunk.tokens)
            for draw in chunk.draws:
                path = [own[row] for row in _rows_seen(chunk, draw.row)]
                seen = [*before, *path]
                assert draw.position == len(seen)
                assert [cell.position for cell in seen] == list(range(draw.position))
                tokens = [cell.token for cell in seen]
                if draw.sampling.needs_history:
                    assert list(draw.history) == tokens
                else:
                    assert not draw.history
                token = drawn(seen[-1].state, draw, tokens)
                sampled.append(Sampled(token, flaw="" if token >= 0 else "fragile"))
        self.num_computed += batch.num_tokens
        self.num_copies += len(batch.copies)
        self.num_moves += len(batch.moves)
        return sampled

    def check(self, scheduler: Scheduler, roots: Iterable[bytes]) -> None:
        """Every indexed page holds the tokens that its key says."""
        nodes = scheduler.pages.nodes()
        for page, (key, parent) in nodes.items():
            cells = [cell for cell in self._pages[page] if cell is not None]
            tokens = [cell.token for cell in cells]
            assert len(tokens) == self._page_tokens
            if parent is None:
                before, state, position = set(roots), 0, 0
            else:
                last = self._pages[parent][-1]
                assert last is not None
                before, state, position = {nodes[parent][0]}, last.state, last.position + 1
            assert key in {keys.next_key(one, tokens) for one in before}
            for offset, cell in enumerate(cells):
                state = state_after(state, cell.token)
                assert (cell.state, cell.position) == (state, position + offset)

    def _move(self, batch: Batch) -> None:
        targets = [target for _, target in batch.moves]
        assert len(targets) == len(set(targets))
        size = self._page_tokens
        moved = [self._pages[source // size][source % size] for source, _ in batch.moves]
        for target, cell in zip(targets, moved, strict=True):
            assert cell is not None
            self._pages[target // size][target % size] = cell

    def _copy(self, batch: Batch) -> None:
        sources = {source for source, _ in batch.copies}
        targets = [target for _, target in batch.copies]
        assert len(targets) == len(set(targets))
        assert not sources & set(targets)
        for source, target in reversed(batch.copies):
            self._pages[target] = self._pages[source].copy()

    def _check_writers(self, batch: Batch) -> None:
        writers: dict[int, int] = {}
        for number, chunk in enumerate(batch.chunks):
            for page in chunk.pages[chunk.start // self._page_tokens :]:
                assert page not in writers
                writers[page] = number
        assert {target for _, target in batch.copies} <= set(writers)
        for number, chunk in enumerate(batch.chunks):
            assert len(chunk.pages) == -(-chunk.end // self._page_tokens)
            assert len(set(chunk.pages)) == len(chunk.pages)
            assert all(writers.get(page, number) == number for page in chunk.pages)

    def _write(self, chunk: Chunk) -> None:
        before = self._read(chunk.pages, chunk.start)
        state = before[-1].state if before else 0
        first = chunk.start // self._page_tokens
        # Whoever had the rest of a page before has left nothing that may be read.
        for page in chunk.pages[first + bool(chunk.start % self._page_tokens) :]:
            self._pages[page] = [None] * self._page_tokens
        made: list[Cell] = []
        for row, token in enumerate(chunk.tokens):
            seen = _rows_seen(chunk, row)
            parent = made[seen[-2]].state if len(seen) > 1 else state
            made.append(Cell(chunk.start + len(seen) - 1, token, state_after(parent, token)))
            index, offset = divmod(chunk.start + row, self._page_tokens)
            self._pages[chunk.pages[index]][offset] = made[-1]

    def _cell(self, pages: Sequence[int], place: int) -> Cell:
        index, offset = divmod(place, self._page_tokens)
        cell = self._pages[pages[index]][offset]
        assert cell is not None
        return cell

    def _read(self, pages: Sequence[int], count: int) -> list[Cell]:
        cells: list[Cell] = []
        state = 0
        for position in range(count):
            cell = self._cell(pages, position)
            state = state_after(state, cell.token)
            assert (cell.position, cell.state) == (position, state)
            cells.append(cell)
        return cells


def _rows_seen(chunk: Chunk, row: int) -> list[int]:
    """The rows of a chunk that one of them sees, itself the last."""
    if not chunk.parents:
        return list(range(row + 1))
    seen = [row]
    while (parent := chunk.parents[seen[-1]]) >= 0:
        seen.append(parent)
    return seen[::-1]


@dataclass
class Simulation:
    """A scheduler, the runner that stands for the model, and everything that was told."""

    limits: Limits
    num_pages: int
    speculation: Speculation | None = None
    answers: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    finished: dict[tuple[str, int], FinishReason] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.guides = guides()
        self.scheduler = Scheduler(self.limits, self.num_pages, ROOT, self.speculation, self.guides)
        self.store = PageStore(self.limits.page_tokens, self.num_pages)
        self.roots = {ROOT}
        self.open: set[tuple[str, int]] = set()

    def submit(self, *requests: Request) -> None:
        for one in requests:
            self.scheduler.submit(one)
            self.roots.add(one.root_key or ROOT)
            for sample in range(one.num_samples):
                self.answers[one.id, sample] = []
                self.open.add((one.id, sample))

    def abort(self, id_: str) -> None:
        self.scheduler.abort(id_)
        self.open -= {one for one in self.open if one[0] == id_}

    def abort_sample(self, id_: str, sample: int) -> None:
        self.scheduler.abort_sample(id_, sample)
        self.open.discard((id_, sample))

    def step(self, meanwhile: Callable[[], None] | None = None) -> Batch | None:
        """One step, everything checked; `meanwhile` happens while the batch runs."""
        batch = self.scheduler.schedule()
        self._check()
        if batch is None:
            assert not self.open, "nothing runs, but somebody waits"
            if meanwhile is not None:
                meanwhile()
            return None
        assert 0 < batch.num_tokens <= self.limits.max_batch_tokens
        assert self.scheduler.load().num_running <= self.limits.max_running_sequences
        sampled = self.store.run(batch)
        # The accepted path of a tree is moved before the next batch: until then its pages wait.
        self.store.check(self.scheduler, self.roots)
        if meanwhile is not None:
            meanwhile()
        self._end_failed()
        for one in self.scheduler.commit(batch, sampled):
            self._record(one)
        self._end_failed()
        self._check(has_moves=any(chunk.parents for chunk in batch.chunks))
        return batch

    def _end_failed(self) -> None:
        for failure in self.scheduler.take_failures():
            self.failed.add(failure.request_id)
            self.open -= {one for one in self.open if one[0] == failure.request_id}

    def run_step(self) -> Batch:
        """A step in which there is something to do."""
        batch = self.step()
        assert batch is not None
        return batch

    def run(self, max_steps: int = 4000) -> None:
        """Until everything that was submitted has finished."""
        while self.open:
            assert max_steps > 0, "it does not end"
            max_steps -= 1
            self.step()

    def check_answers(self, requests: Iterable[Request]) -> None:
        """Finished samples said what the naive loop says; aborted ones the beginning of it.

        A request whose guide or draw fails for one of its samples has failed, if that was reached.
        """
        for one in requests:
            told = [naive(one, index, self.limits.max_context) for index in range(one.num_samples)]
            assert (one.id in self.failed) <= any(finish is None for _, finish in told)
            for sample, (expected, finish) in enumerate(told):
                answer = self.answers[one.id, sample]
                assert answer == expected[: len(answer)]
                if (one.id, sample) in self.finished:
                    assert answer == expected
                    assert self.finished[one.id, sample] is finish

    def check_empty(self) -> None:
        """Nobody is left, and no page is held."""
        load = self.scheduler.load()
        assert (load.num_running, load.num_waiting, load.num_pages_used) == (0, 0, 0)
        assert self.guides.num_requests == 0

    def _record(self, progress: Progress) -> None:
        place = (progress.request_id, progress.sample)
        assert place in self.open, "a token after the end"
        self.answers[place].append(progress.sampled.token)
        known = self.cached.setdefault(progress.request_id, progress.num_cached_tokens)
        assert known == progress.num_cached_tokens
        if progress.finish is not None:
            self.finished[place] = progress.finish
            self.open.remove(place)

    def _check(self, *, has_moves: bool = True) -> None:
        self.scheduler.check()
        if not has_moves:
            self.store.check(self.scheduler, self.roots)
        # Salts part the world: no page is held under two roots.
        owner: dict[int, bytes] = {}
        for one in self.scheduler.running:
            root = one.request.root_key or ROOT
            assert all(owner.setdefault(page, root) == root for page in one.pages)
