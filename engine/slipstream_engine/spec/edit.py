"""Drafts the rest of a text that the output repeats with changes: a cursor in that text.

While the output agrees with the text the cursor moves along. Where they part, that place is kept,
and after every further token the place is looked for where they agree again. The farther away, the
more tokens must agree: a far place that looks alike is more often another one. What follows a
substitution, a deletion or an insertion lies a few tokens ahead and is found by one token.

Only ids are compared. Where a change makes the tokeniser cut the same characters differently, the
ids agree again after a token or two, as after any substitution.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from math import log2

from slipstream_engine.spec import chances, packed
from slipstream_engine.spec.draft import NO_DRAFT, Draft, Key, Subject

# How far ahead of where the texts parted one token that agrees is enough, and how far ahead two.
_ALONE_TOKENS = 8
_PAIR_TOKENS = 64
# How many must agree anywhere ahead, and behind, where a line like this one was before.
_FAR_EVIDENCE = 6
_BACK_EVIDENCE = 8
# What agrees beyond this does not decide between two places; nearness does.
_MOST_EVIDENCE = 8
# How many far places are compared.
_MOST_PLACES = 16
# A place where they part again sooner was not the right one: they still part where they did before.
_CONFIRMED_TOKENS = 4


@dataclass(slots=True)
class _Cursor:
    """`next`: the token of the text that should come next, while `is_locked`; `agreed`: how many
    have come since it was; `parted`: where the texts parted. `packed`: the text in 4 bytes a token.
    """

    text: tuple[int, ...]
    packed: bytes
    output: list[int] = field(default_factory=list)
    next: int = 0
    agreed: int = 1
    is_locked: bool = True
    parted: int = 0


class EditDrafter:
    """A `Drafter` of what a request predicts; without a prediction it drafts nothing."""

    name = "edit"
    features: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._cursors: dict[Key, _Cursor] = {}

    def start(self, subject: Subject) -> None:
        if subject.prediction:
            text = subject.prediction
            self._cursors[subject.key] = _Cursor(text, packed.pack(text))

    def propose(self, asked: Sequence[tuple[Key, int]]) -> list[Draft]:
        return [self._draft(self._cursors.get(key), budget) for key, budget in asked]

    def commit(self, key: Key, tokens: Sequence[int], features: object | None = None) -> None:
        cursor = self._cursors.get(key)
        if cursor is None:
            return
        place = _move(cursor, tokens)
        while place < len(tokens):
            if cursor.is_locked:
                cursor.is_locked = False
                if cursor.agreed > _CONFIRMED_TOKENS:
                    cursor.parted = cursor.next
            cursor.output.append(tokens[place])
            _lock(cursor, _near(cursor))
            place += 1
            if cursor.is_locked:
                place += _move(cursor, tokens[place:])
        if not cursor.is_locked:
            # Once a commit is often enough: a draft is wanted only after it.
            _lock(cursor, _far(cursor))

    def stop(self, key: Key, finished: bool) -> None:
        self._cursors.pop(key, None)

    @staticmethod
    def _draft(cursor: _Cursor | None, budget: int) -> Draft:
        if cursor is None or not cursor.is_locked:
            return NO_DRAFT
        tokens = cursor.text[cursor.next : cursor.next + budget]
        accept = chances.in_agreement(cursor.agreed, len(tokens))
        return Draft(tokens, (), accept, EditDrafter.name)


def _move(cursor: _Cursor, tokens: Sequence[int]) -> int:
    """Take the first tokens as long as they agree, and say how many did."""
    ahead = cursor.text[cursor.next : cursor.next + len(tokens)] if cursor.is_locked else ()
    pairs = enumerate(zip(tokens, ahead, strict=False))
    count = next((index for index, (said, its) in pairs if said != its), len(ahead))
    cursor.output += tokens[:count]
    cursor.next += count
    cursor.agreed += count
    return count


def _lock(cursor: _Cursor, place: int | None) -> None:
    if place is not None:
        cursor.next, cursor.agreed, cursor.is_locked = place, 1, True


def _near(cursor: _Cursor) -> int | None:
    """The best place within a short way ahead that follows the output's last token."""
    ahead = cursor.text[cursor.parted : cursor.parted + _PAIR_TOKENS]
    last, before_last = cursor.output[-1], cursor.output[-2:-1]
    places: list[int] = []
    distance = 0
    for _ in range(ahead.count(last)):
        distance = ahead.index(last, distance) + 1
        place = cursor.parted + distance
        if distance <= _ALONE_TOKENS or [cursor.text[place - 2]] == before_last:
            places.append(place)
    return _best(cursor, places)


def _far(cursor: _Cursor) -> int | None:
    """The best place anywhere that follows the output's last tokens, of which more must agree."""
    places: list[int] = []
    if len(cursor.output) >= _FAR_EVIDENCE:
        pattern = packed.pack(cursor.output[-_FAR_EVIDENCE:])
        ahead = packed.forwards(cursor.packed, pattern, cursor.parted, len(cursor.text))
        places += islice(ahead, _MOST_PLACES)
    if len(cursor.output) >= _BACK_EVIDENCE:
        pattern = packed.pack(cursor.output[-_BACK_EVIDENCE:])
        behind = packed.backwards(cursor.packed, pattern, 0, cursor.parted)
        places += islice(behind, 1)
    return _best(cursor, places)


def _best(cursor: _Cursor, places: Sequence[int]) -> int | None:
    """The place before which most agrees and which is nearest, rather ahead than behind."""
    return max(places, key=lambda place: _score(cursor, place), default=None)


def _score(cursor: _Cursor, place: int) -> float:
    """Eight times the distance outweighs nearly one token of evidence; so does lying behind."""
    distance = place - cursor.parted
    behind = 8 if distance <= 0 else 0
    return 8 * _evidence(cursor, place) - 2 * log2(1 + abs(distance)) - behind


def _evidence(cursor: _Cursor, place: int) -> int:
    """How many tokens before the place are the last ones of the output."""
    before = cursor.text[max(0, place - _MOST_EVIDENCE) : place]
    pairs = zip(reversed(before), reversed(cursor.output), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
