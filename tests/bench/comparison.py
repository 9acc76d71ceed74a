"""Two sides in turns, round by round: what the benches against peers share.

The sides of a row take turns, and take turns in beginning; whoever is not asked is stopped, so that
it takes no processor time. The first round is not counted. A row's figures are medians over its
rounds, its ratio is the median of the rounds' ratios, and both sides had the same work in a round.
What other processes and other guests of the host took meanwhile stands beside each row: with more
than a tenth of a core the figures say little.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console
from rich.table import Table

from slipstream_bench.errors import WorkloadError
from tests.bench import engine_machine
from tests.bench.engine_sides import Side, SideError

ROOT = Path(__file__).resolve().parents[2]
OK, MISSED, FAILED = 0, 1, 2
# Cores that others may take before a figure is marked.
_QUIET_CORES = 0.1


class Asked(Protocol):
    """What is asked: a process of its own, or one of two ways to ask the same process.

    `facts`: what a measurement found beside its figure.
    """

    versions: dict[str, str]
    facts: dict[str, float]

    @property
    def group(self) -> int: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


A = TypeVar("A", bound=Asked)
S = TypeVar("S", bound=Side)


@dataclass(frozen=True, slots=True)
class Setting:
    """`build`: for what is written; `peers`: their environments; `threads`: of each side."""

    root: Path
    build: Path
    peers: Path
    threads: int
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row(Generic[A]):
    """`measure` asks a side, with a number that chooses the work; `is_time`: less is better.

    `num_turns`: rounds of this row for each round that is asked for: what a round does in a second
    says less than what it does in a minute. `note`: what the figure must be read with.
    """

    name: str
    work: str
    against: str
    unit: str
    floor: float
    aim: float
    measure: Callable[[A, int], float]
    is_time: bool = False
    num_turns: int = 1
    note: str = ""


@dataclass(frozen=True, slots=True)
class Pair(Generic[A]):
    """Rows for which the same two sides are started, ours first."""

    peer_name: str
    sides: Callable[[Setting], AbstractContextManager[tuple[A, A]]]
    rows: tuple[Row[A], ...]


def apart(
    ours: Callable[[Setting], S], peer: Callable[[Setting], S]
) -> Callable[[Setting], AbstractContextManager[tuple[S, S]]]:
    """Two sides with processes of their own."""

    @contextmanager
    def started(setting: Setting) -> Iterator[tuple[S, S]]:
        with ours(setting) as first:
            first.pause()
            with peer(setting) as second:
                second.pause()
                yield first, second

    return started


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
    facts: dict[str, dict[str, float]]
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
            "note": row.note,
            "facts": self.facts,
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


def main(pairs: Sequence[Pair[Any]], file_name: str, description: str | None) -> int:
    """Exit code 1: a floor was missed; 2: a row could not be measured."""
    options = _options(pairs, description)
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
        for pair in pairs:
            rows = [row for row in pair.rows if not options.only or row.name in options.only]
            if rows:
                results.extend(_compare(pair, rows, setting, options.rounds))
    except (SideError, WorkloadError) as error:
        notes.print(f"failed: {error}", markup=False, highlight=False)
        return FAILED
    finally:
        _report(results, setting, setting.build / file_name)
    return MISSED if any(result.has_missed for result in results) else OK


def _options(pairs: Sequence[Pair[Any]], description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for pair in pairs for row in pair.rows]
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
    with pair.sides(setting) as (ours, peer):
        for row in rows:
            yield _measure(row, ours, peer, pair.peer_name, setting, rounds * row.num_turns)


def _measure(
    row: Row[Any], ours: Asked, peer: Asked, peer_name: str, setting: Setting, rounds: int
) -> Result:
    before = engine_machine.load_average()
    found: list[Round] = []
    facts: dict[str, list[Mapping[str, float]]] = {"ours": [], peer_name: []}
    for number in range(rounds + 1):
        setting.tell(f"{row.name}: " + (f"round {number} of {rounds}" if number else "warming up"))
        groups = (ours.group, peer.group)
        begun_s, used = time.monotonic(), engine_machine.usage(groups)
        # Whoever comes first finds what the other one has left behind, and the machine as it is.
        sides = (ours, peer) if number % 2 else (peer, ours)
        figures = {side: _asked(row.measure, side, number) for side in sides}
        others_s = engine_machine.usage(groups).others_s(used)
        one = Round(figures[ours], figures[peer], others_s / (time.monotonic() - begun_s))
        setting.tell(
            f"  ours {one.ours:.4g}, {peer_name} {one.peer:.4g} {row.unit}"
            f" (others took {one.others:.2f} cores)"
        )
        if number:
            found.append(one)
            facts["ours"].append(ours.facts)
            facts[peer_name].append(peer.facts)
    versions = {"ours": {"slipstream": version("slipstream")} | ours.versions}
    versions[peer_name] = peer.versions
    loads = (before, engine_machine.load_average())
    medians = {name: _medians(every) for name, every in facts.items()}
    return Result(row, tuple(found), versions, medians, loads)


def _asked(measure: Callable[[Any, int], float], side: Asked, number: int) -> float:
    side.resume()
    try:
        return measure(side, number)
    finally:
        side.pause()


def _medians(facts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = facts[0] if facts else {}
    return {name: round(statistics.median(it[name] for it in facts), 4) for name in names}


def _report(results: Sequence[Result], setting: Setting, path: Path) -> None:
    """The table to stdout, and the file; what was measured before a failure too."""
    if not results:
        return
    loads = [load for result in results for load in result.load_averages]
    notes = dict.fromkeys(result.row.note for result in results if result.row.note)
    table = Table(
        title=f"{engine_machine.model_name()}, {setting.threads} threads; load average "
        f"{min(loads):.1f} to {max(loads):.1f}",
        title_justify="left",
        caption="\n".join(notes) or None,
        caption_justify="left",
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
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for result in results:
        for side, facts in result.facts.items():
            if facts:
                words = ", ".join(f"{name} {value:g}" for name, value in facts.items())
                console.print(f"{result.row.name}, {side}: {words}", highlight=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    documents = [result.document() for result in results]
    path.write_text(json.dumps(documents, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _verdict(result: Result) -> str:
    if result.has_missed:
        return "[red]floor missed"
    return "[green]aim met" if result.ratio >= result.row.aim else "floor met"
