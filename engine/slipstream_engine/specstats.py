"""What drafts gave one answer, under the names of vLLM's per-request metrics.

Without those of a fixed draft length: here a length is chosen for every step.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from slipstream_engine.spec.speculation import Outcome

Detail = Literal["none", "summary", "detailed"]


class Speculative(Struct):
    """`acceptance_histogram[k]`: steps of which k drafted tokens became output."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_steps_by_drafter: dict[str, int]
    num_accepted_draft_tokens_by_drafter: dict[str, int]
    per_step_accepted: list[int] | UnsetType = UNSET
    per_step_drafted: list[int] | UnsetType = UNSET


class Metrics(Struct):
    """null where nothing was drafted: no length is no length of 1."""

    speculative_decoding: Speculative | None


def metrics(outcomes: Sequence[Outcome], detail: Detail) -> Metrics | UnsetType:
    if detail == "none":
        return UNSET
    if not outcomes:
        return Metrics(None)
    accepted = [one.num_accepted for one in outcomes]
    drafted = [one.num_drafted for one in outcomes]
    counts = Counter(accepted)
    steps: Counter[str] = Counter(one.source for one in outcomes)
    by_drafter: Counter[str] = Counter()
    for one in outcomes:
        by_drafter[one.source] += one.num_accepted
    is_detailed = detail == "detailed"
    return Metrics(
        Speculative(
            mean_acceptance_length=1 + sum(accepted) / len(outcomes),
            draft_acceptance_rate=sum(accepted) / sum(drafted),
            acceptance_histogram=[counts[length] for length in range(max(accepted) + 1)],
            num_spec_steps=len(outcomes),
            num_accepted_draft_tokens=sum(accepted),
            num_draft_tokens=sum(drafted),
            num_spec_steps_by_drafter=dict(sorted(steps.items())),
            num_accepted_draft_tokens_by_drafter=dict(sorted(by_drafter.items())),
            per_step_accepted=accepted if is_detailed else UNSET,
            per_step_drafted=drafted if is_detailed else UNSET,
        )
    )
