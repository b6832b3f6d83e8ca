"""What a committed lab defines, executed name by name: tests speak of what the notebook really says."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labs_lib.tools.notebooks import code_cells, read_notebook


def lab_namespace(path: Path, names: Iterable[str], **given: Any) -> dict[str, Any]:
    """Execute the imports of a notebook and the statements that define `names`, in the notebook's order.

    `given` stands in for names that a cell would only get by running (the profile). A name that the notebook
    does not define at the top level of a cell, or defines twice, fails the test.
    """
    wanted, space = set(names), dict(given)
    found: list[str] = []
    for cell in code_cells(read_notebook(path)):
        for statement in ast.parse(cell.source).body:
            defined = _defined(statement) & wanted
            if defined or isinstance(statement, ast.Import | ast.ImportFrom):
                exec(compile(ast.Module([statement], []), path.name, "exec"), space)
            found += sorted(defined)
    assert sorted(found) == sorted(wanted), f"{path.name} defines {found}, wanted {sorted(wanted)}"
    return space


def _defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()
