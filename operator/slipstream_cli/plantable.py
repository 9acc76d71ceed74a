"""How a plan is shown: a table for people, JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slipstream_api.modelfacts import ModelFacts
from slipstream_operator.planner import weights
from slipstream_operator.planner.choice import Judged, Plan
from slipstream_operator.planner.islands import Board
from slipstream_operator.planner.layouts import Estimate, Layout

_GIB = 1 << 30
# Narrower than this, reasons stand below the table; a file or a pipe is as wide as a wide screen.
_WIDE = 140
_WITHOUT_TERMINAL = 180
_REASON = 100
_CHOSEN = "chosen"
_COLUMNS = ("TP", "PP", "tier", "replicas/node", "weights", "pages", "seqs", "TTFT", "TPOT", "$/M")


def show(facts: ModelFacts, plan: Plan, notes: Sequence[str], *, show_all: bool) -> None:
    """Print it, without the blanks that a table's last column is filled with."""
    width = None if sys.stdout.isatty() else _WITHOUT_TERMINAL
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        _show(console, facts, plan, notes, show_all=show_all)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def _show(
    console: Console, facts: ModelFacts, plan: Plan, notes: Sequence[str], *, show_all: bool
) -> None:
    billions = weights.total(facts) / 1e9
    stored = weights.in_bytes(facts).total / _GIB
    console.print(
        f"[bold]{escape(facts.name)}[/bold]: {_plain(facts)}, {billions:.2f} B parameters"
    )
    console.print(
        f"{stored:.1f} GiB of {facts.weight_format} weights, from {escape(facts.source)}\n"
    )
    hidden = 0
    for board in dict.fromkeys(row.layout.board for row in plan.rows):
        rows = [row for row in plan.rows if row.layout.board == board]
        shown = [row for row in rows if show_all or _is_usual(row)]
        hidden += len(rows) - len(shown)
        _show_board(console, board, sorted(shown, key=_order))
    if plan.advice is not None:
        console.print(f"[bold]no layout[/bold]: {plan.advice}")
    for note in notes:
        console.print(f"note: {note}")
    if hidden:
        console.print(f"{hidden} more layouts with other numbers of stages: --all")


def _plain(facts: ModelFacts) -> str:
    kind = f"{facts.num_layers} layers, {facts.num_heads} heads"
    kind += ", latent KV" if facts.latent else f", {facts.num_kv_heads} KV heads"
    if facts.experts:
        kind += f", {facts.experts.num_active} of {facts.experts.num_experts} experts"
    return kind


def _is_usual(row: Judged) -> bool:
    stages = row.layout.split.pipeline
    return row.why_not is None or stages & (stages - 1) == 0


def _order(row: Judged) -> tuple[bool, int, int, int]:
    """The chosen one first, then the nearer and the smaller."""
    split = row.layout.split
    return (row.why_not is not None, row.layout.num_gpus, split.pipeline, split.tensor)


def _show_board(console: Console, board: Board, rows: Sequence[Judged]) -> None:
    is_wide = console.width >= _WIDE
    many = len(board.nodes)
    nodes = f"{many} node{'s' if many > 1 else ''}"
    title = f"{board.card}, {nodes} with free GPUs below their PCIe roots: {board.shape}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "tier" else "right", no_wrap=True)
    if is_wide:
        table.add_column("why not", max_width=_REASON)
    for row in rows:
        reason = row.why_not or _CHOSEN
        style = "bold green" if row.why_not is None else None
        table.add_row(*_cells(row.layout), *([reason] if is_wide else []), style=style)
    console.print(table)
    if not is_wide:
        for row in rows:
            split = row.layout.split
            reason = row.why_not or _CHOSEN
            console.print(f"  TP={split.tensor} PP={split.pipeline}: {reason}")
    console.print()


def _cells(layout: Layout) -> tuple[str, ...]:
    split, estimate = layout.split, layout.estimate
    place = (str(split.tensor), str(split.pipeline), split.tier.name, str(layout.replicas_per_node))
    if estimate is None:
        return (*place, *("-",) * 6)
    price = estimate.usd_per_million_tokens
    return (
        *place,
        f"{layout.weight_bytes / _GIB:.1f}G",
        f"{max(layout.room_bytes, 0) / _GIB:.1f}G",
        str(layout.num_sequences),
        f"{estimate.ttft_ms:.0f}ms",
        f"{estimate.tpot_ms:.1f}ms",
        "-" if price is None else f"{price:.2f}",
    )


def as_json(facts: ModelFacts, plan: Plan, notes: Sequence[str]) -> str:
    """Sizes in bytes, times in milliseconds; `chosen` is the index of a layout or null."""
    chosen = next((i for i, row in enumerate(plan.rows) if row.why_not is None), None)
    document = {
        "schemaVersion": 1,
        "model": facts.model_dump(mode="json", by_alias=True, exclude_none=True),
        "chosen": chosen,
        "advice": plan.advice,
        "notes": list(notes),
        "layouts": [_layout(row) for row in plan.rows],
    }
    return json.dumps(document, indent=2)


def _layout(row: Judged) -> dict[str, Any]:
    layout, split = row.layout, row.layout.split
    return {
        "gpuClass": layout.board.card,
        "nodes": list(layout.board.nodes),
        "islands": layout.board.shape,
        "tensorParallel": split.tensor,
        "pipelineParallel": split.pipeline,
        "tier": split.tier.name,
        "replicasPerNode": layout.replicas_per_node,
        "fits": layout.fits,
        "weightBytesPerGpu": layout.weight_bytes,
        "kvBytesPerGpu": max(layout.room_bytes, 0),
        "sequences": layout.num_sequences,
        "estimate": None if layout.estimate is None else _estimate(layout.estimate),
        "whyNot": row.why_not,
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    price = estimate.usd_per_million_tokens
    return {
        "ttftMs": round(estimate.ttft_ms, 3),
        "ttftAllReduceMs": round(estimate.ttft_talk_ms, 3),
        "tpotMs": round(estimate.tpot_ms, 3),
        "tpotAllReduceMs": round(estimate.tpot_talk_ms, 3),
        "outputTokensPerSecond": round(estimate.output_tokens_per_s, 3),
        "usdPerMillionOutputTokens": None if price is None else round(price, 4),
    }
