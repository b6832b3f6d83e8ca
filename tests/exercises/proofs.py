"""What must be there for each exercise of a lab, read from the lab's notebook: what is missing, in sentences."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nbformat import NotebookNode

from labs_lib.tools.notebooks import code_cells
from labs_lib.tools.stubs import stub_names

FEWEST_MUTANTS = 3


def unproven(lab: NotebookNode, solutions: Mapping[str, Any], mutants: Mapping[str, Sequence[Any]]) -> list[str]:
    """Every stub that is never checked, unsolved or without mutants, and mutants of what is no exercise."""
    cells = code_cells(lab)
    names = [name for cell in cells for name in stub_names(cell)]
    problems = [f"{name} is a stub twice" for name in sorted(names) if names.count(name) > 1]
    for name in names:
        begun = next(number for number, cell in enumerate(cells) if name in stub_names(cell))
        if not any(name in checked(cell) for cell in cells[begun:]):
            problems.append(f"{name} is never checked after its stub")
        if name not in solutions:
            problems.append(f"{name} has no solution")
        if len(mutants.get(name, ())) < FEWEST_MUTANTS:
            problems.append(f"{name} has fewer than {FEWEST_MUTANTS} mutants")
    return problems + [f"there are mutants of {name}, which is no exercise" for name in mutants if name not in names]


def checked(cell: NotebookNode) -> Iterator[str]:
    """The names that a cell gives to a `.check(...)`."""
    for node in ast.walk(ast.parse(cell.source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "check":
            yield from (item.id for item in node.args if isinstance(item, ast.Name))
