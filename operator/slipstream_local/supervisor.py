"""Start, find and stop the processes of a cluster; knows no Kubernetes.

Every process carries MARKER=<root of its cluster> in its environment and hands it to its children,
so that also a process whose record was never written can be found.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from slipstream_local.errors import ComponentError
from slipstream_local.layout import PROGRAMS_FOLDER
from slipstream_local.state import ProcessRecord

MARKER = "SLIPSTREAM_LOCAL_ROOT"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLL_S = 0.05
TIE_S = 5.0
LOG_LINES = 15
START_TICKS_FIELD = 19  # of /proc/<pid>/stat, counted after the command name


def start_ticks(pid: int) -> int | None:
    """None when there is no such process or it only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[START_TICKS_FIELD])


def is_alive(record: ProcessRecord) -> bool:
    return start_ticks(record.pid) == record.start_ticks


def environment(root: Path) -> dict[str, str]:
    """Small on purpose: proxies and settings of a login shell must not change a cluster."""
    kept = {name: os.environ[name] for name in ("GOMAXPROCS", "TZ") if name in os.environ}
    return {
        **kept,
        "PATH": f"{root / PROGRAMS_FOLDER}:{SYSTEM_PATH}",
        "HOME": str(root),
        MARKER: str(root),
    }


def start(argv: Sequence[str], root: Path, log: Path, *, tied: bool) -> ProcessRecord:
    """Start detached; a `tied` process is killed by the kernel when its starter dies."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = list(argv)
    if tied and shutil.which("setpriv") is not None:
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment(root),
            cwd=root,
            start_new_session=True,
        )
    # From here the record in the state file stands for the process; Popen would warn at exit.
    process.returncode = 0
    if len(command) > len(argv):
        _wait_tied(process.pid)
    ticks = start_ticks(process.pid)
    if ticks is None:
        raise ComponentError(f"{argv[0]} ended at once:\n{last_lines(log)}")
    return ProcessRecord(process.pid, ticks, tuple(argv))


def _wait_tied(pid: int) -> None:
    """Until setpriv has tied the process and become the program itself.

    A starter that dies before would leave it running; a cold machine takes that long (seen once).
    """
    deadline = time.monotonic() + TIE_S
    while time.monotonic() < deadline:
        try:
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        # Empty in the middle of an exec, and when the process has ended.
        if program not in (b"setpriv", b"") or start_ticks(pid) is None:
            return
        time.sleep(0.002)


def reap(pid: int) -> None:
    """Collect our own dead child, if it is one."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def marked_processes(root: Path) -> list[int]:
    """Ids of all processes that were started for the cluster in `root`, also indirectly."""
    wanted = f"{MARKER}={root}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if wanted in variables and start_ticks(int(entry.name)) is not None:
            found.append(int(entry.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _wait_gone(pids: Iterable[int], within_s: float) -> list[int]:
    """The ids that are still there when the time is over."""
    left = list(pids)
    deadline = time.monotonic() + within_s
    while left and time.monotonic() < deadline:
        for pid in left:
            reap(pid)
        left = [pid for pid in left if start_ticks(pid) is not None]
        if left:
            time.sleep(POLL_S)
    return left


def stop(record: ProcessRecord, grace_s: float) -> None:
    """Ask, wait, then kill; returns when the process is gone, so its port is free again."""
    if not is_alive(record):
        reap(record.pid)
        return
    _signal(record.pid, signal.SIGTERM)
    if _wait_gone([record.pid], grace_s):
        _signal(record.pid, signal.SIGKILL)
        if _wait_gone([record.pid], 10):
            raise ComponentError(f"process {record.pid} ({record.argv[0]}) does not die")


def kill_marked(root: Path, within_s: float = 10) -> None:
    """Kill what orderly stopping left behind."""
    deadline = time.monotonic() + within_s
    pids = marked_processes(root)
    while pids:
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        _wait_gone(pids, 2)
        pids = marked_processes(root)
        if pids and time.monotonic() > deadline:
            raise ComponentError(f"processes {pids} do not die")


def last_lines(log: Path, count: int = LOG_LINES) -> str:
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    lines = text.splitlines()[-count:]
    return "\n".join(f"  {line[:400]}" for line in lines) or "(empty log)"


def command_line(pid: int) -> tuple[str, ...]:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return tuple(part.decode(errors="replace") for part in data.split(b"\0")[:-1])


def kill(pid: int) -> None:
    _signal(pid, signal.SIGKILL)
    _wait_gone([pid], 10)
