"""`make bench-drafters`: how many tokens a step drafts are worth on real edits, without a model.

    python -m tests.bench.drafters [--package NAME:OLD:NEW]…

An edit is a file that two releases of a public package have and that differs between them; the
packages are fetched when this runs. The answer is the new file, and it is *forced*: of each draft
what agrees with it becomes output, and one token more, as if a model made the edit without a
mistake. So the figures bound acceptance from above and say nothing of any model.

Drafters see what they see when they serve: the prompt in SmolLM2's tokens and, as the prediction,
the code that `spec.sources` finds in it. A step's time is the processor time of proposing and
committing for one sequence. The first token of an answer comes with its prompt and is not counted.

Writes build/bench/drafters.json. Exit code 1: a floor was missed; 2: nothing could be measured.
"""

import argparse
import difflib
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tokenizers import Tokenizer

from slipstream_bench import edit, packages, releases
from slipstream_bench.edit import Edit
from slipstream_bench.errors import WorkloadError
from slipstream_bench.options import DEFAULT_PACKAGES
from slipstream_bench.releases import Releases
from slipstream_engine.spec import lookup, sources
from slipstream_engine.spec.chooser import Chooser, Member
from slipstream_engine.spec.draft import Drafter, Subject
from slipstream_engine.spec.edit import EditDrafter
from slipstream_engine.spec.lookup import LookupDrafter
from slipstream_engine.spec.suffix import SuffixDrafter
from slipstream_weights import source
from slipstream_weights.checkpoint import TextModel
from tests.bench import engine_machine, engine_peers

ROOT = Path(__file__).resolve().parents[2]
OK, MISSED, FAILED = 0, 1, 2
_BUDGET = 64
_LIMIT_MS = 1.0
_MAX_FILE_CHARACTERS = 60_000
_CONTEXT_LINES = 2


@dataclass(frozen=True, slots=True)
class Case:
    """In tokens: what is asked, what is predicted, what is answered."""

    prompt: tuple[int, ...]
    prediction: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One answer. `start_ms`: the prompt is read, before any step; both are processor time."""

    num_tokens: int
    num_drafted: int
    num_accepted: int
    start_ms: float
    steps_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all edits together."""

    runs: tuple[Run, ...]

    @property
    def tokens_per_step(self) -> float:
        num_steps = sum(len(run.steps_ms) for run in self.runs)
        return sum(run.num_tokens for run in self.runs) / num_steps

    def document(self) -> dict[str, float]:
        num_drafted = sum(run.num_drafted for run in self.runs)
        return {
            "tokensPerStep": round(self.tokens_per_step, 3),
            "acceptance": round(sum(run.num_accepted for run in self.runs) / num_drafted, 4),
            "stepMsP50": round(step_ms([self], 50), 4),
            "stepMsP99": round(step_ms([self], 99), 4),
            "startMsMax": round(max(run.start_ms for run in self.runs), 2),
        }


def step_ms(all_figures: Sequence[Figures], percent: int) -> float:
    """Below which so many of a hundred steps stay."""
    found = [it for figures in all_figures for run in figures.runs for it in run.steps_ms]
    return statistics.quantiles(found, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True, slots=True)
class Row:
    """`is_strict`: the floor itself is not enough; `is_time`: less is better."""

    work: str
    against: str
    ours: float
    peer: float
    floor: float
    aim: float
    unit: str = "tokens/step"
    is_strict: bool = False
    is_time: bool = False

    @property
    def ratio(self) -> float:
        return self.peer / self.ours if self.is_time else self.ours / self.peer

    @property
    def has_missed(self) -> bool:
        return self.ratio < self.floor or (self.is_strict and self.ratio == self.floor)

    def document(self) -> dict[str, Any]:
        return {
            "work": self.work,
            "against": self.against,
            "ours": round(self.ours, 4),
            "peer": round(self.peer, 4),
            "ratio": round(self.ratio, 3),
            "floor": self.floor,
            "aim": self.aim,
            "unit": self.unit,
        }


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked of all edits. `floor` and `aim`: tokens a step."""

    name: str
    has_update: bool
    floor: float
    aim: float


# The aims were measured with an approximation of a tokeniser on other files, in another program.
WORKS = (
    Work("edits, update snippet in the prompt", True, 45.0, 53.1),
    Work("edits, no snippet", False, 15.0, 18.8),
)


def hybrid() -> Drafter:
    """What serves edits: cursor and automaton, whichever promises more."""
    return Chooser([Member(EditDrafter()), Member(SuffixDrafter())])


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "hybrid": hybrid,
    "suffix": SuffixDrafter,
    "edit": EditDrafter,
    "lookup": LookupDrafter,
    "common lookup": lambda: LookupDrafter(lookup.COMMON),
}


def forced(drafter: Drafter, case: Case, budget: int) -> Run:
    """Have the answer said, whatever is drafted."""
    key = ("bench", 0)
    answer, place = case.answer, 1
    num_drafted = num_accepted = 0
    steps_ms: list[float] = []
    start_ms = _took_ms(lambda: drafter.start(Subject(key, case.prompt, case.prediction)))
    start_ms += _took_ms(lambda: drafter.commit(key, answer[:1]))
    while place < len(answer):
        began_s = time.process_time()
        drafted = drafter.propose([(key, budget)])[0].tokens
        step_ms = 1000 * (time.process_time() - began_s)
        right = num_agreeing(drafted, answer[place:])
        said = answer[place : place + right + 1]
        began_s = time.process_time()
        drafter.commit(key, said)
        steps_ms.append(step_ms + 1000 * (time.process_time() - began_s))
        num_drafted += len(drafted)
        num_accepted += right
        place += len(said)
    drafter.stop(key, finished=True)
    return Run(len(answer) - 1, num_drafted, num_accepted, start_ms, tuple(steps_ms))


def num_agreeing(drafted: Sequence[int], answer: Sequence[int]) -> int:
    """How many of the first tokens are the same."""
    pairs = enumerate(zip(drafted, answer, strict=False))
    return next((n for n, (ours, its) in pairs if ours != its), min(len(drafted), len(answer)))


def case_of(one: Edit, model: TextModel, *, has_update: bool) -> Case:
    """With the update snippet as the models take it that merge one, or told only to change it."""
    if has_update:
        prompt = f"<code>{one.old}</code>\n<update>{snippet(one)}</update>\n"
        answer = one.new
    else:
        asks = "Bring this file up to date. Answer with all of it in one block of code."
        prompt = f"{asks}\n\n```python\n{one.old}```\n"
        answer = f"```python\n{one.new}```"
    encode = functools.partial(_encoded, model.tokenizer)
    end = (min(model.end_tokens),)
    return Case(encode(prompt), encode(sources.find([prompt])), encode(answer) + end)


def snippet(one: Edit) -> str:
    """The diff's added lines and those around them."""
    old, new = one.old.splitlines(), one.new.splitlines()
    _, _, *lines = difflib.unified_diff(old, new, n=_CONTEXT_LINES, lineterm="")
    return "\n".join(line[1:] for line in lines if line[0] in "+ ")


def rows_of(work: Work, by_drafter: dict[str, Figures]) -> list[Row]:
    ours = by_drafter["hybrid"].tokens_per_step
    best, common = (by_drafter[name].tokens_per_step for name in ("lookup", "common lookup"))
    return [
        Row(work.name, "one token a step", ours, 1.0, work.floor, work.aim),
        Row(
            work.name,
            f"prompt lookup, n 2 to 8, K={_BUDGET}",
            ours,
            best,
            1.0,
            1.15,
            is_strict=True,
        ),
        Row(work.name, "prompt lookup, n to 3, K=10", ours, common, 1.0, 3.0, is_strict=True),
    ]


def time_rows(hybrids: Sequence[Figures]) -> list[Row]:
    return [
        Row(
            work=f"Python of a step, percentile {percent}",
            against="a millisecond",
            ours=step_ms(hybrids, percent),
            peer=_LIMIT_MS,
            floor=1.0,
            aim=aim,
            unit="ms",
            is_strict=True,
            is_time=True,
        )
        for percent, aim in ((50, 4.0), (99, 2.0))
    ]


def main() -> int:
    options = _options()
    notes = Console(stderr=True)
    try:
        edits = _edits(options.package, notes)
    except WorkloadError as error:
        notes.print(f"failed: {error}", markup=False, highlight=False)
        return FAILED
    model = source.open_checkpoint(engine_peers.gguf()).text_model()
    rows: list[Row] = []
    figures: dict[str, dict[str, Figures]] = {}
    with Progress(console=notes, transient=True) as progress:
        for work in WORKS:
            cases = [case_of(one, model, has_update=work.has_update) for one in edits]
            figures[work.name] = {}
            for name, make in DRAFTERS.items():
                drafter = make()
                steps = progress.track(cases, description=f"{work.name}: {name}")
                runs = tuple(forced(drafter, case, _BUDGET) for case in steps)
                figures[work.name][name] = Figures(runs)
            rows += rows_of(work, figures[work.name])
    rows += time_rows([by_drafter["hybrid"] for by_drafter in figures.values()])
    _report(rows, figures, edits)
    return MISSED if any(row.has_missed for row in rows) else OK


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--package",
        action="append",
        type=releases.parse,
        help=f"two releases of a package, NAME:OLD:NEW; else {', '.join(DEFAULT_PACKAGES)}",
    )
    return parser.parse_args()


def _edits(chosen: Sequence[Releases] | None, notes: Console) -> list[Edit]:
    """Raises WorkloadError."""
    cache = packages.default_cache()
    found: list[Edit] = []
    for one in chosen or [releases.parse(text) for text in DEFAULT_PACKAGES]:
        old, new = (packages.files_of(one.package, it, cache) for it in (one.old, one.new))
        edits = edit.edits_between(one.package, old, new, _MAX_FILE_CHARACTERS)
        notes.print(f"[dim]{one.package} {one.old} → {one.new}: {len(edits)} changed files")
        found += edits
    if not found:
        raise WorkloadError("no file of these packages changed and fits")
    return found


def _encoded(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def _took_ms(call: Callable[[], None]) -> float:
    began_s = time.process_time()
    call()
    return 1000 * (time.process_time() - began_s)


def _report(
    rows: Sequence[Row], figures: dict[str, dict[str, Figures]], edits: Sequence[Edit]
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    names = ("tokensPerStep", "acceptance", "stepMsP50", "stepMsP99", "startMsMax")
    details = Table(
        "drafter", *names, title_justify="left", title=f"{len(edits)} edits, K={_BUDGET}"
    )
    for work, by_drafter in figures.items():
        details.add_section()
        details.add_row(f"[bold]{work}")
        for name, it in by_drafter.items():
            details.add_row(name, *(f"{it.document()[column]:g}" for column in names))
    console.print(details)
    table = Table("work", "against", "ours", "peer", "unit", "ratio", "floor", "aim", "")
    for row in rows:
        figure = (f"{row.ours:.4g}", f"{row.peer:.4g}", row.unit)
        limits = (f"{row.ratio:.2f} ×", f"{row.floor:g} ×", f"{row.aim:g} ×")
        table.add_row(row.work, row.against, *figure, *limits, _verdict(row))
    console.print(table)
    machine = {"cpu": engine_machine.model_name(), "cpus": engine_machine.cpus()}
    by_work = {
        work: {name: it.document() for name, it in by_drafter.items()}
        for work, by_drafter in figures.items()
    }
    documents = [row.document() | {"drafters": by_work, "machine": machine} for row in rows]
    path = ROOT / "build" / "bench" / "drafters.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(documents, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _verdict(row: Row) -> str:
    if row.has_missed:
        return "[red]floor missed"
    return "[green]aim met" if row.ratio >= row.aim else "floor met"


if __name__ == "__main__":
    sys.exit(main())
