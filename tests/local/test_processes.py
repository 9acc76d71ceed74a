"""Processes are found by record or by mark, stopped politely, and never confused with others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream_local import state, supervisor, teardown
from slipstream_local.errors import ComponentError, LocalClusterError
from slipstream_local.layout import Layout
from slipstream_local.state import ClusterState, ProcessRecord

SLEEP = ("sleep", "300")
IGNORING = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
STUBBORN = (sys.executable, "-c", f"{IGNORING}; print('up', flush=True); time.sleep(300)")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    supervisor.kill_marked(tmp_path)


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.02)


def test_a_started_process_is_alive_until_it_is_stopped(root: Path) -> None:
    record = supervisor.start(SLEEP, root, root / "log", tied=False)
    assert supervisor.is_alive(record)
    deadline = time.monotonic() + 20
    # The kernel lets the starter go on a moment before the new program's arguments can be read.
    while not supervisor.command_line(record.pid):
        assert time.monotonic() < deadline
    assert supervisor.command_line(record.pid) == SLEEP
    supervisor.stop(record, 10)
    assert not supervisor.is_alive(record)
    supervisor.stop(record, 10)


def test_a_process_that_ignores_the_request_is_killed_after_the_grace(root: Path) -> None:
    record = supervisor.start(STUBBORN, root, root / "log", tied=False)
    wait_for(root / "log", "up")
    supervisor.stop(record, 0.2)
    assert not supervisor.is_alive(record)


def test_another_process_with_the_recorded_id_is_not_ours(root: Path) -> None:
    record = supervisor.start(SLEEP, root, root / "log", tied=False)
    stranger = replace(record, start_ticks=record.start_ticks + 1)
    assert not supervisor.is_alive(stranger)
    supervisor.stop(stranger, 0.1)
    assert supervisor.is_alive(record), "a stranger was killed"


def test_an_unrecorded_child_of_a_child_is_found_by_its_mark_and_killed(root: Path) -> None:
    script = f"{SLEEP[0]} {SLEEP[1]} & echo $! && wait"
    parent = supervisor.start(("sh", "-c", script), root, root / "log", tied=False)
    wait_for(root / "log", "\n")
    child = int((root / "log").read_text())
    assert {parent.pid, child} <= set(supervisor.marked_processes(root))
    supervisor.kill_marked(root)
    assert supervisor.marked_processes(root) == []


def test_clusters_do_not_find_each_others_processes(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    record = supervisor.start(SLEEP, root, root / "log", tied=False)
    supervisor.kill_marked(other)
    assert supervisor.is_alive(record)


def test_a_tied_process_dies_with_its_starter(root: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from slipstream_local import supervisor; "
        f"root = Path({str(root)!r}); "
        f"r = supervisor.start({SLEEP!r}, root, root / 'log', tied=True); "
        "print(r.pid, flush=True); time.sleep(300)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert supervisor.start_ticks(pid) is not None
    starter.send_signal(signal.SIGKILL)
    starter.communicate(timeout=10)
    deadline = time.monotonic() + 10
    while supervisor.start_ticks(pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_environment_of_a_component_is_not_the_shells(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("KUBECONFIG", "/somewhere/else")
    assert set(supervisor.environment(root)) - {"GOMAXPROCS", "TZ"} == {
        "PATH",
        "HOME",
        supervisor.MARKER,
    }


def test_a_program_that_does_not_exist_is_an_error_that_names_it(root: Path) -> None:
    with pytest.raises((ComponentError, FileNotFoundError), match="no-such-program"):
        supervisor.start(("no-such-program",), root, root / "log", tied=False)


def test_the_last_lines_of_a_log_are_shown_also_when_there_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert supervisor.last_lines(log) == "(no log)"
    log.write_text("")
    assert supervisor.last_lines(log) == "(empty log)"
    log.write_text("\n".join(str(n) for n in range(100)))
    assert supervisor.last_lines(log, 2) == "  98\n  99"


def test_a_state_survives_its_file(root: Path, some_layout: Layout) -> None:
    made = ClusterState(some_layout).with_process("etcd", ProcessRecord(7, 8, ("etcd", "-x")))
    state.save(made)
    assert state.load(some_layout.root) == made
    assert (some_layout.root / state.FILE_NAME).stat().st_mode & 0o077 == 0
    assert state.load(root / "nothing-here") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schemaVersion": 99}'])
def test_a_broken_state_file_says_how_to_go_on(tmp_path: Path, text: str) -> None:
    (tmp_path / state.FILE_NAME).write_text(text)
    with pytest.raises(LocalClusterError, match="slipstream local down"):
        state.load(tmp_path)


def test_removing_takes_processes_and_files_whatever_was_recorded(root: Path) -> None:
    cluster_root = root / "c"
    cluster_root.mkdir()
    record = supervisor.start(SLEEP, cluster_root, cluster_root / "log", tied=False)
    assert teardown.remove("no-such-cluster", cluster_root)
    assert not supervisor.is_alive(record)
    assert not cluster_root.exists()
    assert not teardown.remove("no-such-cluster", cluster_root)


def test_mounts_are_taken_deepest_first_and_only_below_our_folders() -> None:
    def line(point: str) -> str:
        return f"1 0 0:1 / {point} rw - tmpfs tmpfs rw"

    points = ["/s/c", "/s/c/pods/x", "/s/c/pods", "/s/other", "/run/c/a\\040b", "/", "/s/c/pods/x"]
    found = teardown.mounts_below("\n".join(map(line, points)), (Path("/s/c"), Path("/run/c")))
    assert found[:2] == ["/s/c/pods/x", "/s/c/pods/x"]
    assert set(found) == {"/s/c", "/s/c/pods", "/s/c/pods/x", "/run/c/a b"}
    assert found.index("/s/c/pods") < found.index("/s/c")


def test_our_own_process_is_never_a_marked_one(root: Path) -> None:
    assert os.getpid() not in supervisor.marked_processes(root)
