"""What is said beside the figures, and which exit code a run has."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream_bench import process, report
from slipstream_bench.objectives import Objectives
from slipstream_bench.options import Options, settle
from slipstream_bench.outcome import Outcome
from slipstream_bench.record import Failure, FailureKind, Record, Usage
from slipstream_bench.summary import summarize

COUNTED = Record(0, 1.0, 1.0, 2.0, 1.5, 1.9, 2, (0.4,), Usage(10, 2, 5), "stop")
UNCOUNTED = replace(COUNTED, usage=Usage())
FAILED = replace(COUNTED, failure=Failure(FailureKind.HTTP, "slow down", status=429))
OUTCOME = Outcome("small", datetime(2026, 1, 1, tzinfo=UTC), [COUNTED], 0, None, False, 0.1, 2.0)
PLAN = settle(Options(url="http://127.0.0.1:9/v1"))


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (OUTCOME, ""),
        (replace(OUTCOME, records=[COUNTED, FAILED]), "failed: 1 × http_429: slow down"),
        (replace(OUTCOME, abandoned_turns=3), "an earlier turn failed: 3 turns"),
        (replace(OUTCOME, records=[UNCOUNTED]), "the endpoint counts no tokens"),
        (replace(OUTCOME, records=[COUNTED, UNCOUNTED]), "of some answers only"),
        (replace(OUTCOME, cpu_s=1.8), "the generator itself was busy (90% of a core)"),
        (replace(OUTCOME, stopped="enough"), "stopped early: enough"),
        (replace(OUTCOME, is_interrupted=True), "interrupted"),
    ],
)
def test_a_reader_is_told_what_limits_the_figures(outcome: Outcome, words: str) -> None:
    lines = report.remarks(outcome, summarize(outcome.records, Objectives()))
    if words:
        (line,) = lines
        assert words in line
    else:
        assert lines == []


@pytest.mark.parametrize(
    ("outcome", "min_goodput", "code"),
    [
        (OUTCOME, None, 0),
        (OUTCOME, 1.0, 0),
        (replace(OUTCOME, records=[COUNTED, FAILED]), 0.5, 0),
        (replace(OUTCOME, records=[COUNTED, FAILED]), 0.51, 3),
        (replace(OUTCOME, records=[COUNTED, FAILED]), None, 0),
        (replace(OUTCOME, records=[FAILED]), None, 1),
        (replace(OUTCOME, records=[]), None, 1),
        (replace(OUTCOME, stopped="enough"), None, 1),
        (replace(OUTCOME, is_interrupted=True), None, 130),
    ],
)
def test_the_exit_code(outcome: Outcome, min_goodput: float | None, code: int) -> None:
    summary = summarize(outcome.records, Objectives(ttft_ms=500))
    assert process.exit_code(summary, outcome, min_goodput) == code


def test_what_nobody_told_is_null_in_the_document() -> None:
    outcome = replace(OUTCOME, records=[UNCOUNTED])
    summary = summarize(outcome.records, Objectives())
    written = json.loads(json.dumps(report.document(PLAN, outcome, summary), allow_nan=False))
    found = written["summary"]
    assert (found["cached"], found["totalTokensPerS"], found["goodput"]) == (None, None, None)
    assert found["tokenSource"] == "chunks"
    assert "requests" not in written


def test_a_document_replaces_the_one_before_whole(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("x" * 100_000, encoding="utf-8")
    report.write(path, PLAN, OUTCOME, summarize(OUTCOME.records, Objectives()))
    assert json.loads(path.read_text(encoding="utf-8"))["model"] == "small"
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_can_be_shown_of_anything(capsys: pytest.CaptureFixture[str]) -> None:
    for records in ([], [FAILED], [UNCOUNTED], [COUNTED, replace(COUNTED, turn=1)]):
        outcome = replace(OUTCOME, records=records)
        report.show(PLAN, outcome, summarize(records, Objectives(ttft_ms=1)))
        shown = capsys.readouterr().out
        assert "chat, closed loop, 1 at once; http://127.0.0.1:9/v1, model small" in shown
        assert f"{sum(it.is_success for it in records)} of {len(records)} in" in shown


def test_the_readme_names_every_module_and_every_failure(repository: Path) -> None:
    package = repository / "engine" / "slipstream_bench"
    text = (package / "README.md").read_text(encoding="utf-8")
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    kinds = {"http_<status>" if kind is FailureKind.HTTP else kind.value for kind in FailureKind}
    assert {word for word in modules | kinds if f"`{word}`" not in text} == set()
