"""What the machine is and how much of it others take: what a figure must be read with."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Fields of /proc/stat's first line that are work: user, nice, system, irq, softirq, steal.
_BUSY = (0, 1, 2, 5, 6, 7)


def cpus() -> int:
    return len(os.sched_getaffinity(0))


def model_name() -> str:
    """As /proc/cpuinfo has it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return "unknown"


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of processor time since the machine and these process groups started."""

    all_s: float
    own_s: float

    def others_s(self, before: "Usage") -> float:
        """What everyone else took meanwhile, other guests of the same host included."""
        return max(0.0, (self.all_s - before.all_s) - (self.own_s - before.own_s))


def usage(groups: Collection[int]) -> Usage:
    """`groups`: process groups that count as own, this process's besides."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    own = {*groups, os.getpgrp()}
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The program's name may hold spaces; what follows its bracket is fixed.
            values = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(values[2]) in own:
            # utime, stime and those of children that were waited for.
            ticks += sum(int(value) for value in values[11:15])
    return Usage(sum(int(fields[index]) for index in _BUSY) / _TICKS_PER_S, ticks / _TICKS_PER_S)
