"""`make bench-engine`: the engine against its peers on this machine, with the same SmolLM2 weights.

    python -m tests.bench.engine [--only ROW]… [--rounds 5] [--peers-from FOLDER]

The two sides of a row take turns; whoever is not asked is stopped, so that it takes no processor
time. The first round is not counted. A row's figures are medians over its rounds, its ratio is the
median of the rounds' ratios, and both sides had the same prompts in a round. What other processes
and other guests of the host took meanwhile stands beside each row: with more than a tenth of a core
the figures say little.

Writes build/bench/engine.json. Exit code 1: a floor was missed; 2: a row could not be measured.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import engine_machine
from tests.bench.engine_rows import PAIRS, Pair, Row, Setting
from tests.bench.engine_sides import Side, SideError

ROOT = Path(__file__).resolve().parents[2]
OK, MISSED, FAILED = 0, 1, 2
# Cores that others may take before a figure is marked.
_QUIET_CORES = 0.1


@dataclass(frozen=True, slots=True)
class Round:
    """`others`: processor cores that nobody of ours used, on average."""

    ours: float
    peer: float
    others: float


@dataclass(frozen=True, slots=True)
class Result:
    row: Row[Any]
    rounds: tuple[Round, ...]
    versions: dict[str, dict[str, str]]
    load_averages: tuple[float, float]

    @property
    def ours(self) -> float:
        return statistics.median(it.ours for it in self.rounds)

    @property
    def peer(self) -> float:
        return statistics.median(it.peer for it in self.rounds)

    @property
    def ratio(self) -> float:
        """How many times better: more tokens a second, or less time."""
        pairs = [(it.ours, it.peer) for it in self.rounds]
        if self.row.is_time:
            return statistics.median(peer / ours for ours, peer in pairs)
        return statistics.median(ours / peer for ours, peer in pairs)

    @property
    def others(self) -> float:
        return statistics.fmean(it.others for it in self.rounds)

    @property
    def has_missed(self) -> bool:
        return self.ratio < self.row.floor

    def document(self) -> dict[str, Any]:
        row = self.row
        return {
            "work": row.work,
            "against": row.against,
            "ours": round(self.ours, 4),
            "peer": round(self.peer, 4),
            "ratio": round(self.ratio, 3),
            "floor": row.floor,
            "aim": row.aim,
            "unit": row.unit,
            "rounds": [
                {
                    "ours": round(it.ours, 4),
                    "peer": round(it.peer, 4),
                    "othersCores": round(it.others, 3),
                }
                for it in self.rounds
            ],
            "versions": self.versions,
            "machine": {
                "cpu": engine_machine.model_name(),
                "cpus": engine_machine.cpus(),
                "loadAverage": [round(load, 2) for load in self.load_averages],
            },
        }


def main() -> int:
    options = _options()
    # Ended from outside it must end what it has started, some of which is stopped.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(FAILED))
    notes = Console(stderr=True)
    setting = Setting(
        root=ROOT,
        build=ROOT / "build" / "bench",
        peers=options.peers_from,
        threads=engine_machine.cpus(),
        tell=lambda text: notes.print(f"[dim]{text}"),
    )
    results: list[Result] = []
    try:
        for pair in PAIRS:
            rows = [row for row in pair.rows if not options.only or row.name in options.only]
            if rows:
                results.extend(_compare(pair, rows, setting, options.rounds))
    except SideError as error:
        notes.print(f"failed: {error}", markup=False, highlight=False)
        return FAILED
    finally:
        _report(results, setting)
    return MISSED if any(result.has_missed for result in results) else OK


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for pair in PAIRS for row in pair.rows]
    parser.add_argument("--only", action="append", choices=names, help="a row; may be repeated")
    parser.add_argument("--rounds", type=_positive, default=5)
    parser.add_argument(
        "--peers-from",
        type=Path,
        default=ROOT / "build" / "bench",
        help="folder with the peers' environments; those that are missing are installed there",
    )
    options = parser.parse_args()
    options.peers_from = options.peers_from.resolve()
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _compare(
    pair: Pair[Any], rows: Sequence[Row[Any]], setting: Setting, rounds: int
) -> Iterator[Result]:
    setting.tell(f"starting our engine and {pair.peer_name}")
    with pair.ours(setting) as ours:
        ours.pause()
        with pair.peer(setting) as peer:
            peer.pause()
            for row in rows:
                yield _measure(row, ours, peer, pair.peer_name, setting, rounds)


def _measure(
    row: Row[Any], ours: Side, peer: Side, peer_name: str, setting: Setting, rounds: int
) -> Result:
    before = engine_machine.load_average()
    found: list[Round] = []
    for number in range(rounds + 1):
        setting.tell(f"{row.name}: " + (f"round {number} of {rounds}" if number else "warming up"))
        groups = (ours.group, peer.group)
        begun_s, used = time.monotonic(), engine_machine.usage(groups)
        figures = [_asked(row.measure, side, number) for side in (ours, peer)]
        others_s = engine_machine.usage(groups).others_s(used)
        one = Round(figures[0], figures[1], others_s / (time.monotonic() - begun_s))
        setting.tell(
            f"  ours {one.ours:.4g}, {peer_name} {one.peer:.4g} {row.unit}"
            f" (others took {one.others:.2f} cores)"
        )
        if number:
            found.append(one)
    versions = {"ours": {"slipstream": version("slipstream")} | ours.versions}
    versions[peer_name] = peer.versions
    return Result(row, tuple(found), versions, (before, engine_machine.load_average()))


def _asked(measure: Callable[[Any, int], float], side: Side, number: int) -> float:
    side.resume()
    try:
        return measure(side, number)
    finally:
        side.pause()


def _report(results: Sequence[Result], setting: Setting) -> None:
    """The table to stdout, and the file; what was measured before a failure too."""
    if not results:
        return
    loads = [load for result in results for load in result.load_averages]
    table = Table(
        title=f"{engine_machine.model_name()}, {setting.threads} threads; load average "
        f"{min(loads):.1f} to {max(loads):.1f}",
        title_justify="left",
    )
    table.add_column("work")
    table.add_column("against")
    for name in ("ours", "peer", "unit", "ratio", "floor", "aim", "others' cores"):
        table.add_column(name, justify="right")
    table.add_column("")
    for result in results:
        row = result.row
        figures = (f"{result.ours:.4g}", f"{result.peer:.4g}", row.unit)
        limits = (f"{result.ratio:.2f} ×", f"{row.floor:g} ×", f"{row.aim:g} ×")
        others = f"{result.others:.2f}" + (" !" if result.others > _QUIET_CORES else "")
        table.add_row(row.work, row.against, *figures, *limits, others, _verdict(result))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    path = setting.build / "engine.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    documents = [result.document() for result in results]
    path.write_text(json.dumps(documents, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _verdict(result: Result) -> str:
    if result.has_missed:
        return "[red]floor missed"
    return "[green]aim met" if result.ratio >= result.row.aim else "floor met"


if __name__ == "__main__":
    sys.exit(main())
