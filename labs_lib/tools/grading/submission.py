"""A notebook that somebody hands in, however broken: its statements, and the cells that are no Python."""

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from labs_lib.errors import LabError
from labs_lib.tools.grading.scopes import STAR_IMPORT, bound_names, changed_names, read_names
from labs_lib.tools.grading.texts import first_line, one_line
from labs_lib.tools.stubs import is_stub

LARGEST = 64 << 20  # bytes; a lab with its figures has two million
_TIMING = re.compile(r"\A\s*%%(?:time|timeit|capture|prun)\b[^\n]*\n")
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Statement:
    """One top-level statement; `cell` is its number among the submission's code cells, from 1, or 0 for one of ours."""

    cell: int
    source: str
    binds: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    stub: bool
    imports: bool


@dataclass(frozen=True)
class FailedCell:
    """A code cell that does not parse, or that raised; `line` is its first line."""

    cell: int
    line: str
    error: str


@dataclass(frozen=True)
class Submission:
    """The sources of the code cells, what could be read of them, and what could not."""

    cells: tuple[str, ...]
    statements: tuple[Statement, ...]
    broken: tuple[FailedCell, ...]

    def definitions(self, name: str) -> list[Statement]:
        """Every statement that defines `name`, in order."""
        return [statement for statement in self.statements if name in statement.binds]

    def broken_definition(self, name: str) -> FailedCell | None:
        """The last cell that would define a function if it were Python."""
        found = [item for item in self.broken if _defines(self.cells[item.cell - 1], name)]
        return found[-1] if found else None

    def names(self, names: Iterable[str]) -> int:
        """How many of these functions it defines, or tries to."""
        return sum(bool(self.definitions(name) or self.broken_definition(name)) for name in names)


def _defines(source: str, name: str) -> bool:
    return re.search(rf"^\s*def\s+{re.escape(name)}\b", source, re.MULTILINE) is not None


def read_submission(path: Path) -> Submission:
    """Read a notebook that may be broken; LabError if there is none, or it is not a notebook at all."""
    try:
        if path.stat().st_size > LARGEST:
            raise LabError(f"{path} has more than {LARGEST >> 20} MB: clear its outputs and hand it in again.")
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise LabError(f"{path} is missing: NB has to name the notebook that was handed in.") from None
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise LabError(f"{path} is not a notebook: it is no JSON.") from None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise LabError(f"{path} is not a notebook: it has no list of cells (very old ones: save it with JupyterLab).")
    return parsed([source for cell in cells if (source := _code(cell)) is not None])


def _code(cell: Any) -> str | None:
    """The source of a code cell, None for anything else."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return None
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def parsed(cells: Iterable[str]) -> Submission:
    """What the sources of code cells say; IPython's magics become the calls that they stand for."""
    cells, statements, broken = tuple(cells), [], []
    for number, source in enumerate(cells, start=1):
        try:
            statements += list(_statements(number, source))
        except _UNREADABLE as error:
            broken.append(FailedCell(number, first_line(source), one_line(error)))
    return Submission(cells, tuple(statements), tuple(broken))


def _statements(cell: int, source: str) -> Iterator[Statement]:
    with warnings.catch_warnings(action="ignore"):
        body = ast.parse(TransformerManager().transform_cell(_TIMING.sub("", source))).body
    for node in body:
        names = (frozenset(find(node)) for find in (bound_names, changed_names, read_names))
        yield Statement(cell, ast.unparse(node), *names, is_stub(node), isinstance(node, ast.Import | ast.ImportFrom))


def needed(name: str, submission: Submission, lab: Submission) -> list[Statement]:
    """The statements that `name` depends on, directly or not, in the order in which they stand.

    A name that the submission does not define is looked up in the lab itself (a deleted import). What nothing
    depends on is left out, and with it trainings and figures.
    """
    sources = (tuple(replace(statement, cell=0) for statement in lab.statements), submission.statements)
    theirs = {name for statement in submission.statements for name in statement.binds}
    chosen: set[tuple[bool, int]] = set()
    seen, waiting = {name, STAR_IMPORT}, [name, STAR_IMPORT]
    while waiting:
        wanted = waiting.pop()
        for place in _makers(wanted, sources[wanted in theirs]):
            statement = sources[wanted in theirs][place]
            chosen.add((wanted in theirs, place))
            waiting += statement.reads - seen
            seen |= statement.reads
    return [sources[submitted][place] for submitted, place in sorted(chosen)]


def _makers(name: str, statements: Sequence[Statement]) -> list[int]:
    """Where a name is defined and its object changed; an imported thing is the library's, and not to be changed."""
    made = [place for place, statement in enumerate(statements) if name in statement.binds]
    if all(statements[place].imports for place in made):
        return made
    return [place for place, item in enumerate(statements) if name in item.binds | item.changes]
