"""What holds for any cluster, card and model."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_api.gpuclass import GPUClassSpec
from slipstream_api.modelfacts import ModelFacts
from slipstream_operator.planner import allreduce, cards, choice, footprint, layouts
from slipstream_operator.planner.cards import Card
from slipstream_operator.planner.choice import Objective
from slipstream_operator.planner.footprint import Use
from slipstream_operator.planner.islands import Board, Island
from slipstream_operator.planner.layouts import Layout, Workload
from slipstream_operator.planner.tiers import Tier

TIERS = ("SameRoot", "SameNuma", "SameNode")
points = st.lists(
    st.fixed_dictionaries({"bytes": st.integers(1, 1 << 30), "nanoseconds": st.integers(1, 10**9)}),
    min_size=1,
    max_size=4,
    unique_by=lambda point: point["bytes"],
)
tables = st.lists(
    st.fixed_dictionaries(
        {"tier": st.sampled_from(TIERS), "ranks": st.integers(2, 8), "points": points}
    ),
    max_size=4,
    unique_by=lambda table: (table["tier"], table["ranks"]),
)


@st.composite
def card(draw: st.DrawFn, name: str = "card") -> Card:
    spec: dict[str, Any] = {
        "deviceClassName": "gpu",
        "selectors": [{"cel": {"expression": "true"}}],
        "memory": f"{draw(st.integers(8, 192))}Gi",
        "memoryBandwidthMegabytesPerSecond": draw(st.integers(200_000, 4_000_000)),
        "computeGflops": {"bf16": draw(st.integers(30_000, 1_000_000))},
        "pcie": {"generation": draw(st.integers(3, 6)), "lanes": draw(st.sampled_from((8, 16)))},
        "peerToPeer": draw(st.sampled_from(("Available", "Unavailable", "Unknown"))),
        "pricePerHourMicroUsd": draw(st.none() | st.integers(0, 9_000_000)),
        "allReduce": draw(tables),
    }
    return cards.of(name, GPUClassSpec.model_validate(spec))


@st.composite
def model(draw: st.DrawFn) -> ModelFacts:
    kv_heads = draw(st.sampled_from((1, 2, 3, 4, 8)))
    layers = draw(st.integers(1, 96))
    fields: dict[str, Any] = {
        "name": "model",
        "source": "generated",
        "architecture": "Any",
        "numLayers": layers,
        "hiddenSize": 128 * draw(st.integers(1, 96)),
        "intermediateSize": 128 * draw(st.integers(1, 240)),
        "numHeads": kv_heads * draw(st.integers(1, 16)),
        "numKvHeads": kv_heads,
        "headDim": draw(st.sampled_from((64, 128))),
        "vocabSize": draw(st.integers(1000, 200_000)),
        "maxPositions": draw(st.sampled_from((4096, 32_768, 262_144))),
        "hasTiedEmbeddings": draw(st.booleans()),
        "weightFormat": draw(st.sampled_from(("bf16", "fp8", "int4", "mxfp4"))),
    }
    if draw(st.booleans()):
        experts = draw(st.integers(2, 256))
        fields["experts"] = {
            "numExperts": experts,
            "numActive": draw(st.integers(1, min(experts, 8))),
            "intermediateSize": 64 * draw(st.integers(1, 64)),
            "numShared": draw(st.integers(0, 2)),
            "numDenseLayers": draw(st.integers(0, min(3, layers - 1))),
        }
    if draw(st.booleans()):
        fields["latent"] = {"kvRank": 512, "ropeDim": 64, "nopeDim": 128, "valueDim": 128}
    if draw(st.booleans()):
        window = {"tokens": draw(st.sampled_from((128, 4096)))}
        fields["window"] = window | {"numLayers": draw(st.integers(1, layers))}
    return ModelFacts.model_validate(fields)


islands = st.lists(
    st.builds(Island, st.integers(-1, 1), st.integers(1, 4)), min_size=1, max_size=5
).map(lambda found: tuple(sorted(found)))
workloads = st.builds(
    Workload,
    prompt_tokens=st.integers(1, 16_384),
    output_tokens=st.integers(1, 2048),
    sequences=st.integers(1, 64),
    max_context=st.none() | st.integers(128, 65_536),
)
objectives = st.builds(
    Objective,
    ttft_ms=st.none() | st.floats(10, 20_000),
    tpot_ms=st.none() | st.floats(1, 500),
)
uses = st.builds(Use, st.integers(50, 95), st.sampled_from((512, 2048, 8192)))


@given(st.data(), model(), workloads, objectives, uses)
@pytest.mark.slow
def test_what_is_chosen_fits_and_no_other_that_will_do_is_better_in_everything(
    data: st.DataObject, facts: ModelFacts, workload: Workload, objective: Objective, use: Use
) -> None:
    known = {name: data.draw(card(name)) for name in ("one", "two")}
    boards = [Board(name, data.draw(islands), (f"of-{name}",)) for name in known]
    plan = choice.plan(facts, known, boards, workload, objective, use)
    assert all((row.why_not is None) == (row.layout is plan.chosen) for row in plan.rows)
    if plan.chosen is None:
        assert plan.advice
        return
    check_room(plan.chosen, known[plan.chosen.board.card], facts, workload, use)
    check_times(plan.chosen, objective)
    best = figures(plan.chosen, known)
    for row in plan.rows:
        other = row.layout
        if other is plan.chosen or not will_do(other, workload, objective):
            continue
        theirs = figures(other, known)
        is_better = all(a <= b for a, b in zip(theirs, best, strict=True)) and theirs != best
        assert not is_better, (other.split, plan.chosen.split)


def figures(layout: Layout, known: dict[str, Card]) -> tuple[float, ...]:
    """All that a person would compare; less is better in each."""
    assert layout.estimate is not None
    price = known[layout.board.card].price_per_hour_usd
    cost = math.inf if price is None else layout.num_gpus * price
    times = (layout.estimate.ttft_ms, layout.estimate.tpot_ms)
    return (layout.split.tier, layout.num_gpus, cost, *times)


def check_room(layout: Layout, one: Card, facts: ModelFacts, workload: Workload, use: Use) -> None:
    """Counted anew, GPU by GPU."""
    split = layout.split
    longest = workload.max_context or facts.max_positions
    for stage in footprint.stages(facts, split.tensor, split.pipeline):
        weights = footprint.weight_bytes(facts, stage)
        sequences = workload.sequences * footprint.kv_bytes(facts, stage, workload.mean_context)
        context = footprint.kv_bytes(facts, stage, longest)
        assert weights + max(sequences, context) <= one.memory_bytes * use.memory_percent / 100
    assert layout.num_gpus * layout.replicas_per_node <= layout.board.num_gpus
    assert layout.replicas_per_node >= 1
    assert layouts.fault(facts, split.tensor, split.pipeline) is None


def check_times(layout: Layout, objective: Objective) -> None:
    assert layout.estimate is not None
    assert objective.ttft_ms is None or layout.estimate.ttft_ms <= objective.ttft_ms
    assert objective.tpot_ms is None or layout.estimate.tpot_ms <= objective.tpot_ms


def will_do(layout: Layout, workload: Workload, objective: Objective) -> bool:
    estimate = layout.estimate
    return (
        estimate is not None
        and layout.fits
        and layout.num_sequences >= workload.sequences
        and (objective.ttft_ms is None or estimate.ttft_ms <= objective.ttft_ms)
        and (objective.tpot_ms is None or estimate.tpot_ms <= objective.tpot_ms)
    )


@given(st.data(), model(), card(), workloads, objectives, uses)
@pytest.mark.slow
def test_one_more_free_island_makes_no_time_worse_and_loses_no_plan(
    data: st.DataObject,
    facts: ModelFacts,
    one: Card,
    workload: Workload,
    objective: Objective,
    use: Use,
) -> None:
    before = data.draw(islands)
    more = data.draw(st.builds(Island, st.integers(-1, 2), st.integers(1, 4)))
    known = {one.name: one}
    plans = [
        choice.plan(facts, known, [Board(one.name, found, ("node",))], workload, objective, use)
        for found in (before, tuple(sorted((*before, more))))
    ]
    old, new = (
        {(row.layout.split.tensor, row.layout.split.pipeline): row.layout for row in plan.rows}
        for plan in plans
    )
    assert old.keys() <= new.keys()
    for key, layout in old.items():
        now = new[key]
        assert now.split.tier <= layout.split.tier
        if layout.estimate is not None and now.estimate is not None:
            assert now.estimate.ttft_ms <= layout.estimate.ttft_ms
            assert now.estimate.tpot_ms <= layout.estimate.tpot_ms
    if plans[0].chosen is not None:
        assert plans[1].chosen is not None
        assert plans[1].chosen.split.tier <= plans[0].chosen.split.tier


@given(card(), st.integers(2, 8), st.integers(1, 1 << 28))
def test_ranks_that_are_nearer_are_never_slower(one: Card, ranks: int, num_bytes: int) -> None:
    times = [allreduce.seconds(one, tier, ranks, num_bytes) for tier in Tier]
    assert times == sorted(times)


@given(islands, st.integers(1, 8), st.sampled_from(Tier))
def test_groups_never_share_a_gpu(found: tuple[Island, ...], size: int, tier: Tier) -> None:
    board = Board("card", found, ("node",))
    assert board.num_groups(tier, size) * size <= board.num_gpus
    if tier < Tier.SameNode:
        assert board.num_groups(tier, size) <= board.num_groups(Tier(tier + 1), size)
