"""A sequence: one sample of a request and how far it is; knows no queues and no pools of pages."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from slipstream_engine.batch import Chunk, Draw, Progress, Sampled
from slipstream_engine.request import FinishReason, Request
from slipstream_engine.spec import verify
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Subject
from slipstream_kvstore import keys

# Where a sequence stands among others, smallest first: (priority, arrival, sample).
Rank = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step brought to one sample: its next tokens, and the reason if the last one ends it.

    `rows`: of the chunk, those whose keys and values are the answer's. `flaw`: why nothing could
    be drawn after these tokens.
    """

    progress: list[Progress]
    finish: FinishReason | None
    rows: list[int]
    num_accepted: int
    flaw: str = ""

    @property
    def tokens(self) -> list[int]:
        return [one.sampled.token for one in self.progress]


class Sequence:
    """Tokens of which the first `num_computed` stand in pages.

    Until its samples part, at the prompt's last token, one sequence is all of them; `samples` says
    which. Pages are the scheduler's to give; the first `num_sealed` are in the prefix index.
    """

    __slots__ = (
        "_banned",
        "_keys",
        "_needs_history",
        "is_running",
        "is_tail_shared",
        "num_cached",
        "num_computed",
        "num_sealed",
        "pages",
        "rank",
        "request",
        "samples",
        "tokens",
    )

    def __init__(self, request: Request, arrival: int, root_key: bytes) -> None:
        self.request = request
        self.samples: tuple[int, ...] = tuple(range(request.num_samples))
        self.rank: Rank = (request.priority, arrival, 0)
        self.tokens = list(request.prompt)
        self.num_computed = 0
        self.pages: list[int] = []
        self.num_sealed = 0
        # The last page is only partly filled, and other samples may hold it too.
        self.is_tail_shared = False
        self.is_running = False
        # Prompt tokens found in the prefix cache at the first admission; None before.
        self.num_cached: int | None = None
        self._keys = [root_key]
        self._needs_history = request.sampling.needs_history
        # Asked for with every token: made once.
        is_banning = request.min_tokens > 0 and request.guide is None
        self._banned = tuple(sorted(request.end_tokens)) if is_banning else ()

    @property
    def spec_key(self) -> Key:
        """What drafters know it by, once it is one sample."""
        return self.request.id, self.samples[0]

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    def key(self, index: int, page_tokens: int) -> bytes:
        """The key of its page `index`, whose tokens are all there.

        Tokens are only ever appended, so a key that was computed once holds for good.
        """
        known = self._keys
        while len(known) <= index + 1:
            start = (len(known) - 1) * page_tokens
            known.append(keys.next_key(known[-1], self.tokens[start : start + page_tokens]))
        return known[index + 1]

    def chunk(
        self,
        count: int,
        page_tokens: int,
        draft: Draft = NO_DRAFT,
        allowed: tuple[bytes, ...] = (),
    ) -> Chunk:
        """Its next `count` tokens, and draws where those are all: for the draft's tokens too.

        `allowed`: what may be drawn from each row that is drawn from; () for everything.
        """
        start, tokens = self.num_computed, self.tokens
        end = start + count
        if end < len(tokens):
            pages = self.pages[: -(-end // page_tokens)]
            return Chunk(start, tuple(tokens[start:end]), tuple(pages))
        drafted = draft.tokens
        pages = self.pages[: -(-(end + len(drafted)) // page_tokens)]
        allowed = allowed or (b"",) * (len(drafted) + 1)
        draws = self._draws(count - 1, allowed[0])
        if drafted:
            draws += self._draws_after(draft, allowed)
        if draft.proposals:
            draws = (
                *(
                    replace(draw, drafted=token, proposal=proposal)
                    for draw, token, proposal in zip(draws, drafted, draft.proposals, strict=False)
                ),
                draws[-1],
            )
        return Chunk(
            start,
            (*tokens[start:], *drafted),
            tuple(pages),
            draws,
            verify.parents(draft),
        )

    def num_prompt_in(self, count: int) -> int:
        """How many of its next `count` tokens are its prompt's."""
        return min(count, max(0, len(self.request.prompt) - self.num_computed))

    def subject(self, sample: int) -> Subject:
        """One of its samples as drafters see it."""
        request = self.request
        key = (request.id, sample)
        sampling = request.sampling
        # A guide cuts a draft by its tokens, and that is allowed only where none was drawn.
        temperature = sampling.temperature if request.guide is None else 0.0
        tenant = self._keys[0]
        return Subject(key, request.prompt, request.prediction, tenant, temperature, sampling.seed)

    def room(self, max_context: int) -> int:
        """How many tokens of a draft could become its own before the last one that may follow."""
        num_left = self.request.max_tokens - self.num_generated
        return min(num_left, max_context - len(self.tokens)) - 1

    def _draws(self, row: int, allowed: bytes) -> tuple[Draw, ...]:
        """The next token of each of its samples, from the logits of one row of a chunk."""
        request = self.request
        position = len(self.tokens)
        history = tuple(self.tokens) if self._needs_history else ()
        banned = self._banned_at(position)
        num_prompt = len(request.prompt)
        return tuple(
            Draw(row, position, sample, request.sampling, history, num_prompt, banned, allowed)
            for sample in self.samples
        )

    def _draws_after(self, draft: Draft, allowed: tuple[bytes, ...]) -> tuple[Draw, ...]:
        """What follows each token of a draft, as if that and those before it were the answer."""
        request, sample, num_tokens = self.request, self.samples[0], len(self.tokens)
        num_prompt = len(request.prompt)
        history: tuple[int, ...] = ()
        before = verify.prefixes(draft) if self._needs_history else ()
        draws = []
        for row, depth in enumerate(verify.depths(draft)[1:], 1):
            if before:
                history = (*self.tokens, *before[row])
            position = num_tokens + depth
            banned = self._banned_at(position)
            terms = (request.sampling, history, num_prompt, banned, allowed[row])
            draws.append(Draw(row, position, sample, *terms))
        return tuple(draws)

    def _banned_at(self, position: int) -> tuple[int, ...]:
        is_short = position - len(self.request.prompt) < self.request.min_tokens
        return self._banned if is_short else ()

    def finish_at(self, token: int, max_context: int) -> FinishReason | None:
        """Whether its next token is its last one."""
        if token in self.request.end_tokens:
            return FinishReason.STOP
        num_tokens = len(self.tokens) + 1
        if num_tokens - len(self.request.prompt) >= self.request.max_tokens:
            return FinishReason.LENGTH
        return FinishReason.LENGTH if num_tokens >= max_context else None

    def take(self, chunk: Chunk, draft: Draft, sampled: Seq[Sampled], max_context: int) -> Taken:
        """Append what was drawn after its last token, through the draft and one further.

        At the first token that ends the answer everything after it is dropped: a stop inside the
        limit ends it with that reason. That token itself is not appended.
        """
        path = verify.path(draft, [one.token for one in sampled])
        progress: list[Progress] = []
        finish, flaw = None, ""
        for row in path:
            token, flaw = sampled[row].token, sampled[row].flaw
            if flaw:
                break
            finish = self.finish_at(token, max_context)
            progress.append(Progress(*self.spec_key, sampled[row], finish, self.num_cached or 0))
            if finish is not None:
                break
            self.tokens.append(token)
        count = len(progress)
        # The first draw is at the last token of its own.
        self.num_computed = chunk.start + chunk.draws[0].row + count
        return Taken(progress, finish, path[:count], min(count, len(path) - 1), flaw)

    def keep_samples(self, samples: tuple[int, ...]) -> None:
        """It stands for these alone from now on."""
        self.samples = samples
        self.rank = (*self.rank[:2], samples[0])

    def fork(self, sample: int) -> "Sequence":
        """One of its samples as a sequence with the same tokens and no pages yet."""
        made = Sequence(self.request, self.rank[1], self._keys[0])
        made._keys = self._keys.copy()
        made.num_cached = self.num_cached
        made.keep_samples((sample,))
        return made
