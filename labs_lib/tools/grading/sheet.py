"""The score sheet of one submitted notebook: marks, points, and the cells that failed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from labs_lib.errors import LabError
from labs_lib.paths import NOTEBOOKS
from labs_lib.tools.grading.running import Limits, Task, Verdict, run_checks
from labs_lib.tools.grading.submission import FailedCell, Submission, needed, parsed
from labs_lib.tools.labs import LABS, is_solution
from labs_lib.tools.notebooks import code_cells, read_notebook
from labs_lib.tools.stubs import STAR, Stub, stub_names, stubs

MARKS = {"right": "✓", "wrong": "✗", "not attempted": "○"}
UNGRADED = "00_start_here"  # its one exercise is solved in its text


@dataclass(frozen=True)
class Lab:
    """A lab as we hand it out: its stubs, and the code that a submission may have lost."""

    name: str
    stubs: tuple[Stub, ...]
    code: Submission


@dataclass(frozen=True)
class Mark:
    """How one function was marked. The points of an exercise, earned and possible, stand at its last function."""

    name: str
    exercise: str
    stars: int
    status: str
    points: int
    out_of: int
    detail: str


@dataclass(frozen=True)
class ScoreSheet:
    """All marks of a submission, in the lab's order."""

    notebook: str
    lab: str
    marks: tuple[Mark, ...]
    failed: tuple[FailedCell, ...]

    @property
    def points(self) -> int:
        return sum(mark.points for mark in self.marks)

    @property
    def out_of(self) -> int:
        return sum(mark.out_of for mark in self.marks)

    def as_json(self) -> dict[str, Any]:
        """The sheet as JSON values."""
        return {**asdict(self), "points": self.points, "out_of": self.out_of}


def graded_labs() -> dict[str, tuple[str, ...]]:
    """The functions that each lab with exercises asks for."""
    return {
        lab.name: tuple(n for cell in read_notebook(_path(lab.name)).cells for n in stub_names(cell))
        for lab in LABS
        if not is_solution(lab) and lab.name != UNGRADED
    }


def _path(lab: str) -> Any:
    return NOTEBOOKS / f"{lab}.ipynb"


def lab_of(submission: Submission, file_name: str, labs: Mapping[str, Sequence[str]]) -> str:
    """The lab that a submission is of: most of whose functions it defines, else the one with its file's number.

    Raises LabError if neither says.
    """
    counts = {lab: submission.names(names) for lab, names in labs.items()}
    most = [lab for lab, count in counts.items() if count == max(counts.values()) > 0]
    numbered = [lab for lab in most or labs if lab[:2] == file_name[:2]]
    if len(most) == 1 or numbered:
        return (most if len(most) == 1 else numbered)[0]
    if file_name[:2] == UNGRADED[:2]:
        raise LabError(f"{file_name} has nothing to grade: lab {UNGRADED[:2]} solves its one exercise itself.")
    raise LabError(
        f"{file_name} holds none of the exercises: is it a lab? If it is one, let its name begin with the lab's number."
    )


def read_lab(name: str) -> Lab:
    """The lab as it lies in notebooks/."""
    notebook = read_notebook(_path(name))
    return Lab(name, tuple(stubs(notebook, name)), parsed(cell.source for cell in code_cells(notebook)))


def grade(submission: Submission, file_name: str, lab: Lab, limits: Limits) -> ScoreSheet:
    """Check every exercise of `lab` that was attempted; the others need no process."""
    known = {stub.name: verdict for stub in lab.stubs if (verdict := _without_running(stub.name, submission))}
    tasks = [
        Task(lab.name, stub.name, tuple(needed(stub.name, submission, lab.code)))
        for stub in lab.stubs
        if stub.name not in known
    ]
    verdicts = known | run_checks(tasks, submission, limits)
    failed = {cell for verdict in verdicts.values() for cell in verdict.failed} | set(submission.broken)
    marks = with_points([_mark(stub, verdicts[stub.name]) for stub in lab.stubs])
    return ScoreSheet(file_name, lab.name, marks, tuple(sorted(failed, key=lambda cell: (cell.cell, cell.error))))


def _without_running(name: str, submission: Submission) -> Verdict | None:
    """The verdict on a function that is not there, or still a stub; None for one that has to be run."""
    definitions = submission.definitions(name)
    if definitions and not definitions[-1].stub:
        return None
    if broken := submission.broken_definition(name):
        return Verdict("wrong", f"its cell is no Python ({broken.error})")
    return Verdict("not attempted", "" if definitions else "the notebook does not define it")


def _mark(stub: Stub, verdict: Verdict) -> Mark:
    return Mark(stub.name, stub.exercise, stub.stars, verdict.status, 0, 0, verdict.hint or "")


def with_points(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """The marks with a point for each star of an exercise, at its last function, if all of its functions are right."""
    wrong = {mark.exercise for mark in marks if mark.status != "right"}
    last = {mark.exercise: mark.name for mark in marks}
    worth = [mark.stars if last[mark.exercise] == mark.name else 0 for mark in marks]
    return tuple(
        replace(mark, points=0 if mark.exercise in wrong else points, out_of=points)
        for mark, points in zip(marks, worth, strict=True)
    )


def render(sheet: ScoreSheet) -> Iterator[str]:
    """The sheet as lines of text."""
    yield f"{sheet.notebook}: lab {sheet.lab}"
    width = max(len(mark.name) for mark in sheet.marks)
    for mark in sheet.marks:
        detail = mark.detail or ("not attempted" if mark.status == "not attempted" else "")
        points = f"{mark.points} of {mark.out_of}" if mark.out_of else "  and"
        line = f"  {MARKS[mark.status]} {mark.name:<{width}}  {STAR * mark.stars:<3}  {points:<6}"
        yield f"{line}  {detail}".rstrip()
    counts = ", ".join(f"{sum(m.status == s for m in sheet.marks)} {s}" for s in MARKS)
    yield f"{sheet.points} of {sheet.out_of} points ({counts})"
    for cell in sheet.failed:
        yield f"  code cell {cell.cell} (`{cell.line}`) failed: {cell.error}"
