"""How many processors this process may keep busy: knows Linux, and not what they are for."""

import os
from pathlib import Path

_CONTROL_GROUP = Path("/sys/fs/cgroup")


def count(control_group: Path = _CONTROL_GROUP) -> int:
    """Those that it may run on, and no more than its container's limit pays for; at least one.

    A Pod with a limit of 2 on a node of 64 sees 64: as many threads would use up the time of each
    period at once and stand still for the rest of it. Of a fraction the whole part: the serving
    process lives from the same limit.
    """
    limit = _limit(control_group)
    allowed = len(os.sched_getaffinity(0))
    return allowed if limit is None else max(1, min(allowed, int(limit)))


def _limit(control_group: Path) -> float | None:
    """Processors' time in each second; None without a limit. cgroup v2's file, then v1's two."""
    quota, period = _words(control_group / "cpu.max", 2)
    if quota is None:
        (quota,) = _words(control_group / "cpu" / "cpu.cfs_quota_us", 1)
        (period,) = _words(control_group / "cpu" / "cpu.cfs_period_us", 1)
    # "max" and -1 are no limits.
    if quota is None or period is None or not quota.isdigit() or not period.isdigit():
        return None
    return int(quota) / int(period) if int(quota) and int(period) else None


def _words(path: Path, number: int) -> list[str | None]:
    try:
        words = path.read_text().split()
    except OSError:
        words = []
    return [*words, *[None] * number][:number]
