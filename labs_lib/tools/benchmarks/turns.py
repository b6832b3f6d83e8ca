"""The two ends of a contender: a program in a process of its own that does a unit of work whenever it is asked to.

Each contender has its process, so that its peak memory and its libraries' settings are its own; they take turns, so
that all see the same machine. A turn is a line to the program's standard input and a JSON line from its standard
output: the seconds it took, and what was done, which must be the same for all.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from labs_lib.errors import LabError
from labs_lib.paths import ROOT
from labs_lib.runtime import CPU_PINS, LARGE_PAGES
from labs_lib.tools.benchmarks.measuring import Measured
from labs_lib.tools.processes import high_water_mb

GO = "go\n"


class Turns:
    """Inside of a contender: waits to be asked, and times what is between `begin` and `end`."""

    def __init__(self) -> None:
        # What libraries print must not be taken for an answer.
        self._answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._began = 0.0

    def begin(self) -> None:
        """Wait for the next turn; the program ends here when there is none."""
        if sys.stdin.readline() != GO:
            raise SystemExit(0)
        self._began = perf_counter()

    def end(self, **done: Any) -> None:
        """Say how long the turn took, and what was `done` in it."""
        print(json.dumps({"seconds": perf_counter() - self._began, "done": done}), file=self._answers, flush=True)


def serve(work: Callable[[dict[str, Any], Turns], None]) -> None:
    """Run a contender's program on the options that its command line has as JSON."""
    turns = Turns()
    try:
        work(json.loads(sys.argv[1]), turns)
    except LabError as error:
        sys.exit(str(error))


class Contender:
    """The other end: one contender's process."""

    def __init__(self, way: str, module: str, options: Mapping[str, Any]):
        self.way, self.done = way, None
        self.peak_mb = 0.0
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed in __exit__
        # The pins of a pinned profile are this project's: the usual way runs without them.
        environment = {key: value for key, value in os.environ.items() if key not in CPU_PINS}
        environment |= LARGE_PAGES  # for every way: whose idea they were is not what is measured
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def turn(self) -> float:
        """One unit of work: its seconds.

        Raises:
            LabError: the program ended; the last line that it wrote says why.
        """
        try:
            self._process.stdin.write(GO)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise LabError(f"{self.way} could not be measured: {self._last_words()}")
        said = json.loads(answer)
        self.done = said["done"]
        self.peak_mb = high_water_mb(self._process.pid)
        return said["seconds"]

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode}."


def measure(contenders: Sequence[tuple[str, str, Mapping[str, Any]]], turns: int) -> list[Measured]:
    """Let contenders (way, module, options) take turns, after one turn each that is not counted.

    Raises:
        LabError: one of them failed, or they did not do the same work; says which.
    """
    with ExitStack() as stack:
        running = [stack.enter_context(Contender(*contender)) for contender in contenders]
        seconds: list[list[float]] = [[] for _ in running]
        for turn in range(turns + 1):
            for place, contender in enumerate(running):
                spent = contender.turn()
                if turn > 0:
                    seconds[place].append(spent)
                _require_same_work(running[0], contender)
        return [Measured(c.way, tuple(spent), c.peak_mb) for c, spent in zip(running, seconds, strict=True)]


def _require_same_work(first: Contender, other: Contender) -> None:
    if first.done != other.done:
        raise LabError(f"{other.way} did {other.done} and {first.way} did {first.done}: this is not the same work.")
