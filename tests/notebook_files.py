"""Small notebooks for the tests of the notebook tools."""

from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

PARAMETERS_SOURCE = 'PROFILE = "tiny"\nSEED = 3'


def notebook(*sources: str, parameters: str | None = PARAMETERS_SOURCE) -> NotebookNode:
    """An unexecuted notebook: a title, the parameters cell (cell 1), then a code cell for each source."""
    cells = [nbformat.v4.new_markdown_cell("# A lab")]
    if parameters is not None:
        cells.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    cells += [nbformat.v4.new_code_cell(source) for source in sources]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernelspec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})


def write(path: Path, book: NotebookNode) -> Path:
    """Write `book` and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)
    return path


def outputs_text(path: Path) -> str:
    """Everything that the streams of a notebook say."""
    book = nbformat.read(path, as_version=4)
    texts: Sequence[str] = [
        output.text for cell in book.cells for output in cell.get("outputs", []) if output.output_type == "stream"
    ]
    return "".join(texts)
