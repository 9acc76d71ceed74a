"""Every way to lay a model out on the observed boards, with what fits and how long it takes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slipstream_api.modelfacts import ModelFacts
from slipstream_operator.planner import footprint
from slipstream_operator.planner.cards import Card
from slipstream_operator.planner.footprint import Use
from slipstream_operator.planner.islands import Board
from slipstream_operator.planner.roofline import Roofline, Split


@dataclass(frozen=True, slots=True)
class Workload:
    """What a replica is to serve: so many sequences at once, each of these lengths."""

    prompt_tokens: int = 4096
    output_tokens: int = 512
    sequences: int = 8
    max_context: int | None = None  # None: what the model was made for

    @property
    def mean_context(self) -> int:
        return self.prompt_tokens + self.output_tokens // 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """At the workload's number of sequences; `talk` is the part that ranks spend on each other.

    `request_ms`: from the prompt to the last token of an answer.
    """

    request_ms: float
    ttft_ms: float
    ttft_talk_ms: float
    tpot_ms: float
    tpot_talk_ms: float
    output_tokens_per_s: float
    usd_per_million_tokens: float | None


@dataclass(frozen=True, slots=True)
class Layout:
    """One replica's shape on one board. Bytes are those of the fullest GPU.

    `fault`: why the engine cannot split the model so; then nothing was computed.
    """

    board: Board
    split: Split
    fault: str | None
    replicas_per_node: int
    weight_bytes: int
    room_bytes: int
    context_bytes: int  # of one sequence as long as the longest
    num_sequences: int
    estimate: Estimate | None

    @property
    def num_gpus(self) -> int:
        return self.split.tensor * self.split.pipeline

    @property
    def fits(self) -> bool:
        return self.fault is None and self.room_bytes >= self.context_bytes


def fault(facts: ModelFacts, tensor: int, pipeline: int) -> str | None:
    """Why the engine cannot split a model so, in words; None where it can."""
    inner = facts.intermediate_size
    divided = {"query heads": facts.num_heads}
    if facts.latent is None:
        divided["KV heads"] = facts.num_kv_heads
    if facts.experts is None or facts.experts.num_dense_layers:
        divided["columns of the MLP"] = inner
    if facts.experts is not None:
        divided["columns of an expert"] = facts.experts.intermediate_size
    for what, size in divided.items():
        if size % tensor:
            return f"{tensor} tensor ranks cannot share {size} {what}"
        group = facts.weight_group
        if what.startswith("columns") and group is not None and (size // tensor) % group:
            return f"{tensor} tensor ranks would cut groups of {group} of the {size} {what}"
    if pipeline > facts.num_layers:
        return f"{pipeline} stages for {facts.num_layers} layers"
    return None


def enumerate_all(
    facts: ModelFacts,
    cards: Mapping[str, Card],
    boards: Iterable[Board],
    workload: Workload,
    use: Use,
) -> tuple[Layout, ...]:
    """Every split that has a place, and those with a fault for powers of two of tensor ranks."""
    return tuple(
        _layout(facts, cards[board.card], board, split, workload, use)
        for board in boards
        for split in _splits(facts, board)
    )


def _splits(facts: ModelFacts, board: Board) -> Iterator[Split]:
    for tensor in range(1, board.num_gpus + 1):
        is_usual = tensor & (tensor - 1) == 0
        for pipeline in range(1, board.num_gpus // tensor + 1):
            problem = fault(facts, tensor, pipeline)
            if problem is not None and (pipeline > 1 or not is_usual):
                continue
            tier = board.nearest(pipeline, tensor)
            hop_tier = board.nearest(1, tensor * pipeline)
            if tier is not None and hop_tier is not None:
                yield Split(tensor, pipeline, tier, hop_tier)


def _layout(
    facts: ModelFacts, card: Card, board: Board, split: Split, workload: Workload, use: Use
) -> Layout:
    problem = fault(facts, split.tensor, split.pipeline)
    replicas = board.num_groups(split.tier, split.tensor) // split.pipeline
    if problem is not None:
        return Layout(board, split, problem, replicas, 0, 0, 0, 0, None)
    longest = workload.max_context or facts.max_positions
    ranks = split.tensor * split.pipeline
    # (what is left over one whole context, room, one context, weights, sequences)
    stages = []
    for stage in footprint.stages(facts, split.tensor, split.pipeline):
        room = footprint.room_bytes(card, facts, stage, ranks, use)
        context = footprint.kv_bytes(facts, stage, longest)
        mean = footprint.kv_bytes(facts, stage, workload.mean_context)
        held = footprint.weight_bytes(facts, stage)
        stages.append((room - context, room, context, held, max(room, 0) // mean))
    _, room, context, held, _ = min(stages)
    return Layout(
        board=board,
        split=split,
        fault=None,
        replicas_per_node=replicas,
        weight_bytes=held,
        room_bytes=room,
        context_bytes=context,
        num_sequences=min(stage[-1] for stage in stages),
        estimate=estimate(facts, card, split, workload, use),
    )


def estimate(facts: ModelFacts, card: Card, split: Split, workload: Workload, use: Use) -> Estimate:
    """One prompt alone to its first token; each further token beside all the sequences."""
    roofline = Roofline(facts, card)
    first = roofline.prefill(split, workload.prompt_tokens, use.chunk_tokens)
    each = roofline.decode(split, workload.sequences, workload.mean_context)
    tokens = workload.sequences * workload.output_tokens
    taken = workload.sequences * first.total + workload.output_tokens * each.total
    rate = tokens / taken
    price = card.price_per_hour_usd
    gpus = split.tensor * split.pipeline
    return Estimate(
        request_ms=(first.total + workload.output_tokens * each.total) * 1e3,
        ttft_ms=first.total * 1e3,
        ttft_talk_ms=first.talking * 1e3,
        tpot_ms=each.total * 1e3,
        tpot_talk_ms=each.talking * 1e3,
        output_tokens_per_s=rate,
        usd_per_million_tokens=None if price is None else gpus * price / 3600 / rate * 1e6,
    )
