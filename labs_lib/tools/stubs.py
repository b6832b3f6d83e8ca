"""The exercises as a lab's notebook states them: the stub that a student fills, its heading, its difficulty."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from labs_lib.errors import LabError

STAR = "★"
_HEADING = re.compile(r"^#+ *(Exercise .*)$", re.MULTILINE)
_DIFFICULTY = re.compile(f"{STAR}+")
_ASIDE = re.compile(r" *[·(].*")  # what follows the number or the title: difficulty, minutes


@dataclass(frozen=True)
class Stub:
    """A function without a body: `name`, the id of its cell, "Exercise 2", and 1 to 3 stars."""

    name: str
    cell: str
    exercise: str
    stars: int


def is_stub(statement: ast.stmt) -> bool:
    """Whether a statement defines a function that only raises NotImplementedError, after its docstring."""
    if not isinstance(statement, ast.FunctionDef):
        return False
    body = statement.body[1:] if ast.get_docstring(statement, clean=False) is not None else statement.body
    if len(body) != 1 or not isinstance(body[0], ast.Raise):
        return False
    raised = body[0].exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def stubs(notebook: NotebookNode, lab: str) -> list[Stub]:
    """Every stub of a lab, in order; LabError for one without a heading and stars before it."""
    found, heading, stars = [], "", 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (match := _HEADING.search(cell.source)):
            heading = _ASIDE.sub("", match[1].partition(":")[0]).strip()
            # The first run is the mark; hollow stars stand for what is missing to three.
            difficulty = _DIFFICULTY.search(cell.source, match.start())
            stars = len(difficulty[0]) if difficulty else 0
        for name in stub_names(cell):
            if not 1 <= stars <= 3:
                raise LabError(f"{lab}: {name} has no heading `Exercise ...` with one to three {STAR} before it.")
            found.append(Stub(name, cell.id, heading, stars))
    return found


def stub_names(cell: NotebookNode) -> Iterator[str]:
    """The stubs that one cell of a lab holds."""
    if cell.cell_type == "code":
        yield from (item.name for item in ast.parse(cell.source).body if is_stub(item))
