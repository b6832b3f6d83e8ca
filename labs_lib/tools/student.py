"""`make student`: the course as it is handed out, in outputs/student/, to be zipped.

In it: every lab without outputs and counts, and the texts beside them; `labs_lib`, `configs`, `data` and the base
models of `tiny`, which the labs run on; `docs` without the teacher's notes; `requirements.txt`, the licence, a Makefile
with the targets of a student, a README. Not in it: `notebooks/solutions`, `tests` (they hold solutions and wrong
answers), `figures` and recorded outputs, what belongs to making the course.

Folded hints stay. A folded block whose summary speaks of a solution or an answer goes, and so does a cell with the tag
`solution`. The errors to diagnose stay as they are: bug, invariant and the text that follows are the lesson, and what
the invariant says is seen only by running it. A stub that somebody has filled stops everything. What cannot be
kept from a student is that `labs_lib` computes what some exercises ask for: reading it is part of the course.

The same repository gives the same bytes.
"""

import argparse
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labs_lib.errors import LabError
from labs_lib.exercises.registry import exercises_of
from labs_lib.paths import ROOT, outputs_base
from labs_lib.storage import atomic_write_bytes
from labs_lib.tools.command_line import command_line
from labs_lib.tools.labs import LABS, is_solution
from labs_lib.tools.notebooks import KERNELSPEC, LANGUAGE, notebook_bytes, read_notebook, tags
from labs_lib.tools.stubs import stub_names

FOLDER = "student"
COPIED = (
    "LICENSE",
    "requirements.txt",
    "configs",
    "data",
    "docs",
    "labs_lib",
    "assets/tiny-base",
    "assets/tiny-base-weak",
)
TARGETS = ("help", "setup", "lab", "run-all", "report", "audit", "model", "clean")
SOLUTION = "solution"
_FOLDED = re.compile(r"\n*<details>\s*<summary>([^<]*)</summary>.*?</details>\n?", re.DOTALL)
_TELLING = re.compile(r"solution|answer", re.IGNORECASE)
_FOR_TEACHERS = re.compile(r"teacher|solution", re.IGNORECASE)
_TARGET = re.compile(r"^([a-z$][^:=\n]*):(?!=)", re.MULTILINE)
README = """# Post-Training Labs, student edition

Jupyter labs about reinforcement-learning post-training of language models. You need Python 3.11 or newer and make
(Linux, macOS, or Windows with WSL). In this folder:

    make lab          # sets up a virtual environment, once, and opens JupyterLab on notebooks/

Begin with `notebooks/00_start_here.ipynb`. Run the cells from the top; a cell that takes long says so before. An
exercise is a function without a body and a cell that checks yours: `○ not attempted`, `✓`, or `✗` with the property
that failed. Hand in the notebook file. You may add cells; leave the names of the functions that are asked for as they
are.

`make help` lists what else there is. Everything that runs write goes to `outputs/`.
"""


def student_notebook(notebook: NotebookNode) -> NotebookNode:
    """A lab as it is handed out: no outputs, no counts, nothing folded or tagged that gives a solution."""
    result = nbformat.from_dict(notebook)
    result.cells = [cell for cell in result.cells if SOLUTION not in tags(cell)]
    for cell in result.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata = nbformat.from_dict({"tags": tags(cell)} if tags(cell) else {})
        else:
            cell.source = _FOLDED.sub(lambda block: "" if _TELLING.search(block[1]) else block[0], cell.source)
            cell.pop("attachments", None)
    result.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": LANGUAGE})
    return result


def require_untouched(notebook: NotebookNode, lab: str, exercises: Sequence[str]) -> None:
    """Raise LabError unless every exercise of a lab is there as a stub."""
    left = {name for cell in notebook.cells for name in stub_names(cell)}
    if filled := [name for name in exercises if name not in left]:
        raise LabError(f"{lab}: {', '.join(filled)} is no untouched stub: put the stub back, then hand out.")


def student_makefile(makefile: str) -> str:
    """The variables and the targets of a student; blocks between empty lines are kept or left out as a whole.

    The comment at the top goes too: it speaks of the tests.
    """
    blocks = re.sub(r"\A(?:#.*\n)+", "", makefile).rstrip("\n").split("\n\n")
    return "\n\n".join(block for block in blocks if _for_students(block)) + "\n"


def _for_students(block: str) -> bool:
    targets = [name for line in _TARGET.findall(block) for name in line.split()]
    return not targets or any(name in (*TARGETS, "$(READY)", ".PHONY") for name in targets)


def student_files(root: Path) -> dict[str, bytes]:
    """Every file of the student's folder by its path in it."""
    files = {"README.md": README.encode(), "Makefile": student_makefile((root / "Makefile").read_text()).encode()}
    for name in (*COPIED, *(f"notebooks/{path.name}" for path in (root / "notebooks").glob("*.md"))):
        files |= {path.relative_to(root).as_posix(): path.read_bytes() for path in _files(root / name)}
    for lab in LABS:
        if not is_solution(lab):
            notebook = read_notebook(root / "notebooks" / f"{lab.name}.ipynb")
            require_untouched(notebook, lab.name, _exercises(lab.name))
            files[f"notebooks/{lab.name}.ipynb"] = notebook_bytes(student_notebook(notebook))
    return dict(sorted(files.items()))


def _exercises(lab: str) -> list[str]:
    try:
        return list(exercises_of(lab))
    except LabError:  # lab 00
        return []


def _files(path: Path) -> Iterator[Path]:
    """`path` itself, or the files below it: no hidden ones, no byte code, nothing for teachers."""
    if path.is_file():
        yield path
    for item in sorted(path.iterdir()) if path.is_dir() else ():
        if not item.name.startswith(".") and item.name != "__pycache__" and not _teachers(item):
            yield from _files(item)


def _teachers(path: Path) -> bool:
    return path.parent.name in ("docs", "notebooks") and _FOR_TEACHERS.search(path.name) is not None


def write_edition(folder: Path, files: Mapping[str, bytes], fresh: bool) -> None:
    """Write the files, each atomically, and nothing else; LabError if the folder holds what it would have to delete."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if (others := sorted(found - set(files))) and not fresh:
        raise LabError(f"{folder} holds {others[0]}, which is not of the edition: move it, or add ARGS=--fresh.")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        target = folder / name
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(target, data)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the edition and say where it is."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="make student", description=__doc__, formatter_class=formatter)
    parser.add_argument("--fresh", action="store_true", help="delete what is in the folder first")
    options = parser.parse_args(arguments)
    files, folder = student_files(root), outputs_base() / FOLDER
    write_edition(folder, files, options.fresh)
    size = sum(map(len, files.values())) / 1e6
    print(f"{len(files)} files, {size:.1f} MB in {folder}: zip this folder and hand it out.")
    return 0


if __name__ == "__main__":
    command_line(main)
