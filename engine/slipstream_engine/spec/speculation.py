"""What the scheduler knows of speculation: drafts of a length that pays, and their outcomes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream_engine.spec import lengths, verify
from slipstream_engine.spec.draft import Draft, Drafter, FeatureDrafter, Key, Subject
from slipstream_engine.spec.lengths import CostTable
from slipstream_engine.spec.synthetic import Synthetic


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one draft: how many tokens were verified, and how many became output."""

    request_id: str
    sample: int
    source: str
    num_drafted: int
    num_accepted: int


class Speculation:
    """Sequences start and stop; in between, drafts are asked for and what became of them is told.

    A sequence is told to the drafter when a draft of it is first asked for: the step that gave it
    its first token has been sent by then.
    """

    def __init__(
        self,
        drafter: Drafter,
        max_draft_tokens: int,
        cost: CostTable | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        synthetic: Synthetic | None = None,
        forget: Callable[[bytes], None] = lambda tenant: None,
    ) -> None:
        """`cost`: what steps take here; None: drafts are verified whole, whatever that costs.

        `clock`: in seconds, for how long drafting took. `synthetic`: what counts as accepted in a
        load test, whatever was drawn. `forget`: takes away a tenant's past answers.
        """
        self._drafter = drafter
        self._max_draft_tokens = max_draft_tokens
        self._cost = cost
        self._mode = lengths.START
        self.synthetic = synthetic
        self._forget = forget
        # What was not told yet: the subject and its output so far.
        self._untold: dict[Key, tuple[Subject, list[int]]] = {}
        self._told: set[Key] = set()
        self._outcomes: list[Outcome] = []
        self._clock = clock
        self._draft_s = 0.0

    def start(self, subject: Subject, tokens: Sequence[int]) -> None:
        """A sequence and its output so far."""
        self._untold[subject.key] = (subject, list(tokens))

    @property
    def features(self) -> tuple[int, ...]:
        """Residual boundaries that the target must give."""
        return self._drafter.features

    def prefill(self, request_id: str, start: int, features: object) -> None:
        """What the target made of a part of a prompt."""
        if isinstance(self._drafter, FeatureDrafter):
            self._drafter.prefill(request_id, start, features)

    def propose(
        self,
        asked: Sequence[tuple[Key, int]],
        other_tokens: int,
        max_tokens: int,
        legal: Callable[[Key, Draft], Draft] | None = None,
    ) -> list[Draft]:
        """For each sequence a draft of at most so many tokens, at most `max_tokens` together.

        `other_tokens`: of prompts in the same step. `legal` takes away what may not stand there.
        """
        began_s = self._clock()
        for key, _ in asked:
            if key in self._untold:
                self._tell(key)
        largest = self._max_draft_tokens
        drafts = self._drafter.propose([(key, min(room, largest)) for key, room in asked])
        if legal is not None:
            drafts = [legal(key, draft) for (key, _), draft in zip(asked, drafts, strict=True)]
        if any(draft.tokens for draft in drafts):
            counts = self._lengths(drafts, other_tokens, max_tokens)
            drafts = [verify.cut(one, count) for one, count in zip(drafts, counts, strict=True)]
        self._draft_s += self._clock() - began_s
        return drafts

    def _lengths(self, drafts: list[Draft], other_tokens: int, max_tokens: int) -> Sequence[int]:
        if self._cost is not None:
            candidates = [lengths.reach(draft) for draft in drafts]
            chosen = lengths.choose(candidates, self._cost, self._mode, other_tokens, max_tokens)
            self._mode = chosen.mode
            return chosen.lengths
        counts: list[int] = []
        for draft in drafts:
            counts.append(min(len(draft.tokens), max_tokens))
            max_tokens -= counts[-1]
        return counts

    def commit(
        self,
        key: Key,
        tokens: Sequence[int],
        draft: Draft,
        num_accepted: int,
        features: object | None = None,
    ) -> None:
        """What became output of a sequence in a step, of which the first were in its draft."""
        if draft.tokens:
            outcome = Outcome(*key, draft.source, len(draft.tokens), num_accepted)
            self._outcomes.append(outcome)
        if key in self._untold and features is not None:
            self._tell(key)
        if key in self._untold:
            self._untold[key][1].extend(tokens)
        elif key in self._told:
            began_s = self._clock()
            self._drafter.commit(key, tokens, features)
            self._draft_s += self._clock() - began_s

    def stop(self, key: Key, *, finished: bool) -> None:
        """Its output is whole, or nobody wants it any more; one that never started is no error."""
        if finished and key in self._untold:
            self._tell(key)
        self._untold.pop(key, None)
        if key in self._told:
            self._told.remove(key)
            self._drafter.stop(key, finished)

    def forget(self, tenant: bytes) -> None:
        """Nothing is drafted any more from what a tenant was answered so far."""
        self._forget(tenant)

    def take_outcomes(self) -> tuple[Outcome, ...]:
        """Of all drafts since this was last asked."""
        outcomes, self._outcomes = tuple(self._outcomes), []
        return outcomes

    def take_draft_s(self) -> float:
        """How long drafting took since this was last asked."""
        draft_s, self._draft_s = self._draft_s, 0.0
        return draft_s

    def _tell(self, key: Key) -> None:
        subject, tokens = self._untold.pop(key)
        self._told.add(key)
        self._drafter.start(subject)
        self._drafter.commit(key, tokens)
