"""Which layout is chosen, and what the table says to those who ask why not another."""

import dataclasses

import pytest

from slipstream_engine import split as splits
from slipstream_operator.planner import choice, layouts
from slipstream_operator.planner.cards import Card
from slipstream_operator.planner.choice import Objective, Plan
from slipstream_operator.planner.footprint import Use
from slipstream_operator.planner.islands import Board, Island
from slipstream_operator.planner.layouts import Layout, Workload
from slipstream_operator.planner.tiers import Tier
from slipstream_weights.checkpoint import Checkpoint
from tests.operator.planner import support

PAIRS = support.board("dual-socket-four-pairs", "rtx-pro-6000")


def planned(
    model: str,
    *boards: Board,
    objective: Objective | None = None,
    workload: Workload | None = None,
    cards: dict[str, Card] | None = None,
) -> Plan:
    cards = cards or {board.card: support.card(board.card) for board in boards}
    return choice.plan(
        support.facts(model), cards, boards, workload or Workload(), objective or Objective(), Use()
    )


def why_not(plan: Plan, tensor: int, pipeline: int = 1) -> str:
    for row in plan.rows:
        if (row.layout.split.tensor, row.layout.split.pipeline) == (tensor, pipeline):
            assert row.why_not is not None
            return row.why_not
    raise AssertionError(f"TP={tensor} PP={pipeline} is not listed")


def shape(layout: Layout | None) -> tuple[int, int, Tier]:
    assert layout is not None
    return layout.split.tensor, layout.split.pipeline, layout.split.tier


def test_on_a_board_of_pairs_two_ranks_are_chosen_and_four_lost_for_the_roots_they_span() -> None:
    plan = planned("qwen2.5-coder-32b", PAIRS, objective=Objective(tpot_ms=40))
    assert shape(plan.chosen) == (2, 1, Tier.SameRoot)
    reason = why_not(plan, 4)
    assert reason.startswith(
        "4 tensor ranks span 2 PCIe roots (no PCIe root here has more than 2 GPUs) and spend"
    )
    assert "on all-reduce; TP=2 stays within one PCIe root and will do" in reason
    assert "(TPOT would be" in reason


def test_stages_across_islands_come_before_tensor_ranks_across_islands() -> None:
    direct = support.board("dual-socket-direct", "l40s")
    plan = planned("qwen2.5-coder-32b", direct)
    assert shape(plan.chosen) == (1, 2, Tier.SameRoot)
    assert "TP=1 x PP=2 keeps each stage within one PCIe root" in why_not(plan, 2)


def test_tensor_ranks_leave_their_island_only_where_the_objective_asks_for_it() -> None:
    direct = support.board("dual-socket-direct", "l40s")
    plan = planned("qwen2.5-coder-32b", direct, objective=Objective(tpot_ms=60))
    assert shape(plan.chosen) == (2, 1, Tier.SameNuma)
    assert why_not(plan, 1, 2) == "TPOT 104 ms; 60.0 ms is asked"
    assert why_not(plan, 1) == "61.0 GiB of weights a GPU are 24.7 GiB too many"


def test_time_that_goes_between_ranks_is_named_where_it_is_much() -> None:
    direct = support.board("dual-socket-direct", "l40s")
    plan = planned("qwen2.5-coder-32b", direct, objective=Objective(ttft_ms=1250, tpot_ms=40))
    assert plan.chosen is None
    assert "of it between ranks; 1250 ms is asked" in why_not(plan, 4)
    assert plan.advice is not None
    assert plan.advice.startswith("nothing meets the objective; nearest is TP=2: TPOT")


def test_more_sequences_take_more_gpus() -> None:
    few = planned("qwen2.5-coder-32b", PAIRS, workload=Workload(sequences=16))
    many = planned("qwen2.5-coder-32b", PAIRS, workload=Workload(sequences=64))
    assert shape(few.chosen) == (1, 1, Tier.SameRoot)
    assert shape(many.chosen) == (2, 1, Tier.SameRoot)
    assert why_not(many, 1) == "room for 19 sequences of 4352 tokens, 64 are asked"


def test_a_context_that_does_not_fit_is_told_in_bytes() -> None:
    board = support.board("desktop-pair", "rtx-5090")
    plan = planned("qwen3-coder-30b-a3b-fp8", board)
    assert why_not(plan, 1) == "29.0 GiB of weights a GPU are 6.4 GiB too many"
    reason = why_not(plan, 2)
    assert reason.startswith("beside 14.5 GiB of weights a GPU has 7.8 GiB for pages; one whole")
    assert reason.endswith("context takes 12.0 GiB")
    short = planned("qwen3-coder-30b-a3b-fp8", board, workload=Workload(max_context=32_768))
    assert shape(short.chosen) == (2, 1, Tier.SameRoot)


def test_the_cheaper_card_wins_and_one_without_a_price_comes_last() -> None:
    pro, ada = (support.board("desktop-pair", name) for name in ("rtx-pro-6000", "rtx-6000-ada"))
    workload = Workload(max_context=32_768)
    plan = planned("qwen2.5-coder-32b-awq", pro, ada, workload=workload)
    assert plan.chosen is not None
    assert plan.chosen.board.card == "rtx-pro-6000"
    reasons = [row.why_not for row in plan.rows if row.layout.board == ada]
    assert reasons[0] == "its card has no price; rtx-pro-6000 has one"
    cards = {name: support.card(name) for name in ("rtx-pro-6000", "rtx-6000-ada")}
    cards["rtx-6000-ada"] = dataclasses.replace(cards["rtx-6000-ada"], price_per_hour_usd=0.9)
    plan = planned("qwen2.5-coder-32b-awq", pro, ada, workload=workload, cards=cards)
    assert plan.chosen is not None
    assert plan.chosen.board.card == "rtx-6000-ada"


def test_where_there_is_no_gpu_the_plan_says_so() -> None:
    assert planned("qwen3-32b").advice == "there is no free GPU of a known class"


def test_a_card_that_nobody_asked_about_peers_is_noted() -> None:
    (note,) = planned("qwen3-32b", PAIRS).notes
    assert note.startswith("rtx-pro-6000: whether its GPUs can write to each other is not known")


def test_a_format_that_a_card_cannot_compute_in_is_noted() -> None:
    quads = support.board("dual-socket-two-quads", "a100-pcie-80gb")
    notes = planned("qwen3-32b-fp8", quads).notes
    assert "a100-pcie-80gb: has no units for fp8; it computes in bf16" in notes


def test_gpus_without_a_numa_node_are_noted_and_never_grouped_by_it() -> None:
    board = Board("l40s", (Island(-1, 1),) * 4, ("node",))
    plan = planned("qwen2.5-coder-32b", board, objective=Objective(tpot_ms=70))
    assert shape(plan.chosen) == (2, 1, Tier.SameNode)
    assert any("NUMA" in note for note in plan.notes)


@pytest.mark.parametrize("num_kv_heads", [3, 4, 8])
@pytest.mark.parametrize("tensor", range(1, 9))
@pytest.mark.parametrize("pipeline", [1, 4, 65])
def test_splits_are_legal_where_the_engine_takes_them(
    num_kv_heads: int, tensor: int, pipeline: int
) -> None:
    facts = support.facts("qwen3-32b")
    facts = facts.model_copy(update={"num_heads": 24, "num_kv_heads": num_kv_heads})
    checkpoint = Checkpoint(
        architecture="qwen3",
        vocab_size=facts.vocab_size,
        hidden_size=facts.hidden_size,
        intermediate_size=facts.intermediate_size,
        num_layers=facts.num_layers,
        num_heads=facts.num_heads,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        rotary_dim=facts.head_dim,
        max_positions=facts.max_positions,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        rope_scaling=None,
        has_tied_embeddings=False,
        has_qkv_bias=False,
        has_output_bias=False,
        has_qk_norm=True,
    )
    try:
        splits.check(checkpoint, splits.Split(tensor, pipeline))
        taken = True
    except splits.SplitError:
        taken = False
    assert (layouts.fault(facts, tensor, pipeline) is None) == taken
