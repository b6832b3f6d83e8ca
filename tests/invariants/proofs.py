"""Which errors to diagnose the labs hold, and which of them no test trips: both read from the notebooks.

A test says with `@pytest.mark.diagnoses(cell, *invariants)` which error it is about: the id of the cell that announces
it, and the invariants that the lab puts to it.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nbformat import NotebookNode

_ANNOUNCED = re.compile(r"^(?:\*\*Error to diagnose\.\*\*|#+ Errors? to diagnose:)", re.MULTILINE)
_SECTION = re.compile(r"^## ", re.MULTILINE)
_INVARIANT = re.compile(r"(?:assert|require|refuse)_\w+")


@dataclass(frozen=True)
class Error:
    """An error to diagnose: its cell's id; every name in its code; the invariants that are to catch it."""

    cell: str
    names: frozenset[str]
    invariants: frozenset[str]


def errors_to_diagnose(lab: NotebookNode) -> list[Error]:
    """Those of a lab, each with the code cells up to the next one or the next section."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for cell in lab.cells:
        if cell.cell_type == "markdown":
            announced = _ANNOUNCED.search(cell.source)
            inside = bool(announced) or (inside and not _SECTION.search(cell.source))
            if announced:
                found.append((cell.id, []))
        elif inside and cell.cell_type == "code":
            found[-1][1].append(cell.source)
    return [_error(cell, [ast.parse(source) for source in sources]) for cell, sources in found]


def _error(cell: str, trees: list[ast.Module]) -> Error:
    names = {name for tree in trees for name in _names(tree)}
    tried = {name for tree in trees for node in _tried(tree) for name in _names(node)}
    return Error(cell, frozenset(names), frozenset(name for name in tried if _INVARIANT.fullmatch(name)))


def _tried(tree: ast.Module) -> Iterator[ast.AST]:
    """What stands in a `try`, and what is given to `diagnose`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            yield from node.body
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "diagnose":
            yield node.args[0]


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def marked(modules: Iterable[ModuleType]) -> Iterator[tuple[Callable[..., Any], str, tuple[str, ...]]]:
    """(test, cell, invariants) of every mark in the test modules."""
    for module in modules:
        for function in vars(module).values():
            for mark in getattr(function, "pytestmark", []):
                if mark.name == "diagnoses":
                    yield function, mark.args[0], mark.args[1:]


def unproven(errors: Iterable[Error], marks: Iterable[tuple[Callable[..., Any], str, tuple[str, ...]]]) -> list[str]:
    """Every error without a test of each of its invariants, and every mark that says what is not so."""
    table, problems = {error.cell: error for error in errors}, []
    proven: dict[str, set[str]] = {}
    for function, cell, invariants in marks:
        if cell not in table:
            problems.append(f"{function.__name__} is about {cell}, where no error is announced")
            continue
        proven.setdefault(cell, set()).update(invariants)
        tested, shown = _tested(function), table[cell].names
        problems += [f"{function.__name__} never uses {name}" for name in invariants if name not in tested]
        problems += [f"{cell} has nothing to do with {name}" for name in invariants if name not in shown]
    for error in table.values():
        missing = error.invariants - proven.get(error.cell, set())
        problems += [f"no test shows that the error of {error.cell} trips {name}" for name in sorted(missing)]
        if not proven.get(error.cell):
            problems.append(f"no test is about the error of {error.cell}")
    return problems


def _tested(function: Callable[..., Any]) -> set[str]:
    """Names and texts that a test uses, outside of its own mark."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    definition.decorator_list = [item for item in definition.decorator_list if "diagnoses" not in ast.unparse(item)]
    return set(re.findall(r"\w+", ast.unparse(definition)))
