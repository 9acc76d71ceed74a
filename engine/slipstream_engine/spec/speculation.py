"""What the scheduler knows of speculation: drafts of a length that pays, and their outcomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slipstream_engine.spec import lengths, verify
from slipstream_engine.spec.draft import (
    NO_DRAFT,
    Draft,
    Drafter,
    FeatureDrafter,
    Key,
    Subject,
)
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


# A sequence for which nothing was worth verifying for some steps is drafted for only every few,
# until something is. Eight chats of a 135M model with nothing to draft from, of a step of 18 ms:
# 0.28 ms are spent beside the model without drafters, 0.85 with them, 0.53 when they rest.
REST_STEPS = 4


@dataclass(slots=True)
class _Told:
    """What the drafter knows of. `num_vain`: steps in a row in which nothing was worth verifying;
    `is_resting`: in the step that is under way; `held`: what became output meanwhile."""

    can_rest: bool
    num_vain: int = 0
    is_resting: bool = False
    held: list[int] = field(default_factory=list)

    def begin(self, patience_steps: int) -> None:
        """A step."""
        over = self.num_vain - patience_steps
        self.is_resting = self.can_rest and over >= 0 and over % REST_STEPS != REST_STEPS - 1


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
        num_failures: Callable[[], Mapping[str, int]] = dict,
        patience_steps: int = 8,
    ) -> None:
        """`cost`: what steps take here; None: drafts are verified whole, whatever that costs.

        `clock`: in seconds, for how long drafting took. `synthetic`: what counts as accepted in a
        load test, whatever was drawn. `forget`: takes away a tenant's past answers. `num_failures`:
        so far, of each drafter that failed.
        """
        self._drafter = drafter
        self._max_draft_tokens = max_draft_tokens
        self._cost = cost
        self._patience_steps = patience_steps
        self._mode = lengths.START
        self.synthetic = synthetic
        self._forget = forget
        self._num_failures = num_failures
        # What was not told yet: the subject and its output so far.
        self._untold: dict[Key, tuple[Subject, list[int]]] = {}
        self._told: dict[Key, _Told] = {}
        # Requests of whose prompt a drafter was told and whose answer has not begun.
        self._read: set[str] = set()
        self._outcomes: list[Outcome] = []
        self._clock = clock
        self._draft_s = 0.0

    def start(self, subject: Subject, tokens: Sequence[int]) -> None:
        """A sequence and its output so far."""
        self._read.discard(subject.key[0])
        self._untold[subject.key] = (subject, list(tokens))

    @property
    def features(self) -> tuple[int, ...]:
        """Residual boundaries that the target must give."""
        return self._drafter.features

    def prefill(self, request_id: str, start: int, features: object) -> None:
        """What the target made of a part of a prompt."""
        if isinstance(self._drafter, FeatureDrafter):
            self._read.add(request_id)
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
        drafts = self._proposed(asked)
        if legal is not None:
            drafts = [legal(key, draft) for (key, _), draft in zip(asked, drafts, strict=True)]
        if any(draft.tokens for draft in drafts):
            counts = self._lengths(drafts, other_tokens, max_tokens)
            drafts = [verify.cut(one, count) for one, count in zip(drafts, counts, strict=True)]
        for (key, _), draft in zip(asked, drafts, strict=True):
            told = self._told[key]
            told.num_vain = 0 if draft.tokens else told.num_vain + 1
        self._draft_s += self._clock() - began_s
        return drafts

    def _proposed(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        """None for those that rest: their drafter is not asked, nor told what was said."""
        awake: list[tuple[Key, int]] = []
        for key, room in asked:
            if key in self._untold:
                self._tell(key)
            told = self._told[key]
            told.begin(self._patience_steps)
            if not told.is_resting:
                self._catch_up(key, told)
                awake.append((key, min(room, self._max_draft_tokens)))
        if not awake:
            return [NO_DRAFT] * len(asked)
        found = self._drafter.propose(awake)
        if len(awake) == len(asked):
            return found
        by_key = {key: draft for (key, _), draft in zip(awake, found, strict=True)}
        return [by_key.get(key, NO_DRAFT) for key, _ in asked]

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
        elif (told := self._told.get(key)) is not None:
            began_s = self._clock()
            if told.is_resting:
                told.held.extend(tokens)
            else:
                self._drafter.commit(key, tokens, features)
            self._draft_s += self._clock() - began_s

    def stop(self, key: Key, *, finished: bool) -> None:
        """Its output is whole, or nobody wants it any more; one that never started is no error."""
        if finished and key in self._untold:
            self._tell(key)
        self._untold.pop(key, None)
        told = self._told.pop(key, None)
        # Also where it was preempted, and its prompt told again.
        is_read = key[0] in self._read
        self._read.discard(key[0])
        if told is not None:
            if finished:
                self._catch_up(key, told)
            self._drafter.stop(key, finished)
        elif is_read:
            self._drafter.stop(key, False)

    def forget(self, tenant: bytes) -> None:
        """Nothing is drafted any more from what a tenant was answered so far, or is just now."""
        said = [key for key, (subject, _) in self._untold.items() if subject.tenant == tenant]
        for key in said:
            # Who takes answers away must know of those that have begun.
            self._tell(key)
        self._forget(tenant)

    def take_outcomes(self) -> tuple[Outcome, ...]:
        """Of all drafts since this was last asked."""
        outcomes, self._outcomes = tuple(self._outcomes), []
        return outcomes

    def num_failures(self) -> dict[str, int]:
        """Of each drafter that failed, so far."""
        return dict(self._num_failures())

    def take_draft_s(self) -> float:
        """How long drafting took since this was last asked."""
        draft_s, self._draft_s = self._draft_s, 0.0
        return draft_s

    def _tell(self, key: Key) -> None:
        """One whose answer is predicted never rests: where it parted from that, each step counts.
        Nor where lengths are not chosen, or the drafter is told of every step's features.
        """
        subject, tokens = self._untold.pop(key)
        is_bound = bool(subject.prediction or self._drafter.features)
        self._told[key] = _Told(can_rest=self._cost is not None and not is_bound)
        self._drafter.start(subject)
        self._drafter.commit(key, tokens)

    def _catch_up(self, key: Key, told: _Told) -> None:
        if told.held:
            self._drafter.commit(key, told.held)
            told.held = []
