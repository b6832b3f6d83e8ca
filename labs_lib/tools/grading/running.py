"""Running the checks: a process, a copy of the library and a time limit for each, and nothing left behind."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from labs_lib.cores import side_by_side
from labs_lib.errors import LabError
from labs_lib.paths import OUTPUTS_VARIABLE, ROOT
from labs_lib.tools.grading.submission import FailedCell, Statement, Submission
from labs_lib.tools.grading.texts import first_line, printable

COPIED = ("labs_lib", "configs", "data", "assets")
WORKER = (sys.executable, "-m", "labs_lib.tools.grading.worker")
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH")  # of the environment: a student's code sees no more
START_SECONDS = 600.0  # until torch is imported on a busy machine
_SECONDS_BETWEEN_LOOKS = 0.05
_LONGEST_RESULTS = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Seconds for one exercise, its cells and its check together; for all of them; memory beyond the library's."""

    seconds: float = 60.0
    total: float = 600.0
    memory_mb: int = 2048


@dataclass(frozen=True)
class Task:
    """One exercise to check: the lab, the function, the statements that it needs."""

    lab: str
    name: str
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Verdict:
    """What a check found: `status` as in `exercises.check.Result`, the reason, and the cells that raised."""

    status: str
    hint: str | None = None
    failed: tuple[FailedCell, ...] = ()


class Check:
    """A running check; `verdict` is None until it has ended or had to be ended."""

    def __init__(self, task: Task, submission: Submission, limits: Limits) -> None:
        self._submission, self._limits = submission, limits
        self._folder = tempfile.TemporaryDirectory(prefix="labs-grade-", ignore_cleanup_errors=True)
        root = Path(self._folder.name)
        self._results, self._log, self._nonce = root / "results", root / "log", secrets.token_hex(16)
        job = {"lab": task.lab, "exercise": task.name, "nonce": self._nonce, "results": str(self._results)}
        job |= {"memory_mb": limits.memory_mb, "statements": [[s.cell, s.source] for s in task.statements]}
        (root / "job").write_text(json.dumps(job), encoding="utf-8")
        self._started = time.monotonic()
        self._begun: float | None = None
        self._popen = _start(copy_of_the_library(root / "work"), root / "job", self._log)

    def verdict(self) -> Verdict | None:
        """The outcome, once there is one."""
        entries = self._entries()
        if entries and self._begun is None:
            self._begun = time.monotonic()
        if self._popen.poll() is not None:
            return self._found(self._entries())
        if self._begun is None:
            return self._late_start()
        if time.monotonic() - self._begun > self._limits.seconds:
            self.stop()
            reason = f"it took more than {self._limits.seconds:g} s, in {_last_step(entries)}"
            return Verdict("wrong", reason, self._failed(entries))
        return None

    def stop(self) -> None:
        """End the process and all that it started."""
        tree: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            tree = psutil.Process(self._popen.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        for process in tree:  # one that left the group
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._popen.wait()

    def close(self) -> None:
        """`stop`, and delete the copy."""
        self.stop()
        self._folder.cleanup()

    def _late_start(self) -> None:
        if time.monotonic() - self._started > START_SECONDS:
            raise LabError(f"A check did not start within {START_SECONDS:g} s: grade again when the machine is idle.")

    def _entries(self) -> list[dict]:
        """The lines with our nonce; a student's code may have written others."""
        try:
            with open(self._results, encoding="utf-8", errors="replace") as file:
                lines = file.read(_LONGEST_RESULTS).splitlines()
        except OSError:
            return []
        return [entry for line in lines if (entry := _entry(line)).get("nonce") == self._nonce]

    def _found(self, entries: Sequence[dict]) -> Verdict:
        if not entries:
            raise LabError(f"The check could not be started: {self._last_words()}.")
        ended = [entry for entry in entries if "status" in entry]
        if ended:
            hint = ended[-1]["hint"]
            return Verdict(ended[-1]["status"], printable(hint) if hint else None, self._failed(entries))
        how = _death(self._popen.returncode)
        return Verdict("wrong", f"its process died in {_last_step(entries)} ({how})", self._failed(entries))

    def _failed(self, entries: Iterable[dict]) -> tuple[FailedCell, ...]:
        return tuple(
            FailedCell(entry["failed"], first_line(self._submission.cells[entry["failed"] - 1]), entry["error"])
            for entry in entries
            if entry.get("failed")
        )

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return printable(lines[-1] if lines else f"its process ended with status {self._popen.returncode}")


def _entry(line: str) -> dict:
    with contextlib.suppress(ValueError, RecursionError):
        entry = json.loads(line)
        return entry if isinstance(entry, dict) else {}
    return {}


def _last_step(entries: Sequence[dict]) -> str:
    return [entry["doing"] for entry in entries if "doing" in entry][-1]


def _death(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def copy_of_the_library(folder: Path) -> Path:
    """All that a lab's code knows the place of, to be written over without harm; returns `folder`."""
    for name in COPIED:
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "bases"), copy_function=_copy
        )
    (folder / "notebooks").mkdir()
    return folder


def _copy(source: str, target: str) -> None:
    """Bytes only: a read-only repository has to become a writable copy."""
    shutil.copyfile(source, target)


def _start(work: Path, job: Path, log: Path) -> subprocess.Popen:
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"PYTHONPATH": str(work), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    environment |= {"HOME": str(work.parent), "TMPDIR": str(work.parent), "MPLBACKEND": "Agg"}
    environment[OUTPUTS_VARIABLE] = str(work / "outputs")
    with open(log, "wb") as file:
        return subprocess.Popen(
            [*WORKER, str(job)],
            env=environment,
            cwd=work / "notebooks",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )


def run_checks(tasks: Sequence[Task], submission: Submission, limits: Limits) -> dict[str, Verdict]:
    """Verdicts by exercise, as many checks at a time as there are cores; whatever ends this ends all of them."""
    ends = time.monotonic() + limits.total
    waiting, verdicts = list(tasks), dict[str, Verdict]()
    running: dict[str, Check] = {}
    try:
        while (waiting or running) and time.monotonic() < ends:
            while waiting and len(running) < side_by_side():
                task = waiting.pop(0)
                running[task.name] = Check(task, submission, limits)
            for name, check in list(running.items()):
                if verdict := check.verdict():
                    verdicts[name] = verdict
                    running.pop(name).close()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        for check in running.values():
            check.close()
    late = Verdict("wrong", f"not checked: grading was given {limits.total:g} s in all")
    return {task.name: verdicts.get(task.name, late) for task in tasks}
