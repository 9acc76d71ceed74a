"""What a gate asks: one check a signal, its margin, and the level at which a look answers."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slipstream_judge.signals import Kind, Signal

BASIS_POINTS: Final = 10_000


class Direction(StrEnum):
    """What canary's value may not do."""

    LOWER_IS_BETTER = "LowerIsBetter"
    HIGHER_IS_BETTER = "HigherIsBetter"
    UNCHANGED = "Unchanged"  # leave the margin to either side


class Margin(StrEnum):
    """What `margin_basis_points` is a part of."""

    RELATIVE = "Relative"  # reference's mean: 1000 is 10 % of it
    POINTS = "Points"  # the difference of two shares: 100 is one percentage point
    LIMIT = "Limit"  # canary's share alone, whatever reference does


class OnNoData(StrEnum):
    """What a gate does with a check that has too few sessions. None of them passes it."""

    HOLD = "Hold"
    ROLLBACK = "Rollback"
    PROCEED = "Proceed"  # decide by the other checks: clients may never use tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Non-inferiority of one signal. Raises ValueError where the margin cannot be tested.

    A negative margin asks for more: LOWER_IS_BETTER with -500 passes what is proved 5 % lower.
    """

    signal: Signal
    direction: Direction
    margin: Margin
    margin_basis_points: int
    min_sessions: int = 30
    on_no_data: OnNoData = OnNoData.HOLD

    def __post_init__(self) -> None:
        is_share = self.signal.kind is not Kind.POSITIVE
        if is_share == (self.margin is Margin.RELATIVE):
            allowed = "Points or Limit" if is_share else "Relative"
            raise ValueError(f"margin: {self.signal} takes {allowed}, not {self.margin}")
        is_unchanged = self.direction is Direction.UNCHANGED
        if self.margin is Margin.LIMIT and is_unchanged:
            raise ValueError("direction: a limit has one side")
        least = 0 if self.margin is Margin.LIMIT or is_unchanged else -BASIS_POINTS
        if not least < self.margin_basis_points < BASIS_POINTS:
            raise ValueError(f"marginBasisPoints: {self.margin_basis_points} is out of range")
        if self.min_sessions < 2:
            raise ValueError(f"minSessions: {self.min_sessions} is less than 2")

    def allowed(self) -> tuple[float, float]:
        """Between which values the comparison must lie: a log ratio, a difference, or a share."""
        above = self.margin_basis_points / BASIS_POINTS
        below = above if self.margin is Margin.LIMIT else -above
        if self.margin is Margin.RELATIVE:
            below, above = math.log1p(below), math.log1p(above)
        return (
            -math.inf if self.direction is Direction.LOWER_IS_BETTER else below,
            math.inf if self.direction is Direction.HIGHER_IS_BETTER else above,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The terms of one look at a gate; the same ones at each look of a gate.

    `alpha_basis_points`: the gate's level. `canary_share_basis_points`: canary's part of the
    sessions of both arms by the weights in force; None where no weights split them.
    """

    num_checks: int
    canary_share_basis_points: int | None
    alpha_basis_points: int = 500

    def __post_init__(self) -> None:
        if self.num_checks < 1:
            raise ValueError("a gate has at least one check")
        share = self.canary_share_basis_points
        if share is not None and not 0 < share < BASIS_POINTS:
            raise ValueError(f"canaryShareBasisPoints: {share} leaves an arm empty")
        if not 0 < self.alpha_basis_points < BASIS_POINTS / 2:
            raise ValueError(f"alphaBasisPoints: {self.alpha_basis_points} is out of range")

    def levels(self, direction: Direction) -> tuple[float, float]:
        """Of the lower and the upper bound of one check.

        Any check may fail the gate, so they share the level; a gate passes only when all its checks
        do, so the one that should not have has the level alone (intersection-union test).
        """
        to_pass = self.alpha_basis_points / BASIS_POINTS
        to_fail = to_pass / self.num_checks
        # Unchanged: either side may fail it.
        return {
            Direction.LOWER_IS_BETTER: (to_fail, to_pass),
            Direction.HIGHER_IS_BETTER: (to_pass, to_fail),
        }.get(direction, (to_fail / 2, to_fail / 2))
