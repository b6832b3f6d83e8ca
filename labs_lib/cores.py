"""How many labs, or how many workers of the tests, run side by side, and how many threads each has."""

import os
from math import inf
from pathlib import Path

MOST = 4  # each has a kernel of up to a gigabyte, and more than four seldom have work at the same time
CGROUP = Path("/sys/fs/cgroup")
THREADS_VARIABLE = "LABS_THREADS"  # of a lab whose profile leaves them open: labs side by side share the cores


def side_by_side(cgroup: Path = CGROUP) -> int:
    """`usable_cores`, `MOST` at most."""
    return min(MOST, usable_cores(cgroup))


def lab_threads(threads: int) -> int:
    """Threads of a lab whose profile says `threads`; for 0 the share that `make run-all` gave it, else every core."""
    return threads or int(os.environ.get(THREADS_VARIABLE) or usable_cores())


def usable_cores(cgroup: Path = CGROUP) -> int:
    """The cores that this process may use, one at least. A container's quota counts, not its host's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, _quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """The CPU quota of a Linux control group, in cores: version 2 has one file for it, version 1 has two."""
    try:
        if (file := cgroup / "cpu.max").is_file():
            quota, period = file.read_text().split()
        else:
            quota, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return inf if quota.strip() == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError):
        return inf
