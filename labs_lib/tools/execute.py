"""Execute one notebook with papermill, as a process of its own: `python -m labs_lib.tools.execute JOB`.

The job is a JSON file. The executed notebook is kept in any case; after a failure it carries papermill's
markers, and `<job>.failure` holds the cell and the error as JSON. The exit status says which it was.
"""

import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from papermill.execute import ERROR_ANCHOR_MSG, ERROR_MARKER_TAG, ERROR_MESSAGE_TEMPLATE

from labs_lib.storage import atomic_write_json, read_json
from labs_lib.tools.notebooks import INJECTED, code_cells, tags

FAILED = 1
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_ERROR = 400
_START_TIMEOUT = 120  # seconds until a kernel on a busy machine answers


def failure_path(job: Path) -> Path:
    """Where the description of a failure is written."""
    return job.with_suffix(".failure")


def main(job_path: Path) -> int:
    """Run the job and return the exit status."""
    _end_with_parent()
    job = read_json(job_path)
    destination = Path(job["notebook"])
    failure = execute(Path(job["source"]), destination, job["parameters"], job["cwd"], job["cell_timeout"])
    if failure is None:
        return 0
    atomic_write_json(failure_path(job_path), failure)
    return FAILED


def execute(
    source: Path, destination: Path, parameters: dict[str, Any], cwd: str, cell_timeout: int
) -> dict[str, Any] | None:
    """Execute `source` into `destination`; None, or {"cell", "line", "error"} of what failed.

    `cell` is the number among the author's code cells, 0 if no cell was to blame.
    """
    try:
        papermill.execute_notebook(
            source,
            destination,
            parameters=parameters,
            cwd=cwd,
            kernel_name="python3",
            progress_bar=False,
            coalesce_streams=True,
            start_timeout=_START_TIMEOUT,
            execution_timeout=cell_timeout,
        )
    except PapermillExecutionError:
        return _raised(nbformat.read(destination, as_version=4))
    except (DeadKernelError, CellTimeoutError) as error:
        dead = isinstance(error, DeadKernelError)
        return _mark(destination, "the kernel died" if dead else f"it took more than {cell_timeout} s")
    return _early_end(destination)


def _early_end(destination: Path) -> dict[str, Any] | None:
    """sys.exit(0) in a cell ends papermill with success: every cell has to have a count."""
    notebook = nbformat.read(destination, as_version=4)
    skipped = [cell for cell in code_cells(notebook) if cell.execution_count is None and cell.source.strip()]
    return _mark(destination, "the notebook ended before its last cell") if skipped else None


def _raised(notebook: NotebookNode) -> dict[str, Any]:
    """The cell that papermill calls failed, with the error that it shows."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "error":
                return _failure(notebook, cell, f"{output.ename}: {output.evalue}")
        if cell.metadata.get("papermill", {}).get("exception"):
            # IPython refuses a magic that it does not know on stderr and raises nothing.
            said = [output.text for output in cell.outputs if output.output_type == "stream"]
            return _failure(notebook, cell, said[-1] if said else "the cell failed without a message")
    return _failure(notebook, None, "papermill reports an error in a cell that it added")


def _failure(notebook: NotebookNode, cell: NotebookNode | None, error: str) -> dict[str, Any]:
    number = next((n for n, item in enumerate(code_cells(notebook), start=1) if item is cell), 0)
    line = next(iter(cell.source.splitlines()), "") if cell is not None else ""
    return {"cell": number, "line": line, "error": _one_line(error)}


def _one_line(error: str) -> str:
    text = " ".join(_ANSI.sub("", error).split())
    return text if len(text) <= _LONGEST_ERROR else text[: _LONGEST_ERROR - 1] + "…"


def _mark(destination: Path, error: str) -> dict[str, Any]:
    """Mark the cell that ran last in the kept notebook, as papermill marks one that raised."""
    notebook = nbformat.read(destination, as_version=4)
    started = [cell for cell in notebook.cells if cell.metadata.get("papermill", {}).get("start_time")]
    ran = [cell for cell in started if cell.cell_type == "code" and INJECTED not in tags(cell)]
    cell = ran[-1] if ran else None
    failure = _failure(notebook, cell, error)
    position = notebook.cells.index(cell) if cell is not None else len(notebook.cells)
    notebook.cells.insert(position, _marker(ERROR_ANCHOR_MSG))
    notebook.cells.insert(0, _marker(ERROR_MESSAGE_TEMPLATE % (cell.execution_count if cell is not None else "?")))
    nbformat.write(notebook, destination)
    return failure


def _marker(text: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell(text, metadata={"tags": [ERROR_MARKER_TAG]})


def _end_with_parent() -> None:
    """End when the process that started this one is gone, however it went; the kernel ends itself then."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(FAILED)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
