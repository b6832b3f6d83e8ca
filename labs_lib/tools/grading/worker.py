"""Check one function of a student, in a process of its own: `python -m labs_lib.tools.grading.worker JOB`.

It runs in a copy of the library, which is all that what a student wrote can change. Each step is a line of JSON in the
results file, with the job's nonce: nothing that is printed counts. The job is deleted before a student's line runs.
"""

import contextlib
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from labs_lib.runtime import start
from labs_lib.tools.grading.texts import one_line

LARGEST_FILE = 64 << 20  # bytes
CHECK = "the check"


def main(job_path: Path) -> None:
    """Run the job; the process ends here, with everything that a student started in it."""
    job = json.loads(job_path.read_text(encoding="utf-8"))
    job_path.unlink()
    start("tiny")
    from labs_lib.exercises.registry import exercises_of  # imports torch, which `start` has to prepare

    # Taken before anything of a student runs: whatever is replaced later, this is what is called.
    evaluate = exercises_of(job["lab"])[job["exercise"]].evaluate
    with open(job["results"], "a", encoding="utf-8") as file:
        say = _reporter(file, job["nonce"])
        _limit(job["memory_mb"])
        say(doing="the start")
        space = _defined(job["statements"], say)
        say(doing=CHECK)
        say(**_verdict(evaluate, space, job["exercise"]))
        os._exit(0)


def _reporter(file: Any, nonce: str) -> Callable[..., None]:
    dumps, write, flush = json.dumps, file.write, file.flush

    def say(**entry: Any) -> None:
        write(dumps({"nonce": nonce, **entry}) + "\n")
        flush()

    return say


def _limit(memory_mb: int) -> None:
    """Bound memory beyond what is in use now, and the size of files; no core dumps. macOS knows no bound of memory."""
    limits = {
        resource.RLIMIT_AS: psutil.Process().memory_info().vms + (memory_mb << 20),
        resource.RLIMIT_FSIZE: LARGEST_FILE,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def _defined(statements: list[tuple[int, str]], say: Callable[..., None]) -> dict[str, Any]:
    """Run the statements one after the other, going on after one that raises."""
    space: dict[str, Any] = {"__name__": "__main__", "display": lambda *args, **kwargs: None}
    for cell, source in statements:
        say(doing=f"cell {cell}" if cell else "a cell of the lab")
        try:
            exec(compile(source, f"cell {cell}", "exec"), space)
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: a cell may raise anything
            say(failed=cell, error=one_line(error))
    return space


def _verdict(evaluate: Callable[[Any], Any], space: dict[str, Any], name: str) -> dict[str, Any]:
    if name not in space:
        return {"status": "wrong", "hint": "the cell that defines it failed"}
    try:
        result = evaluate(space[name])
        return {"status": result.status, "hint": result.hint}
    except BaseException as error:
        return {"status": "wrong", "hint": one_line(error)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
