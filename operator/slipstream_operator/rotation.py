"""The rotation of a namespace's internal token: one step at a time, at most two valid keys. Pure.

    {current: A} ─► {current: A, next: B} ─► {current: B, previous: A} ─► {current: B}
              age                       settle                       settle

Senders send `current`; receivers accept every key that they find. They find it in files that the
kubelet brings up to date some time after the Secret has changed, so between two steps lies the
longest time that this may take. Where a rotation stands is written in the Secret alone: whichever
operator is next goes on with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from slipstream_api import names
from slipstream_operator import documents

_CURRENT, _NEXT, _PREVIOUS = names.TOKEN_KEYS


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. `rotate_after_s` None: a key is valid for ever."""

    rotate_after_s: int | None
    settle_s: int


@dataclass(frozen=True, slots=True)
class Keys:
    """The Secret's `data` (base64 as it is there), and when the last step was taken."""

    data: Mapping[str, str]
    stepped_at: str | None


@dataclass(frozen=True, slots=True)
class Turn:
    """The keys from now on, and when to look again (None: only after a change)."""

    keys: Keys
    due_after_s: float | None


def advance(keys: Keys, pace: Pace, fresh: str, now: datetime) -> Turn:
    """At most one step; without keys, the first one. `fresh`: a key that nobody has seen yet."""
    data = {key: keys.data[key] for key in names.TOKEN_KEYS if keys.data.get(key)}
    if _CURRENT not in data:
        first = Keys({_CURRENT: fresh}, documents.format_time(now))
        return Turn(first, pace.rotate_after_s)
    wait_s = _wait_s(data, pace)
    if wait_s is None:
        return Turn(Keys(data, keys.stepped_at), None)
    age_s = documents.seconds_since(keys.stepped_at, now)
    stepped = Keys(data, documents.format_time(now))
    if age_s is None or age_s < 0:
        # No time, or one by a clock that was wrong: the wait begins anew, which is always safe.
        return Turn(stepped, wait_s)
    if age_s < wait_s:
        return Turn(Keys(data, keys.stepped_at), wait_s - age_s)
    if _NEXT in data:
        data = {_CURRENT: data[_NEXT], _PREVIOUS: data[_CURRENT]}
    elif _PREVIOUS in data:
        data = {_CURRENT: data[_CURRENT]}
    else:
        data = {_CURRENT: data[_CURRENT], _NEXT: fresh}
    return Turn(replace(stepped, data=data), _wait_s(data, pace))


def _wait_s(data: Mapping[str, str], pace: Pace) -> float | None:
    """How long these keys stay as they are; a rotation that has begun always ends."""
    return pace.rotate_after_s if set(data) == {_CURRENT} else pace.settle_s
