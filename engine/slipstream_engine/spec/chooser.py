"""Which drafter drafts: for each sequence and step the one of whose draft most is expected.

It is a `Drafter` made of drafters. All of them learn what was committed, whoever drafted. One that
fails is no reason to fail a request: that goes on with the others' drafts. Failures are counted.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from slipstream_engine.spec import lengths
from slipstream_engine.spec.acceptance import Acceptance
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Drafter, FeatureDrafter, Key, Subject
from slipstream_engine.spec.lengths import CostTable

# A drafter that costs time and is expected to bring too little is not asked, and shows nothing. In
# one of so many sequences it is asked all the same, for one token in each of the first steps: who
# was bad for an hour is found again, and one that is better than was thought at all.
_PROBE_SEQUENCES, _PROBE_STEPS = 16, 8
# Of a failure: the drafter's name, the sequence, the exception.
Report = Callable[[str, Key, Exception], None]


@dataclass(frozen=True, slots=True)
class Member:
    """A drafter, and what drafting a token costs as a share of a step of the target.

    One that costs nothing is always asked; another one only for sequences in which its draft will
    probably be worth its time. `chance`: that its tokens are accepted, before any was seen.
    """

    drafter: Drafter
    cost: float = 0.0
    chance: float = 0.6


class DraftError(ValueError):
    """What a drafter answered is no draft."""


class Chooser:
    """The drafters, in the order in which they go first when the same is expected of them."""

    name = "chooser"

    def __init__(
        self,
        members: Sequence[Member],
        report: Report | None = None,
        cost: CostTable | None = None,
    ) -> None:
        """`cost`: of the target's steps; None: to verify costs nothing."""
        self._members = tuple(members)
        self._report = report
        self._cost = cost
        self._is_dear = any(member.cost for member in members)
        self._acceptance = Acceptance()
        # Which drafter, by its name, has failed for which sequence: it is left alone there.
        self._failed: set[tuple[str, Key]] = set()
        # What was offered for the step that is under way, as its drafter gave it and corrected.
        self._offered: dict[Key, tuple[Draft, Draft]] = {}
        # Sequences on probe, and for how many steps more.
        self._probes: dict[Key, int] = {}
        self._num_started = 0
        # By the drafter's name; they only ever grow.
        self.num_failures: Counter[str] = Counter()

    @property
    def features(self) -> tuple[int, ...]:
        return tuple(sorted({it for one in self._members for it in one.drafter.features}))

    def start(self, subject: Subject) -> None:
        self._acceptance.start(subject.key)
        if self._num_started % _PROBE_SEQUENCES == 0:
            self._probes[subject.key] = _PROBE_STEPS
        self._num_started += 1
        for member in self._members:
            self._guarded(member.drafter, subject.key, member.drafter.start, subject)

    def prefill(self, request_id: str, start: int, features: object) -> None:
        for member in self._members:
            if isinstance(member.drafter, FeatureDrafter) and member.drafter.features:
                key = (request_id, 0)
                self._guarded(
                    member.drafter, key, member.drafter.prefill, request_id, start, features
                )

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        """Their estimates are corrected by what was accepted so far."""
        best = [(NO_DRAFT, NO_DRAFT)] * len(asked)
        expected = [0.0] * len(asked)
        shares = self._shares(asked)
        # With less a batch that does not draft would not begin to: nothing would be verified.
        rates = [lengths.WORTH_RATE] * len(asked)
        for member in self._members:
            wanted: list[tuple[int, Key, int]] = []
            for index, (key, budget) in enumerate(asked):
                length = self._length(member, key, budget, rates[index], shares)
                if length > 0:
                    wanted.append((index, key, length))
            for (index, key, _), draft in zip(wanted, self._drafts(member, wanted), strict=True):
                if not draft.tokens:
                    continue
                corrected = self._acceptance.corrected(key, draft)
                # What it cost to draft is spent, whichever is taken.
                gains = lengths.reach(corrected)
                gain = sum(gains)
                if gain > expected[index]:
                    best[index], expected[index] = (draft, corrected), gain
                    if self._is_dear:
                        rates[index] = max(rates[index], _best_rate(gains, shares))
        for (key, _), offered in zip(asked, best, strict=True):
            self._offered[key] = offered
        return [corrected for _, corrected in best]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        """Also what was drafted by nobody, or by another."""
        draft, corrected = self._offered.pop(key, (NO_DRAFT, NO_DRAFT))
        if key in self._probes:
            self._probes[key] -= 1
        if draft.tokens:
            self._acceptance.learn(key, draft, corrected, tokens)
        for member in self._members:
            drafter = member.drafter
            # Not `_guarded`: calls are a tenth of drafting for chats.
            try:
                if not self._failed or (drafter.name, key) not in self._failed:
                    drafter.commit(key, tokens, features if drafter.features else None)
            except Exception as error:
                self._fail(drafter, key, error)

    def stop(self, key: Key, finished: bool) -> None:
        """From an answer that it has not followed to its end a drafter learns nothing."""
        for member in self._members:
            drafter = member.drafter
            is_whole = finished and (drafter.name, key) not in self._failed
            try:
                drafter.stop(key, is_whole)
            except Exception as error:
                self._fail(drafter, key, error)
            self._failed.discard((drafter.name, key))
        self._offered.pop(key, None)
        self._probes.pop(key, None)
        self._acceptance.stop(key)

    def _shares(self, asked: Sequence[tuple[Key, int]]) -> list[float]:
        """What a step costs in which every sequence has so many drafted tokens, from 0 on; one
        without any is 1. Of nothing where nothing depends on it."""
        if self._cost is None or not self._is_dear:
            return []
        count = len(asked)
        longest = max((budget for _, budget in asked), default=0)
        plain_s = self._cost.step_s(count)
        return [self._cost.step_s(count * (1 + each)) / plain_s for each in range(longest + 1)]

    def _length(
        self, member: Member, key: Key, budget: int, best_rate: float, shares: Sequence[float]
    ) -> int:
        """How many tokens to ask for; 0 if there is none with which a step brings more in its time
        than `best_rate`: what was drafted so far, or nothing. Then its time would be lost."""
        if self._failed and (member.drafter.name, key) in self._failed:
            return 0
        if member.cost == 0.0:
            return budget
        best_length, gain, reached = 0, 0.0, 1.0
        for index in range(budget):
            name = member.drafter.name
            reached *= self._acceptance.chance(key, name, index, member.chance)
            gain += reached
            share = shares[index + 1] if shares else 1.0
            rate = (1.0 + lengths.CAUTION * gain) / (share + (index + 1) * member.cost)
            if rate > best_rate:
                best_length, best_rate = index + 1, rate
        if best_length == 0 and self._probes.get(key, 0) > 0:
            return min(1, budget)
        return best_length

    def _drafts(self, member: Member, wanted: Sequence[tuple[int, Key, int]]) -> list[Draft]:
        """A failure of many is asked again one by one: those it does not concern keep theirs."""
        if not wanted:
            return []
        drafter = member.drafter
        asked = [(key, length) for _, key, length in wanted]
        try:
            return _checked(drafter.propose(asked), asked)
        except Exception as error:
            if len(asked) == 1:
                self._fail(drafter, asked[0][0], error)
                return [NO_DRAFT]
        return [draft for one in wanted for draft in self._drafts(member, [one])]

    def _guarded(
        self, drafter: Drafter, key: Key, call: Callable[..., None], *arguments: object
    ) -> None:
        if (drafter.name, key) in self._failed:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._fail(drafter, key, error)

    def _fail(self, drafter: Drafter, key: Key, error: Exception) -> None:
        self._failed.add((drafter.name, key))
        self.num_failures[drafter.name] += 1
        if self._report is not None:
            self._report(drafter.name, key, error)


def _best_rate(gains: Sequence[float], shares: Sequence[float]) -> float:
    """Of a draft that cost nothing, where it is cut best."""
    brought = (1.0 + lengths.CAUTION * gain for gain in accumulate(gains))
    if not shares:
        return max(brought)
    return max(one / share for one, share in zip(brought, shares[1:], strict=False))


def _checked(drafts: list[Draft], asked: Sequence[tuple[Key, int]]) -> list[Draft]:
    """Raises DraftError for what no step could verify or nothing could be expected of."""
    if len(drafts) != len(asked):
        raise DraftError(f"{len(drafts)} drafts for {len(asked)} sequences")
    for draft, (_, budget) in zip(drafts, asked, strict=True):
        if draft is NO_DRAFT:
            continue
        count = len(draft.tokens)
        if count > budget or len(draft.accept) != count:
            raise DraftError(f"{count} tokens with {len(draft.accept)} chances, {budget} wanted")
        is_number = not math.isnan(math.fsum(draft.accept))
        if count and not (is_number and min(draft.accept) >= 0 and max(draft.accept) <= 1):
            raise DraftError(f"chances are no shares: {draft.accept}")
        is_ordered = all(-1 <= parent < index for index, parent in enumerate(draft.parents))
        if not is_ordered or len(draft.parents) not in (0, count):
            raise DraftError(f"parents not in topological order: {draft.parents}")
    return drafts
