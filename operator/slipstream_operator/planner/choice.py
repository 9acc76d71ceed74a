"""Which layout a model gets, and for each of the others, in words, why it lost.

Of those that fit and meet the objective: the nearest tensor ranks first (so stages across islands
come before tensor ranks across islands), then the cheapest, the fewest GPUs, the fastest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream_api.modelfacts import ModelFacts
from slipstream_operator.planner import layouts
from slipstream_operator.planner.cards import Card
from slipstream_operator.planner.footprint import Use
from slipstream_operator.planner.islands import Board
from slipstream_operator.planner.layouts import Layout, Workload

Rank = tuple[int, float, int, float]


@dataclass(frozen=True, slots=True)
class Objective:
    """None: any time will do."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """`why_not` is None for the chosen layout only."""

    layout: Layout
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`chosen` is None where nothing will do; then `advice` says what comes nearest."""

    chosen: Layout | None
    rows: tuple[Judged, ...]
    advice: str | None
    notes: tuple[str, ...]


def plan(
    facts: ModelFacts,
    cards: Mapping[str, Card],
    boards: Sequence[Board],
    workload: Workload,
    objective: Objective,
    use: Use,
) -> Plan:
    found = layouts.enumerate_all(facts, cards, boards, workload, use)
    reasons = [_unfit(layout, workload, objective) for layout in found]
    able = [one for one, reason in zip(found, reasons, strict=True) if reason is None]
    chosen = min(able, key=lambda one: rank(one, cards), default=None)
    rows = []
    for layout, unfit in zip(found, reasons, strict=True):
        reason = unfit
        if reason is None and chosen is not None and layout is not chosen:
            reason = _outdone(layout, chosen, cards)
        rows.append(Judged(layout, reason))
    advice = _advice(found, workload, objective) if chosen is None else None
    return Plan(chosen, tuple(rows), advice, _notes(facts, cards, boards))


def rank(layout: Layout, cards: Mapping[str, Card]) -> Rank:
    """The smallest is the best. A card without a price comes after those that have one."""
    if layout.estimate is None:
        raise ValueError(f"a layout with a fault has no rank: {layout.fault}")
    price = cards[layout.board.card].price_per_hour_usd
    return (
        int(layout.split.tier),
        math.inf if price is None else layout.num_gpus * price,
        layout.num_gpus,
        layout.estimate.request_ms,
    )


def _unfit(layout: Layout, workload: Workload, objective: Objective) -> str | None:
    """What it lacks, whatever else there is."""
    if layout.fault is not None:
        return layout.fault
    if layout.estimate is None or not layout.fits:
        return _no_room(layout)
    if layout.num_sequences < workload.sequences:
        return (
            f"room for {layout.num_sequences} sequences of {workload.mean_context} tokens,"
            f" {workload.sequences} are asked"
        )
    estimate = layout.estimate
    for what, found, limit in (
        ("TTFT", estimate.ttft_ms, objective.ttft_ms),
        ("TPOT", estimate.tpot_ms, objective.tpot_ms),
    ):
        if limit is not None and found > limit:
            talk = estimate.ttft_talk_ms if what == "TTFT" else estimate.tpot_talk_ms
            spent = f", {_ms(talk)} of it between ranks" if talk > 0.2 * found else ""
            return f"{what} {_ms(found)}{spent}; {_ms(limit)} is asked"
    return None


def _no_room(layout: Layout) -> str:
    weights = _gib(layout.weight_bytes)
    if layout.room_bytes <= 0:
        return f"{weights} of weights a GPU are {_gib(-layout.room_bytes)} too many"
    return (
        f"beside {weights} of weights a GPU has {_gib(layout.room_bytes)} for pages;"
        f" one whole context takes {_gib(layout.context_bytes)}"
    )


def _outdone(layout: Layout, chosen: Layout, cards: Mapping[str, Card]) -> str:
    """Why a layout that would do is not the chosen one."""
    if layout.split.tier > chosen.split.tier:
        return _crossing(layout, chosen)
    mine, best = rank(layout, cards), rank(chosen, cards)
    if mine[1] > best[1]:
        if math.isinf(mine[1]):
            return f"its card has no price; {chosen.board.card} has one"
        gain = _faster(layout, chosen)
        return f"${mine[1]:.2f} an hour a replica, where ${best[1]:.2f} will do{gain}"
    if mine[2] > best[2]:
        return f"{mine[2]} GPUs a replica, where {best[2]} will do{_faster(layout, chosen)}"
    if mine[3] > best[3]:
        return f"as many GPUs, but a request takes {_ms(mine[3])} instead of {_ms(best[3])}"
    return "as good as the chosen one"


def _crossing(layout: Layout, chosen: Layout) -> str:
    split, estimate = layout.split, layout.estimate
    if estimate is None:
        raise ValueError("a layout with a fault is not compared")
    roots = layout.board.num_roots(split.tier, split.tensor)
    largest = layout.board.largest_island
    islands = f"no PCIe root here has more than {largest} GPU{'s' if largest > 1 else ''}"
    if largest >= split.tensor:
        islands = "too few PCIe roots here hold a whole stage"
    stays = "keeps each stage" if chosen.split.pipeline > 1 else "stays"
    return (
        f"{split.tensor} tensor ranks span {roots} PCIe roots ({islands}) and spend"
        f" {_ms(estimate.tpot_talk_ms)} of {_ms(estimate.tpot_ms)} a token,"
        f" {_ms(estimate.ttft_talk_ms)} of {_ms(estimate.ttft_ms)} to the first, on all-reduce;"
        f" {_name(chosen)} {stays} within {chosen.split.tier.phrase} and will do"
        f"{_faster(layout, chosen)}"
    )


def _faster(layout: Layout, chosen: Layout) -> str:
    """What would be gained: a person may want to pay for it."""
    one, other = layout.estimate, chosen.estimate
    if one is None or other is None or one.tpot_ms > 0.95 * other.tpot_ms:
        return ""
    return f" (TPOT would be {_ms(one.tpot_ms)} instead of {_ms(other.tpot_ms)})"


def _advice(found: Sequence[Layout], workload: Workload, objective: Objective) -> str:
    if not found:
        return "there is no free GPU of a known class"
    legal = [one for one in found if one.estimate is not None]
    fitting = [one for one in legal if one.fits and one.num_sequences >= workload.sequences]
    if not fitting:
        best = max(legal, key=lambda one: one.room_bytes - one.context_bytes)
        reason = _unfit(best, workload, Objective())
        return f"nothing fits; nearest is {_name(best)} on {best.board.card}: {reason}"
    # Times alone: these miss the objective, so tiers and prices have no say.
    best = min(fitting, key=lambda one: _excess(one, objective))
    reason = _unfit(best, workload, objective)
    return f"nothing meets the objective; nearest is {_name(best)}: {reason}"


def _excess(layout: Layout, objective: Objective) -> float:
    """How far the worse of the two times is beyond what is asked."""
    if layout.estimate is None:
        return math.inf
    ttft = 0.0 if objective.ttft_ms is None else layout.estimate.ttft_ms / objective.ttft_ms
    tpot = 0.0 if objective.tpot_ms is None else layout.estimate.tpot_ms / objective.tpot_ms
    return max(ttft, tpot)


def _notes(
    facts: ModelFacts, cards: Mapping[str, Card], boards: Sequence[Board]
) -> tuple[str, ...]:
    notes = []
    for name in sorted({board.card for board in boards}):
        card = cards[name]
        if card.peer_to_peer is None:
            notes.append(
                f"{name}: whether its GPUs can write to each other is not known; times of several"
                " ranks suppose that they can"
            )
        if card.peer_to_peer is False:
            notes.append(f"{name}: its GPUs cannot write to each other; ranks go through the host")
        stored, computed = facts.weight_format, card.number_type(facts.weight_format)
        if stored in ("fp8", "nvfp4") and computed in ("bf16", "fp16"):
            notes.append(f"{name}: has no units for {stored}; it computes in {computed}")
    if any(island.numa < 0 for board in boards for island in board.islands):
        notes.append("some GPUs do not say which NUMA node they belong to: that tier is left out")
    return tuple(notes)


def _name(layout: Layout) -> str:
    split = layout.split
    stages = f" x PP={split.pipeline}" if split.pipeline > 1 else ""
    return f"TP={split.tensor}{stages}"


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def _gib(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB"
