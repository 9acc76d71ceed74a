"""Unexpected ends: the termination log names the exception that caused them."""

import asyncio
from pathlib import Path

import pytest

from slipstream_api import failure
from slipstream_api.failure import StartupFailure


def test_an_exit_code_passes_and_nothing_is_told(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    assert failure.guard(lambda: 3, log) == 3
    assert not log.exists()


def test_an_exception_is_told_in_the_termination_log_and_in_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination-log"

    def serve() -> int:
        raise KeyError("missing")

    assert failure.guard(serve, log) == 1
    told = StartupFailure(failure.UNEXPECTED, "KeyError: 'missing'")
    assert failure.parse(log.read_text(encoding="utf-8")) == told
    lines = capsys.readouterr().err.splitlines()
    assert failure.parse(lines[-1]) == told
    assert lines[0].startswith("Traceback")


def test_of_a_group_of_tasks_the_exception_inside_is_told(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"

    async def fail() -> None:
        raise ValueError("inside")

    async def run() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            inner.create_task(fail())
            outer.create_task(asyncio.sleep(0))

    def serve() -> int:
        asyncio.run(run())
        return 0

    assert failure.guard(serve, log) == 1
    told = failure.parse(log.read_text(encoding="utf-8"))
    assert told is not None
    assert told.message == "ValueError: inside"


def test_an_exit_is_no_failure(tmp_path: Path) -> None:
    def serve() -> int:
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        failure.guard(serve, tmp_path / "termination-log")
    assert not (tmp_path / "termination-log").exists()
