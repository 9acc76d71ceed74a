"""How far each guided sequence is, and what may follow there; the rank's side of guides.

A draft is walked with the sequence's own matcher and rolled back at the end, so that only
`commit` moves it.
"""

from collections.abc import Callable, Iterable, Sequence

from llguidance import LLMatcher

from slipstream_engine.guides.compiled import Compiler, MaskBuffer
from slipstream_engine.guides.spec import Guide
from slipstream_engine.spec.draft import Draft, Key

# Where a sequence is; 0 and more: in reasoning, of whose end the last so many tokens are a part.
_CONTENT = -1
_OPENING = -2
_OVER = -3


class _BrokenError(Exception):
    """The library ran into one of its limits, or refuses what it allowed before."""


class _Terms:
    """What a request says of its answer's form, and its matcher at the beginning.

    Sets of tokens are integers: bit t for token t.
    """

    def __init__(
        self,
        guide: Guide,
        end_tokens: Iterable[int],
        min_tokens: int,
        size: int,
        beginning: LLMatcher,
        buffer: MaskBuffer,
    ) -> None:
        self.guide = guide
        self.min_tokens = min_tokens
        self.size = size
        self.beginning = beginning
        self.buffer = buffer
        self.end_tokens = frozenset(token for token in end_tokens if token < size)
        self.ends = sum(1 << token for token in self.end_tokens)
        self.all = (1 << size) - 1
        self.opening = 0 if guide.opening is None else 1 << guide.opening

    def packed(self, tokens: int) -> bytes:
        return tokens.to_bytes(-(-self.size // 8), "little")


class Matchers:
    """`Guides`, by the library."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._terms: dict[str, _Terms] = {}
        self._guided: dict[str, dict[int, _Guided]] = {}
        self._failures: dict[str, str] = {}
        # Made when the vocabulary is known for certain.
        self._buffer: MaskBuffer | None = None

    def start(
        self, request_id: str, guide: Guide, end_tokens: frozenset[int], min_tokens: int
    ) -> None:
        beginning = self._compiler.compiled(guide)
        size = self._compiler.vocabulary_size
        if self._buffer is None:
            self._buffer = MaskBuffer(size)
        self._terms[request_id] = _Terms(
            guide, end_tokens, min_tokens, size, beginning, self._buffer
        )
        self._guided[request_id] = {}

    def legal(self, key: Key, draft: Draft) -> Draft:
        guided = self._find(key)
        if guided is not None and draft.tokens:
            try:
                return _with(draft, guided.legal(draft))
            except _BrokenError as error:
                self._fail(key, error)
        return draft

    def masks(self, key: Key, draft: Draft) -> tuple[bytes, ...]:
        guided = self._find(key)
        if guided is not None:
            try:
                return tuple(guided.masks(draft))
            except _BrokenError as error:
                self._fail(key, error)
        return (b"",) * (len(draft.tokens) + 1)

    def commit(self, key: Key, tokens: Sequence[int]) -> None:
        guided = self._find(key)
        if guided is not None:
            try:
                guided.commit(tokens)
            except _BrokenError as error:
                self._fail(key, error)

    def stop(self, request_id: str) -> None:
        self._terms.pop(request_id, None)
        self._guided.pop(request_id, None)

    @property
    def num_requests(self) -> int:
        return len(self._terms)

    def take_failures(self) -> dict[str, str]:
        failures, self._failures = self._failures, {}
        return failures

    def _find(self, key: Key) -> "_Guided | None":
        """Samples part at their first token: until one is asked for, the beginning is its state."""
        request_id, sample = key
        samples = self._guided.get(request_id)
        if samples is None:
            return None
        if sample not in samples:
            samples[sample] = _Guided(self._terms[request_id])
        return samples[sample]

    def _fail(self, key: Key, error: _BrokenError) -> None:
        request_id = key[0]
        self.stop(request_id)
        self._failures[request_id] = str(error)


class _Guided:
    """One sample of a guided request."""

    def __init__(self, terms: _Terms) -> None:
        guide = terms.guide
        self._terms = terms
        self._matcher = terms.beginning.deep_copy()
        self._num_tokens = 0
        self._phase = _CONTENT
        if guide.begins_after:
            self._phase = 0 if guide.opening is None else _OPENING

    def legal(self, draft: Draft) -> list[int]:
        """Which of the draft's tokens may stand there, in the draft's order."""
        found: list[int] = []
        self._walk(draft, lambda index, phase, depth: found.append(index))
        return sorted(found)

    def masks(self, draft: Draft) -> list[bytes]:
        rows = [self._mask(self._phase, 0)]
        rows += [b""] * len(draft.tokens)

        def fill(index: int, phase: int, depth: int) -> None:
            rows[index + 1] = self._mask(phase, depth)

        self._walk(draft, fill)
        if b"" in rows:
            raise _BrokenError("a draft was not cut where it is not legal")
        return rows

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._phase, _ = self._step(self._phase, token)
        self._num_tokens += len(tokens)

    def _walk(self, draft: Draft, visit: Callable[[int, int, int], None]) -> None:
        """Visit the legal tokens of a draft, each after its parent: index, phase after it, depth.

        The matcher stands behind the token meanwhile, and where it was at the end.
        """
        if not draft.tokens:
            return
        children: list[list[int]] = [[] for _ in range(len(draft.tokens) + 1)]
        for index in reversed(range(len(draft.tokens))):
            children[draft.parent(index)].append(index)
        # From the sequence's last token to the current one: index, phase, consumed tokens.
        trail = [(-1, self._phase, 0)]
        to_visit = children[-1]
        try:
            while to_visit:
                index = to_visit.pop()
                while trail[-1][0] != draft.parent(index):
                    self._roll_back(trail.pop()[2])
                phase, token, depth = trail[-1][1], draft.tokens[index], len(trail)
                if self._may_follow(phase, token, depth - 1):
                    phase, num_consumed = self._step(phase, token)
                    trail.append((index, phase, num_consumed))
                    visit(index, phase, depth)
                    to_visit += children[index]
        finally:
            self._roll_back(sum(consumed for _, _, consumed in trail))

    def _may_follow(self, phase: int, token: int, depth: int) -> bool:
        if phase == _OVER:
            return False
        if phase >= 0:
            return token not in self._terms.end_tokens
        if phase == _OPENING and token == self._terms.guide.opening:
            return True
        if token in self._terms.end_tokens:
            return _has(self._mask(phase, depth), token)
        return 0 <= token < self._terms.size and self._checked(
            self._matcher.validate_tokens([token]) == 1
        )

    def _step(self, phase: int, token: int) -> tuple[int, int]:
        """The phase after one more token, and how many tokens the matcher took."""
        guide = self._terms.guide
        if phase == _OPENING:
            if token == guide.opening:
                return 0, 0
            phase = _CONTENT
        if phase >= 0 and token != guide.call:
            matched = _matched(guide.begins_after, phase, token)
            return (_CONTENT if matched == len(guide.begins_after) else matched), 0
        if phase == _OVER or token in self._terms.end_tokens:
            return _OVER, 0
        if not self._matcher.consume_token(token):
            raise _BrokenError(self._matcher.get_error())
        return _CONTENT, 1

    def _roll_back(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._checked(True)

    def _checked(self, answer: bool) -> bool:
        if self._matcher.is_error():
            raise _BrokenError(self._matcher.get_error())
        return answer

    def _mask(self, phase: int, depth: int) -> bytes:
        """What may come after so many tokens of a draft."""
        terms = self._terms
        if phase >= 0:
            # An answer that ends in its reasoning has no content.
            return terms.packed(terms.all & ~terms.ends)
        if phase == _OVER:
            return self._with_ends(0, depth, may_end=True)
        mask = terms.buffer.mask(self._matcher)
        self._checked(True)
        may_end = _has(mask, terms.size)
        is_short = self._num_tokens + depth < terms.min_tokens
        if not may_end and not is_short and phase == _CONTENT:
            # Nearly always: as it came.
            return mask
        allowed = int.from_bytes(mask, "little") & terms.all
        if phase == _OPENING:
            allowed |= terms.opening
        return self._with_ends(allowed, depth, may_end=may_end)

    def _with_ends(self, allowed: int, depth: int, *, may_end: bool) -> bytes:
        """End tokens are among the others where a client named one that is text."""
        terms = self._terms
        others = allowed & ~terms.ends
        if others and self._num_tokens + depth < terms.min_tokens:
            allowed = others
        elif may_end and not (others and terms.guide.is_patient):
            allowed |= terms.ends
        if not allowed:
            raise _BrokenError("nothing may follow, and there is no token to end the answer with")
        return terms.packed(allowed)


def _has(mask: bytes, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)


def _matched(pattern: tuple[int, ...], num_matched: int, token: int) -> int:
    """How much of the pattern's beginning the text ends with, one token later."""
    seen = (*pattern[:num_matched], token)
    return next(
        length
        for length in range(len(seen), -1, -1)
        if seen[len(seen) - length :] == pattern[:length]
    )


def _with(draft: Draft, kept: list[int]) -> Draft:
    """The draft with some of its tokens, whose parents are among them."""
    if len(kept) == len(draft.tokens):
        return draft
    places = {-1: -1, **{index: place for place, index in enumerate(kept)}}
    return Draft(
        tokens=tuple(draft.tokens[index] for index in kept),
        parents=tuple(places[draft.parents[index]] for index in kept) if draft.parents else (),
        accept=tuple(draft.accept[index] for index in kept) if draft.accept else (),
        source=draft.source,
        proposals=tuple(draft.proposals[index] for index in kept) if draft.proposals else (),
    )
