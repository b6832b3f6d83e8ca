"""Notebooks as students hand them in: a lab of ours, with functions filled in and cells added."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labs_lib.paths import NOTEBOOKS, SOLUTIONS
from labs_lib.tools.grading.submission import Submission, parsed
from labs_lib.tools.notebooks import code_cells, read_notebook
from labs_lib.tools.stubs import stub_names

LAB02 = "02_group_advantages"


def submitted(
    lab: str, answers: Mapping[str, str], first: Sequence[str] = (), last: Sequence[str] = ()
) -> NotebookNode:
    """The lab with the stubs of `answers` replaced, and code cells added at both ends."""
    book = read_notebook(NOTEBOOKS / f"{lab}.ipynb")
    for cell in code_cells(book):
        for name in stub_names(cell):
            cell.source = answers.get(name, cell.source)
    book.cells = [*map(nbformat.v4.new_code_cell, first), *book.cells, *map(nbformat.v4.new_code_cell, last)]
    return book


def solved_cells(lab: str) -> list[str]:
    """The code cells of a lab's solutions."""
    return [cell.source for cell in code_cells(read_notebook(SOLUTIONS / f"{lab[:2]}_solutions.ipynb"))]


def sources(book: NotebookNode) -> Submission:
    """A notebook as the grader reads it."""
    return parsed(cell.source for cell in code_cells(book))


def handed_in(path: Path, book: NotebookNode) -> Path:
    """Write it as a student's Jupyter would."""
    nbformat.write(book, path)
    return path
