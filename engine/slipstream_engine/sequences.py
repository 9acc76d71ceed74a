"""A sequence: one sample of a request and how far it is; knows no queues and no pools of pages."""

from slipstream_engine.batch import Draw
from slipstream_engine.request import FinishReason, Request
from slipstream_kvstore import keys

# Where a sequence stands among others, smallest first: (priority, arrival, sample).
Rank = tuple[int, int, int]


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
        self._banned = tuple(sorted(request.end_tokens)) if request.min_tokens > 0 else ()

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

    def draws(self, row: int) -> tuple[Draw, ...]:
        """The next token of each of its samples, from the logits of one row of a chunk."""
        request = self.request
        position = len(self.tokens)
        history = tuple(self.tokens) if self._needs_history else ()
        num_prompt = len(request.prompt)
        is_short = position - num_prompt < request.min_tokens
        banned = self._banned if is_short else ()
        return tuple(
            Draw(row, position, sample, request.sampling, history, num_prompt, banned)
            for sample in self.samples
        )

    def finish_at(self, token: int, max_context: int) -> FinishReason | None:
        """Whether its next token is its last one."""
        if token in self.request.end_tokens:
            return FinishReason.STOP
        num_tokens = len(self.tokens) + 1
        if num_tokens - len(self.request.prompt) >= self.request.max_tokens:
            return FinishReason.LENGTH
        return FinishReason.LENGTH if num_tokens >= max_context else None

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
