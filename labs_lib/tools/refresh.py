"""Writing an executed lab back: cleaned outputs into the tracked notebook, its figures into `figures/`."""

from collections.abc import Iterator
from pathlib import Path

from labs_lib.storage import atomic_write_bytes
from labs_lib.tools.lab_runs import LabRunner
from labs_lib.tools.labs import Lab
from labs_lib.tools.notebooks import committed_problems, read_notebook, with_outputs_of, write_notebook


def write_back(runner: LabRunner, lab: Lab, figures: Path) -> Iterator[str]:
    """Replace the tracked notebook and its figures, each atomically; yields a line for what it says.

    Nothing of an equal file is touched, so that a second refresh leaves no trace. What may not be
    committed is written nevertheless, and said: `make test` refuses it.
    """
    tracked = read_notebook(runner.source(lab))
    refreshed = with_outputs_of(tracked, read_notebook(runner.executed(lab)), lab.name)
    for made in sorted(runner.figures(lab).glob("*.png")):
        target = figures / made.name
        if not target.exists() or target.read_bytes() != made.read_bytes():
            atomic_write_bytes(target, made.read_bytes())
    write_notebook(runner.source(lab), refreshed)
    yield f"refreshed   {lab.name}"
    yield from (f"  not fit to be committed: {problem}" for problem in committed_problems(refreshed))
