"""The functions that a notebook defines, without running the notebook: what a lab shows is what its tests test."""

import ast
from pathlib import Path
from typing import Any

from labs_lib.tools.notebooks import code_cells, read_notebook


def notebook_definitions(path: Path) -> dict[str, Any]:
    """A namespace with everything that the code cells import and every function and class that they define.

    Assignments are left out (they would load models); a test sets the names that a function reads.
    """
    namespace: dict[str, Any] = {"__name__": path.stem}
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    for number, cell in enumerate(code_cells(read_notebook(path)), start=1):
        kept = [statement for statement in ast.parse(cell.source).body if isinstance(statement, kinds)]
        exec(compile(ast.Module(kept, []), f"{path.name}, cell {number}", "exec"), namespace)
    return namespace
