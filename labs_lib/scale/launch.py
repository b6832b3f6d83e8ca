"""Starting a training with `accelerate launch`: the command, its progress, its end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from labs_lib.config import Profile
from labs_lib.cores import usable_cores
from labs_lib.errors import LabError
from labs_lib.paths import CONFIGS, ROOT
from labs_lib.progress import ProgressBar
from labs_lib.scale.engine import require_engine
from labs_lib.scale.settings import share_of
from labs_lib.scale.worker import PROGRESS

LAUNCH_FILES = CONFIGS / "launch"
PROCESSES_FILE = LAUNCH_FILES / "processes.yaml"
PROCESSES_ON_CPU = 2
WORKER = "labs_lib.scale.worker"
SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class Launch:
    """How a run is started: the file that accelerate reads, and the one whose settings take the place of TRL's."""

    file: Path = PROCESSES_FILE
    settings: Path | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Settings of TRL, name -> value."""
        return {} if self.settings is None else yaml.safe_load(self.settings.read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        """The names of its files where they are not the usual one, else nothing."""
        parts = [file.stem for file in (self.file, self.settings) if file not in (PROCESSES_FILE, None)]
        return "-".join(parts)


def launch_of(file: str | None, settings: str | None) -> Launch:
    """A launch by the names of files in `configs/launch`, or by paths.

    Raises LabError for a file that is not there.
    """
    return Launch(_found(file) if file else PROCESSES_FILE, _found(settings) if settings else None)


def _found(name: str) -> Path:
    for path in (LAUNCH_FILES / name, Path(name)):
        if path.is_file():
            return path.resolve()
    known = ", ".join(sorted(path.name for path in LAUNCH_FILES.glob("*.yaml")))
    raise LabError(f"There is no launch file {name}; configs/launch has {known}.")


def processes_for(profile: Profile) -> int:
    """Two on the CPU; on CUDA as many of its GPUs as can share the prompts of an iteration evenly."""
    if profile.device == "cpu":
        return PROCESSES_ON_CPU
    import torch

    prompts = profile.grpo.prompts_per_iteration
    return max(n for n in range(1, max(1, torch.cuda.device_count()) + 1) if prompts % n == 0)


def launch_command(file: Path, processes: int, threads: int, module: str, *arguments: str) -> list[str]:
    """`accelerate launch` of a module in `processes` processes, as the launch file says otherwise."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    counts = ["--num_processes", str(processes), "--num_cpu_threads_per_process", str(threads)]
    return [*launcher, *counts, "--module", module, *arguments]


def threads_of(profile: Profile, processes: int) -> int:
    """Threads of each process: the profile's, or an even share of the cores."""
    return profile.threads or max(1, usable_cores() // processes)


def run_job(
    profile: Profile,
    folder: Path,
    start: Path,
    processes: int,
    updates: int,
    file: Path = PROCESSES_FILE,
    **more: Any,
) -> float:
    """Train from `start` in `folder` with `processes` processes, a bar showing the updates; returns its seconds.

    What the processes print is kept in `folder/log.txt`.

    Args:
        more: further entries of the job: `changes` of TRL's settings, `resume` from one of its checkpoints.

    Raises:
        LabError: the engine is not installed, the processes cannot share the prompts, or the training failed: its last
            words.
    """
    require_engine()
    share_of(profile, processes)
    folder.mkdir(parents=True, exist_ok=True)
    job = {
        "profile": profile.file,
        "seed": profile.seed,
        "budget": profile.protocol_share,
        "folder": str(folder),
        "start": str(start),
        "processes": processes,
        "changes": {},
    } | more
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = launch_command(file, processes, threads_of(profile, processes), WORKER, str(folder / "job.json"))
    began = time.monotonic()
    _watched(command, folder, f"TRL, {processes} processes", updates)
    return time.monotonic() - began


def _watched(command: Sequence[str], folder: Path, title: str, updates: int) -> None:
    """Run a launcher to its end; whatever ends this function early ends its processes too."""
    log, counter = folder / "log.txt", folder / PROGRESS
    counter.unlink(missing_ok=True)
    with open(log, "wb") as messages, ProgressBar(title, updates) as bar:
        # In a session of its own: the launcher's processes end together.
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True
        )
        try:
            while process.poll() is None:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                bar.advance(_counted(counter) - bar.done)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
        bar.advance(_counted(counter) - bar.done)
    if process.returncode != 0:
        raise LabError(
            f"The training with accelerate failed: {last_words(log)} (all of it: {log.name} in {folder.name})"
        )


def _counted(file: Path) -> int:
    """Finished updates; 0 before the first, and while the file is being written."""
    try:
        return int(file.read_text(encoding="ascii") or 0)
    except (OSError, ValueError):
        return 0


def last_words(log: Path) -> str:
    """The line of a launcher's log that says why: a sentence of this library, else the last error."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [line.split("]:", 1)[-1].strip() if line.startswith("[rank") else line.strip() for line in lines]
    told = [line for line in lines if line.startswith("error: ")]
    errors = [line for line in lines if "Error" in line.split(":", 1)[0]]
    return (told or errors or [line for line in lines if line] or ["no message"])[0 if told else -1]
