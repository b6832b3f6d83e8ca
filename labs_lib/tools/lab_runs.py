"""Running labs: each in a process of its own, in the order of their needs, several side by side."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from labs_lib.cores import THREADS_VARIABLE
from labs_lib.paths import FIGURES_VARIABLE, OUTPUTS_VARIABLE, ROOT
from labs_lib.storage import atomic_write_json, canonical_json, read_json, sha256_bytes
from labs_lib.tools.environment import kernel_environment
from labs_lib.tools.execute import failure_path
from labs_lib.tools.labs import Lab
from labs_lib.tools.notebooks import read_notebook, source_fingerprint
from labs_lib.tools.processes import WatchedProcess
from labs_lib.tools.stamps import Stamp, made_files, out_of_date, read_stamp, write_stamp

Status = Literal["ok", "up to date", "FAILED", "skipped"]
EXECUTE = (sys.executable, "-m", "labs_lib.tools.execute")
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class Outcome:
    """How one lab went. For "up to date" the costs are those of the run that made it."""

    name: str
    status: Status
    seconds: float = 0.0
    peak_rss_mb: float = 0.0
    cpu_seconds: float = 0.0
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether labs that need this one may start."""
        return self.status in ("ok", "up to date")


@dataclass(frozen=True)
class LabRunner:
    """Where labs are read from and written to, and with what.

    `notebooks` is the folder that lab names count from and the working directory of every kernel;
    `outputs` is `<outputs base>/<profile>`. `parameters` holds what is injected into each lab; a lab that
    is not in it runs with its own defaults and no injected cell. `inputs` are the shared fingerprints, or
    None to execute every lab whatever its stamp says. `figures` is where each lab's figures go. `threads` is for labs
    whose profile leaves them open.
    """

    notebooks: Path
    outputs: Path
    parameters: dict[str, dict[str, Any]]
    inputs: dict[str, str] | None
    figures: Callable[[Lab], Path]
    cell_timeout: int = 900
    lab_timeout: int = 3600
    threads: int | None = None
    _begun: dict[str, dict[str, str]] = field(default_factory=dict)

    def source(self, lab: Lab) -> Path:
        return self.notebooks / f"{lab.name}.ipynb"

    def executed(self, lab: Lab) -> Path:
        return self.outputs / "notebooks" / f"{lab.name}.ipynb"

    def stamp(self, lab: Lab) -> Path:
        return self.outputs / "stamps" / f"{lab.name}.json"

    def lab_inputs(self, lab: Lab) -> dict[str, str]:
        """Fingerprints of all that this lab's results depend on."""
        return {
            **(self.inputs or {}),
            "notebook": source_fingerprint(read_notebook(self.source(lab))),
            "parameters": sha256_bytes(canonical_json(self.parameters.get(lab.name, {}))),
            **{need: sha256_bytes(canonical_json(self._begun.get(need, {}))) for need in lab.needs},
        }

    def begin(self, lab: Lab, say: Callable[[str], None]) -> "Outcome | WatchedProcess":
        """Start the lab, or say at once that it is up to date."""
        self._begun[lab.name] = inputs = self.lab_inputs(lab)
        if self.inputs is not None:
            stamp = read_stamp(self.stamp(lab))
            reason = out_of_date(stamp, inputs, self.outputs)
            if stamp is not None and reason is None:
                return Outcome(lab.name, "up to date", stamp.seconds, stamp.peak_rss_mb, stamp.cpu_seconds)
            say(f"start       {lab.name} ({reason})")
        else:
            say(f"start       {lab.name}")
        return self._start(lab)

    def _start(self, lab: Lab) -> WatchedProcess:
        self.stamp(lab).unlink(missing_ok=True)
        job = self._job(lab)
        failure_path(job).unlink(missing_ok=True)
        self.executed(lab).parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(
            job,
            {
                "source": str(self.source(lab)),
                "notebook": str(self.executed(lab)),
                "parameters": self.parameters.get(lab.name, {}),
                "cwd": str(self.notebooks),
                "cell_timeout": self.cell_timeout,
            },
        )
        environment = {
            **os.environ,
            **kernel_environment(),
            OUTPUTS_VARIABLE: str(self.outputs.parent),
            FIGURES_VARIABLE: str(self.figures(lab)),
        }
        if self.threads is not None:
            environment[THREADS_VARIABLE] = str(self.threads)
        return WatchedProcess([*EXECUTE, str(job)], environment, ROOT, job.with_suffix(".log"))

    def _job(self, lab: Lab) -> Path:
        return self.outputs / "jobs" / f"{lab.name}.json"

    def finish(self, lab: Lab, process: WatchedProcess, status: int) -> Outcome:
        """The outcome of a process that has ended; a good one leaves a stamp."""
        costs = (round(process.seconds, 1), round(process.peak_rss_mb), round(process.cpu_seconds, 1))
        if status != 0:
            return Outcome(lab.name, "FAILED", *costs, self._failure(lab, process, status))
        missing = [pattern for pattern in lab.outputs if not made_files(self.outputs, [pattern])]
        if missing:
            return Outcome(lab.name, "FAILED", *costs, f"it wrote nothing that matches {', '.join(missing)}")
        executed = self.executed(lab).relative_to(self.outputs).as_posix()
        files = made_files(self.outputs, [executed, *lab.written])
        write_stamp(self.stamp(lab), Stamp(self._begun[lab.name], files, *costs))
        return Outcome(lab.name, "ok", *costs)

    def _failure(self, lab: Lab, process: WatchedProcess, status: int) -> str:
        path = failure_path(self._job(lab))
        if not path.exists():
            lines = process.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return f"its process ended with status {status}: {lines[-1] if lines else 'no message'}"
        failure = read_json(path)
        where = f"cell {failure['cell']} (`{failure['line']}`)" if failure["cell"] else "no cell to blame"
        return f"{where}: {failure['error']}"


def run_labs(
    runner: LabRunner, labs: Sequence[Lab], jobs: int, say: Callable[[str], None] = print
) -> dict[str, Outcome]:
    """Run `labs`, at most `jobs` at a time, none before its needs have ended well; outcomes by name.

    Whenever there is room, the first of `labs` that may start does. A lab whose need failed is skipped. Whatever
    ends this function early ends every started lab.
    """
    waiting, running = list(labs), dict[str, tuple[Lab, WatchedProcess]]()
    outcomes: dict[str, Outcome] = {}

    def note(outcome: Outcome) -> None:
        outcomes[outcome.name] = outcome
        detail = f" {outcome.detail}" if outcome.detail else f" {outcome.seconds:.1f} s"
        say(f"{outcome.status:<11} {outcome.name}{detail}")

    try:
        while waiting or running:
            for lab, process in list(running.values()):
                if outcome := _look(runner, lab, process):
                    del running[lab.name]
                    note(outcome)
            for lab in list(waiting):
                bad = [need for need in lab.needs if need in outcomes and not outcomes[need].good]
                ready = all(need in outcomes for need in lab.needs)
                if bad:
                    waiting.remove(lab)
                    note(Outcome(lab.name, "skipped", detail=f"because of {bad[0]}"))
                elif ready and len(running) < jobs:
                    waiting.remove(lab)
                    begun = runner.begin(lab, say)
                    if isinstance(begun, Outcome):
                        note(begun)
                    else:
                        running[lab.name] = (lab, begun)
            if running:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        for _, process in running.values():
            process.stop()
    return outcomes


def _look(runner: LabRunner, lab: Lab, process: WatchedProcess) -> Outcome | None:
    """The outcome of a running lab if it has ended, or has to be ended."""
    process.sample()
    status = process.poll()
    if status is not None:
        return runner.finish(lab, process, status)
    if process.seconds <= runner.lab_timeout:
        return None
    process.stop()
    costs = (round(process.seconds, 1), round(process.peak_rss_mb), round(process.cpu_seconds, 1))
    return Outcome(lab.name, "FAILED", *costs, f"it did not end within {runner.lab_timeout} s")
