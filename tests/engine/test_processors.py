"""The number of threads follows the container's limit, not the size of its node."""

import os
from pathlib import Path

import pytest

from slipstream_engine import processors


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "390000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 64),
        ({"cpu.max": ""}, 64),
        ({"cpu.max": "many 100000"}, 64),
        ({"cpu.max": "100000 0"}, 64),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, 64),
    ],
    ids=str,
)
def test_a_limit_counts_whole_processors_and_no_limit_none(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert processors.count(_write(tmp_path, files)) == expected


def test_this_machine_has_some() -> None:
    assert 1 <= processors.count() <= len(os.sched_getaffinity(0))
