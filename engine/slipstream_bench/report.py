"""A run as a table for people and as a document for programs. Decides no figure."""

import dataclasses
import json
import os
import platform
from collections.abc import Mapping
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slipstream_bench.errors import WorkloadError
from slipstream_bench.options import Plan
from slipstream_bench.outcome import Outcome
from slipstream_bench.record import Record
from slipstream_bench.shapes import (
    AgentShape,
    ChatShape,
    ClosedLoop,
    DatasetShape,
    EditShape,
    OpenLoop,
    Shape,
)
from slipstream_bench.summary import Distribution, Goodput, Share, Summary, TokenSource

SCHEMA_VERSION = 1
# Above this share of one core the generator's own work is seen in the latencies.
BUSY_SHARE = 0.7
_WIDTH_WITHOUT_TERMINAL = 120
_NAMES: dict[type[Shape], str] = {
    ChatShape: "chat",
    EditShape: "edit",
    AgentShape: "agent",
    DatasetShape: "dataset",
}


def document(plan: Plan, outcome: Outcome, summary: Summary) -> dict[str, Any]:
    """Field names in camel case; times in milliseconds and seconds as their names say."""
    found: dict[str, Any] = {
        "schemaVersion": SCHEMA_VERSION,
        "startedAt": outcome.started_at.isoformat(),
        "url": plan.url,
        "model": outcome.model,
        "workload": {"name": _NAMES[type(plan.shape)], **_plain(plan.shape)},
        "load": {
            "loop": "closed" if isinstance(plan.load, ClosedLoop) else "open",
            **_plain(plan.load),
        },
        "limits": {**_plain(plan.limits), "deadlineS": plan.deadline_s},
        "warmupRequests": plan.warmup,
        "seed": plan.seed,
        "requestFields": {**plan.defaults, **plan.overrides},
        "generator": {
            "version": metadata.version("slipstream"),
            "python": platform.python_version(),
            "cpuS": outcome.cpu_s,
            "wallS": outcome.wall_s,
        },
        "stopped": outcome.stopped,
        "interrupted": outcome.is_interrupted,
        "abandonedTurns": outcome.abandoned_turns,
        "summary": _plain(summary),
    }
    if plan.per_request:
        begun_s = min((it.started_s for it in outcome.records), default=0.0)
        found["requests"] = [_row(record, begun_s) for record in outcome.records]
    return found


def write(path: Path, plan: Plan, outcome: Outcome, summary: Summary) -> None:
    """Whole or not at all. Raises WorkloadError."""
    text = json.dumps(document(plan, outcome, summary), indent=2, allow_nan=False) + "\n"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise WorkloadError(f"{path} cannot be written: {error}") from error


def show(plan: Plan, outcome: Outcome, summary: Summary) -> None:
    """On stdout, also where that is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
    console.print(f"\n[bold]{_NAMES[type(plan.shape)]}[/bold], {_load_words(plan.load)}", end="")
    console.print(f"; {plan.url}, model {outcome.model}", markup=False)
    console.print(_latencies(plan, summary))
    if summary.turns:
        console.print(_turns(summary))
    console.print(_figures(summary))
    for line in remarks(outcome, summary):
        console.print(line, markup=False, soft_wrap=True)


def remarks(outcome: Outcome, summary: Summary) -> list[str]:
    """What a reader of the figures must know besides them."""
    lines = [
        f"failed: {count} × {label}: {summary.failure_examples[label]}"
        for label, count in sorted(summary.failed.items())
    ]
    if outcome.abandoned_turns:
        lines.append(f"not asked, an earlier turn failed: {outcome.abandoned_turns} turns")
    if summary.token_source is TokenSource.CHUNKS:
        lines.append("the endpoint counts no tokens: every chunk counts as one")
    if summary.token_source is TokenSource.MIXED:
        lines.append("the endpoint counts tokens of some answers only: others count one a chunk")
    if outcome.wall_s > 0 and outcome.cpu_s / outcome.wall_s > BUSY_SHARE:
        share = outcome.cpu_s / outcome.wall_s
        lines.append(f"the generator itself was busy ({share:.0%} of a core): latencies include it")
    if outcome.stopped is not None:
        lines.append(f"stopped early: {outcome.stopped}")
    if outcome.is_interrupted:
        lines.append("interrupted: requests that were under way are left out")
    return lines


def _load_words(load: ClosedLoop | OpenLoop) -> str:
    if isinstance(load, ClosedLoop):
        return f"closed loop, {load.concurrency} at once"
    return f"open loop, {load.rate_per_s:g} sessions/s, burstiness {load.burstiness:g}"


def _latencies(plan: Plan, summary: Summary) -> Table:
    rows: list[tuple[str, Distribution | None]] = [
        ("TTFT, ms", summary.ttft_ms),
        ("TPOT, ms", summary.tpot_ms),
        ("between chunks, ms", summary.inter_token_ms),
        ("end to end, ms", summary.e2e_ms),
    ]
    if isinstance(plan.load, OpenLoop):
        rows += [
            ("queue delay at the client, ms", summary.queue_delay_ms),
            ("TTFT from arrival, ms", summary.ttft_from_arrival_ms),
            ("end to end from arrival, ms", summary.e2e_from_arrival_ms),
        ]
    rows += [
        ("prompt tokens", summary.prompt_tokens),
        ("output tokens", summary.output_tokens),
    ]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("n", "mean", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="right")
    for name, found in rows:
        table.add_row(name, *_cells(found))
    return table


def _cells(found: Distribution | None) -> list[str]:
    if found is None:
        return ["0", *["unknown"] * 5]
    values = (found.mean, found.p50, found.p90, found.p99, found.maximum)
    return [str(found.n), *(f"{value:.1f}" for value in values)]


def _turns(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("turn", "n", "TTFT p50, ms", "TTFT p90, ms", "prompt tokens p50", "cached"):
        table.add_column(name, justify="right")
    for it in summary.turns:
        table.add_row(
            str(it.turn),
            str(it.n),
            "unknown" if it.ttft_ms is None else f"{it.ttft_ms.p50:.1f}",
            "unknown" if it.ttft_ms is None else f"{it.ttft_ms.p90:.1f}",
            "unknown" if it.prompt_tokens is None else f"{it.prompt_tokens.p50:.0f}",
            "unknown" if it.cached is None else f"{it.cached.share:.1%}",
        )
    return table


def _figures(summary: Summary) -> Table:
    total = summary.total_tokens_per_s
    rows = [
        ("requests", f"{summary.succeeded} of {summary.requests} in {summary.duration_s:.2f} s"),
        ("requests/s", f"{summary.requests_per_s:.3g}"),
        ("output tokens/s", f"{summary.output_tokens_per_s:.1f}"),
        ("all tokens/s", "unknown" if total is None else f"{total:.1f}"),
        ("cached share of prompts", _share_words(summary.cached, summary.succeeded)),
    ]
    if summary.tokens_per_chunk is not None:
        rows.append(("tokens a chunk", f"{summary.tokens_per_chunk:.2f}"))
    if summary.accepted_predictions is not None:
        words = _share_words(summary.accepted_predictions, summary.succeeded)
        rows.append(("accepted predictions", words))
    if summary.goodput is not None:
        rows.append(("goodput", _goodput_words(summary.goodput)))
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, words in rows:
        table.add_row(name, words)
    return table


def _share_words(share: Share | None, num_requests: int) -> str:
    if share is None:
        return "unknown: the endpoint does not tell"
    return f"{share.share:.1%} (told by {share.n} of {num_requests} requests)"


def _goodput_words(goodput: Goodput) -> str:
    parts = (
        f"{name} ≤ {limit:g}: {goodput.met_share[name]:.1%}"
        for name, limit in goodput.objectives.items()
    )
    good = f"{goodput.share:.1%} ({goodput.good} of {goodput.of}), {goodput.per_s:.3g} requests/s"
    return f"{good}; {', '.join(parts)}"


def _row(record: Record, begun_s: float) -> dict[str, Any]:
    def at_s(time_s: float | None) -> float | None:
        return None if time_s is None else time_s - begun_s

    return {
        "turn": record.turn + 1,
        "intendedS": at_s(record.intended_s),
        "startedS": at_s(record.started_s),
        "firstTokenS": at_s(record.first_token_s),
        "lastTokenS": at_s(record.last_token_s),
        "endedS": at_s(record.ended_s),
        "chunks": record.num_chunks,
        "usage": _plain(record.usage),
        "finishReason": record.finish_reason,
        "failure": None if record.failure is None else record.failure.label,
    }


def _plain(value: Any) -> Any:
    """Dataclasses become objects in camel case; keys of mappings stay as they are."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        names += ["share"] if isinstance(value, Share | Goodput) else []
        return {_camel(name): _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: _plain(it) for key, it in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(it) for it in value]
    if isinstance(value, Enum | Path):
        return str(value)
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
