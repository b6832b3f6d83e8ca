"""Notebook files: their parameters, cleaned outputs, and what may not be committed."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from labs_lib.errors import LabError
from labs_lib.storage import atomic_write_bytes, canonical_json, sha256_bytes

PARAMETERS = "parameters"
INJECTED = "injected-parameters"
ERROR_MARKER = "papermill-error-cell-tag"
LONGEST_CELL = 25  # lines
SHORTEST_ALT = 20  # characters
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}

_HIDING_TAGS = {"raises-exception", "skip-execution"}
_HIDING_COMMENT = re.compile(r"^\s*#+\s*(NBVAL_|PYTEST_VALIDATE_)", re.MULTILINE)
_MACHINE_PATH = re.compile(r"(?<![\w./:>-])(?:/(?:home|root|Users|tmp|var|usr|opt|work|mnt|private)/|[A-Z]:\\)\S*")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_IMAGE_DATA = re.compile(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=]+")
_IMAGE_TAG = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_ALT = re.compile(r"""\balt=(?:"([^"]*)"|'([^']*)')""")


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook; LabError if it is missing or not one."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        raise LabError(f"{path} is missing.") from None
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise LabError(f"{path} is not a valid notebook: {' '.join(str(error).split())[:200]}") from error
    return notebook


def notebook_bytes(notebook: NotebookNode) -> bytes:
    """The one spelling of a notebook: nbformat's, keys sorted, one final newline."""
    return (nbformat.writes(notebook).rstrip("\n") + "\n").encode("utf-8")


def write_notebook(path: Path, notebook: NotebookNode) -> None:
    """Write atomically, and not at all if nothing changes."""
    data = notebook_bytes(notebook)
    if not path.exists() or path.read_bytes() != data:
        atomic_write_bytes(path, data)


def tags(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells, without the one that papermill injects."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and INJECTED not in tags(cell)]


def source_fingerprint(notebook: NotebookNode) -> str:
    """SHA-256 of what an author writes: the cells' kinds, sources and tags, and no output."""
    return sha256_bytes(canonical_json([[cell.cell_type, cell.source, tags(cell)] for cell in notebook.cells]))


def default_parameters(notebook: NotebookNode, name: str) -> dict[str, Any]:
    """Names and values that the `parameters` cell assigns, read without running it.

    Raises LabError unless there is exactly one such cell and it assigns literals only.
    """
    found = [cell for cell in code_cells(notebook) if PARAMETERS in tags(cell)]
    if len(found) != 1:
        raise LabError(f"{name} needs exactly one cell with the tag `parameters`, found {len(found)}.")
    try:
        statements = ast.parse(found[0].source).body
        return {_target(item): ast.literal_eval(item.value) for item in statements}
    except (SyntaxError, ValueError, AttributeError) as error:
        raise LabError(f"The parameters cell of {name} may only assign literals (NAME = value): {error}.") from error


def _target(statement: ast.stmt) -> str:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    raise ValueError(f"line {statement.lineno} is something else")


# --- Refresh -----------------------------------------------------------------------------------------


def with_outputs_of(tracked: NotebookNode, executed: NotebookNode, name: str) -> NotebookNode:
    """The tracked notebook with the outputs of an execution, and nothing else of it.

    Counts become 1..n; stderr, timings, widget state, language version and the injected cell stay behind.
    Raises LabError when the executed notebook is not this one.
    """
    sources, executed_cells = code_cells(tracked), code_cells(executed)
    if [cell.source for cell in sources] != [cell.source for cell in executed_cells]:
        raise LabError(f"{name} was changed while it was executed: run the refresh again.")
    result = nbformat.from_dict(tracked)
    for count, (cell, run) in enumerate(zip(code_cells(result), executed_cells, strict=True), start=1):
        cell.execution_count = count
        cell.outputs = [_clean_output(output, count) for output in run.outputs if not _is_stderr(output)]
    for cell in result.cells:
        cell.metadata = nbformat.from_dict(
            {key: value for key, value in cell.metadata.items() if key not in ("papermill", "execution") and value}
        )
    result.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": LANGUAGE})
    return result


def _is_stderr(output: NotebookNode) -> bool:
    return output.output_type == "stream" and output.name == "stderr"


def _clean_output(output: NotebookNode, count: int) -> NotebookNode:
    output = nbformat.from_dict(output)
    if "execution_count" in output:
        output.execution_count = count
    return output


# --- What may not be committed -----------------------------------------------------------------------


def committed_problems(notebook: NotebookNode) -> list[str]:
    """Everything that makes a notebook unfit to be committed, each as a sentence; empty when it is fit."""
    cells = code_cells(notebook)
    problems = list(_metadata_problems(notebook))
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        problems.append("it was not executed from top to bottom: run `make refresh`")
    for number, cell in enumerate(cells, start=1):
        problems += [f"cell {number}: {problem}" for problem in _cell_problems(cell)]
        for output in cell.outputs:
            problems += [f"cell {number}: {problem}" for problem in _output_problems(output)]
    return problems


def _metadata_problems(notebook: NotebookNode) -> Iterator[str]:
    if not code_cells(notebook):
        yield "it has no code cell"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its kernelspec is not python3"
    if notebook.metadata.get("language_info", {}).get("version"):
        yield "it names a Python version: run `make refresh`"
    for key in sorted({"papermill", "widgets"} & set(notebook.metadata)):
        yield f"it carries {key} metadata: run `make refresh`"
    found = [tag for cell in notebook.cells for tag in tags(cell)]
    if found.count(PARAMETERS) != 1:
        yield f"it has {found.count(PARAMETERS)} cells with the tag `parameters` and needs one"
    elif missing := {"PROFILE", "SEED"} - set(default_parameters(notebook, "it")):
        yield f"its parameters cell does not define {', '.join(sorted(missing))}"
    for tag in sorted({INJECTED, ERROR_MARKER} & set(found)):
        yield f"it has a cell with papermill's tag {tag}: run `make refresh`"


def _cell_problems(cell: NotebookNode) -> Iterator[str]:
    lines = cell.source.count("\n") + 1
    if not cell.source.strip():
        yield "it is empty"
    if lines > LONGEST_CELL:
        yield f"it has {lines} lines, more than {LONGEST_CELL}"
    if {"papermill", "execution"} & set(cell.metadata):
        yield "it carries timings in its metadata: run `make refresh`"
    hiding = [tag for tag in tags(cell) if tag in _HIDING_TAGS or tag.startswith("nbval-")]
    if hiding or _HIDING_COMMENT.search(cell.source):
        yield "it hides something from the comparison of outputs"


def _output_problems(output: NotebookNode) -> Iterator[str]:
    if output.output_type == "error":
        yield f"it ended with {output.ename}"
    if _is_stderr(output):
        yield "it has text on stderr: run `make refresh`"
    data = output.get("data", {})
    if any(kind.startswith("application/vnd.jupyter.widget") for kind in data):
        yield "it shows a widget"
    for kind in data:
        described = output.get("metadata", {}).get(kind, {})
        if kind.startswith("image/") and len(described.get("alt", "")) < SHORTEST_ALT:
            yield "it shows an image without alt text: use labs_lib.figures.style.save_figure"
    if any(len(_alt(image)) < SHORTEST_ALT for image in _IMAGE_TAG.findall(_text(data.get("text/html", "")))):
        yield "it shows an image without alt text: use labs_lib.figures.style.save_figure"
    for text in [output.get("text", ""), *(_text(value) for kind, value in data.items() if kind[:6] != "image/")]:
        yield from _text_problems(_IMAGE_DATA.sub("", text))


def _alt(image: str) -> str:
    match = _ALT.search(image)
    return (match[1] or match[2] or "") if match else ""


def _text_problems(text: str) -> Iterator[str]:
    if path := _MACHINE_PATH.search(text):
        yield f"its output names a path of one machine: {path[0]}"
    if address := _ADDRESS.search(text):
        yield f"its output holds a memory address: {address[0]}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "".join(value) if isinstance(value, list) else str(value)
