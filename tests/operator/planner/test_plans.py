"""Plans of public models on every class of card and on every simulated machine, as texts."""

from collections.abc import Callable, Iterator

import pytest

from slipstream_local import topology
from slipstream_operator.planner import choice
from slipstream_operator.planner.choice import Objective, Plan
from slipstream_operator.planner.footprint import Use
from slipstream_operator.planner.islands import Board
from slipstream_operator.planner.layouts import Layout, Workload
from tests.operator.planner import support

GOLDEN = support.HERE / "golden"

# A dense 32B, a 70B, a mixture of experts and latent attention, on each class of card.
ON_EVERY_CARD = ("qwen2.5-coder-32b", "llama-3.3-70b", "qwen3-coder-30b-a3b", "deepseek-v2-lite")
# The machine that each class of card is usually found in.
MACHINES = {
    "rtx-pro-6000": "dual-socket-four-pairs",
    "a100-pcie-80gb": "dual-socket-two-quads",
    "h100-pcie": "dual-socket-two-quads",
    "a30": "dual-socket-two-quads",
    "a40": "dual-socket-four-pairs",
    "l4": "single-socket-four-quads",
    "mi210": "dual-socket-two-quads",
    "rtx-3090": "workstation-direct",
    "rtx-4090": "workstation-direct",
    "rtx-5090": "workstation-direct",
    "r9700": "workstation-direct",
    "arc-pro-b60": "dual-socket-four-pairs",
}
PROFILE_CARDS = {
    "dual-socket-four-pairs": "rtx-pro-6000",
    "dual-socket-two-quads": "a100-pcie-80gb",
    "dual-socket-direct": "l40s",
    "single-socket-four-quads": "rtx-pro-6000",
    "workstation-direct": "rtx-pro-6000",
    "desktop-pair": "rtx-4090",
}


def planned(model: str, board: Board, objective: Objective, workload: Workload) -> Plan:
    cards = {board.card: support.card(board.card)}
    return choice.plan(support.facts(model), cards, [board], workload, objective, Use())


def described(layout: Layout) -> str:
    split, estimate = layout.split, layout.estimate
    text = (
        f"TP={split.tensor} PP={split.pipeline} {split.tier.name},"
        f" {layout.replicas_per_node} a node, {layout.weight_bytes / 2**30:.1f} GiB of weights,"
        f" {layout.room_bytes / 2**30:.1f} GiB for pages, {layout.num_sequences} sequences"
    )
    if estimate is None:
        return text
    price = estimate.usd_per_million_tokens
    cost = "" if price is None else f", ${price:.2f} per million"
    return f"{text}, TTFT {estimate.ttft_ms:.0f} ms, TPOT {estimate.tpot_ms:.1f} ms{cost}"


def text_of(plan: Plan) -> Iterator[str]:
    if plan.chosen is not None:
        yield f"chosen: {described(plan.chosen)}"
    if plan.advice is not None:
        yield f"none: {plan.advice}"
    for row in plan.rows:
        split = row.layout.split
        is_telling = split.pipeline in (1, 2) and row.why_not is not None
        if is_telling:
            yield f"  TP={split.tensor} PP={split.pipeline}: {row.why_not}"
    for note in plan.notes:
        yield f"  note: {note}"


@pytest.mark.parametrize("model", ON_EVERY_CARD)
def test_on_every_class_of_card(model: str, golden: Callable[..., None]) -> None:
    lines = []
    for card in support.CARD_NAMES:
        board = support.board(MACHINES.get(card, "dual-socket-direct"), card)
        workload = Workload(max_context=32_768)
        lines += ["", f"# {card} on {board.shape}"]
        lines += text_of(planned(model, board, Objective(), workload))
    golden(GOLDEN / f"{model}-on-every-card.txt", "\n".join(lines).lstrip() + "\n")


@pytest.mark.parametrize("model", sorted(set(support.MODEL_NAMES) - {"llama-3.1-70b-fp8"}))
def test_on_every_machine_with_an_objective(model: str, golden: Callable[..., None]) -> None:
    lines = []
    for profile in topology.PROFILES:
        board = support.board(profile, PROFILE_CARDS[profile])
        workload = Workload(prompt_tokens=8192, output_tokens=512, sequences=4, max_context=32_768)
        lines += ["", f"# {profile}: {board.card} on {board.shape}"]
        objective = Objective(ttft_ms=4000, tpot_ms=30)
        lines += text_of(planned(model, board, objective, workload))
    golden(GOLDEN / f"{model}-on-every-machine.txt", "\n".join(lines).lstrip() + "\n")


def test_the_cards_of_the_machines_are_those_of_the_simulation() -> None:
    assert set(PROFILE_CARDS) == set(topology.PROFILES)
