"""`make grade NB=...`: run our checks on a submitted notebook and print a score sheet.

A submission is never run from top to bottom. By name, it gives us the functions that the lab's exercises ask for, with
what they need in order to be defined; the checks are those of this repository, whatever became of the submission's.
A student may add, move and delete cells, print a tick, or redefine a check, without effect. Of several definitions the
last one counts. Nothing is trained: a function that leans on a trained model of its notebook cannot be graded.

Each function is checked in a process, a process group and a copy of the library of its own, within a time and a memory
limit; of what it writes nothing is kept. That is protection from accidents and from tricks, and not from an attacker:
what runs in the same process can find and change everything in it, read other files and use the network. Grade
submissions of people you do not trust in a container.

An exercise is worth a point for each of its stars, when all of its functions have every property, and otherwise none.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from labs_lib.errors import LabError
from labs_lib.tools.command_line import command_line
from labs_lib.tools.grading.running import Limits
from labs_lib.tools.grading.sheet import grade, graded_labs, lab_of, read_lab, render
from labs_lib.tools.grading.submission import read_submission


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="make grade", description=__doc__, formatter_class=formatter)
    parser.add_argument("notebook", help="the notebook that was handed in")
    parser.add_argument("--json", action="store_true", help="print the sheet as JSON")
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="for one exercise (default %(default)g)")
    parser.add_argument("--total", type=float, default=Limits.total, help="for all of them (default %(default)g)")
    parser.add_argument("--memory", type=int, default=Limits.memory_mb, metavar="MB", help="default %(default)s")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when it could grade, whatever the score; a LabError otherwise."""
    options = _arguments(arguments)
    if not options.notebook:
        raise LabError("Which notebook? make grade NB=path/to/submitted.ipynb")
    if min(options.seconds, options.total, options.memory) <= 0:
        raise LabError("--seconds, --total and --memory have to be positive.")
    path = Path(options.notebook)
    submission = read_submission(path)
    lab = read_lab(lab_of(submission, path.name, graded_labs()))
    sheet = grade(submission, path.name, lab, Limits(options.seconds, options.total, options.memory))
    if options.json:
        json.dump(sheet.as_json(), sys.stdout, ensure_ascii=False, indent=2)
        print()
    else:
        print("\n".join(render(sheet)))
    return 0


if __name__ == "__main__":
    command_line(main)
