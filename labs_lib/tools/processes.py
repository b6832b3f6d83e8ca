"""A child process that is watched: its memory and processor time, its whole tree, its end."""

import contextlib
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

MEGABYTE = 1 << 20
_GRACE = 5.0  # seconds between asking a tree to end and ending it


class WatchedProcess:
    """A command in a session of its own, so that Ctrl-C reaches the watcher first, which ends the tree.

    Its output goes to `log`. `sample` has to be called every now and then: memory and time of the
    *descendants* are what it sees (the command itself is papermill, which is not a lab's cost).
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.peak_rss_mb = 0.0
        self._cpu: dict[tuple[int, float], float] = {}
        self._started = time.monotonic()
        with open(log, "wb") as file:
            self._popen = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        """Wall-clock time since the start."""
        return time.monotonic() - self._started

    @property
    def cpu_seconds(self) -> float:
        """User and system time of every descendant seen, as of the last sample."""
        return sum(self._cpu.values())

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._popen.poll()

    def sample(self) -> None:
        """Look at the tree once."""
        total = 0
        for process in self._descendants():
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                self._cpu[process.pid, process.create_time()] = times.user + times.system
                total += process.memory_info().rss
                self.peak_rss_mb = max(self.peak_rss_mb, high_water_mb(process.pid))
        self.peak_rss_mb = max(self.peak_rss_mb, total / MEGABYTE)

    def stop(self) -> None:
        """End the whole tree, the unwilling by force; does nothing if it has ended."""
        tree = self._descendants()
        with contextlib.suppress(psutil.Error):
            tree.append(psutil.Process(self._popen.pid))
        for process in tree:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        for process in psutil.wait_procs(tree, timeout=_GRACE)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(tree, timeout=_GRACE)
        self._popen.wait()

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._popen.pid).children(recursive=True)
        except psutil.Error:
            return []


def high_water_mb(pid: int) -> float:
    """The largest memory a process ever had, which Linux keeps: a short peak falls between two samples."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    match = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    return int(match[1]) / 1024 if match else 0.0
