"""Committed notebooks: executed top to bottom by a refresh, readable, and free of anything of one machine."""

import base64
import re
import subprocess
import sys

import nbformat
import pytest
from notebook_files import PARAMETERS_SOURCE, notebook, write

from labs_lib.errors import LabError
from labs_lib.paths import FIGURES, NOTEBOOKS, ROOT
from labs_lib.tools.labs import LABS, Lab, table_problems
from labs_lib.tools.notebooks import (
    code_cells,
    committed_problems,
    default_parameters,
    notebook_bytes,
    read_notebook,
    with_outputs_of,
)

COMMITTED = sorted([*NOTEBOOKS.glob("[0-9]*.ipynb"), *(NOTEBOOKS / "solutions").glob("[0-9]*.ipynb")])
EMBEDDED_PNG = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")


# --- What is committed -------------------------------------------------------------------------------


def test_there_are_notebooks():
    assert COMMITTED, "no committed notebook was found: every test of this section would pass without one"


def test_the_table_lists_the_labs_that_exist():
    assert table_problems(LABS, NOTEBOOKS) == []


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_notebook(path):
    book = read_notebook(path)
    assert committed_problems(book) == []
    assert path.read_bytes() == notebook_bytes(book), "not as a refresh writes it: run `make refresh`"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_defaults_are_those_of_the_default_profile(path):
    assert default_parameters(read_notebook(path), path.stem)["PROFILE"] == "tiny"


def test_tracked_figures_are_those_that_the_notebooks_show():
    shown = {
        base64.b64decode(image)
        for path in COMMITTED
        for cell in code_cells(read_notebook(path))
        for output in cell.outputs
        for image in EMBEDDED_PNG.findall("".join(output.get("data", {}).get("text/html", "")))
    }
    tracked = {path.read_bytes(): path.name for path in FIGURES.glob("*.png")}
    assert len(shown - set(tracked)) == 0, "a notebook shows a figure that is not in figures/: run `make refresh`"
    stale = sorted(name for png, name in tracked.items() if png not in shown)
    assert not stale, f"no notebook shows {', '.join(stale)}: run `make refresh`, then delete what is left"


def test_code_of_the_notebooks_passes_ruff():
    for command in (["check"], ["format", "--check"]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(NOTEBOOKS)], cwd=ROOT, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert "No Python files found" not in result.stdout + result.stderr


# --- What would not be -------------------------------------------------------------------------------


def stream(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


def display(**data):
    kinds = {"png": "image/png", "html": "text/html", "plain": "text/plain"}
    return nbformat.v4.new_output("display_data", data={kinds[kind]: value for kind, value in data.items()})


def fit_notebook():
    """Executed, with a text and a described figure: nothing to complain about."""
    book = notebook("print('reward 1')", "figure")
    for count, cell in enumerate(code_cells(book), start=1):
        cell.execution_count = count
    code_cells(book)[1].outputs = [stream("reward 1\n")]
    image = '<img src="data:image/png;base64,iVBOR" alt="Four bars, of which the first is the tallest.">'
    code_cells(book)[2].outputs = [display(html=image, plain="Figure: Four bars.")]
    return book


def set_output(*outputs):
    def change(book):
        code_cells(book)[1].outputs = list(outputs)

    return change


def set_source(source, cell=1):
    def change(book):
        code_cells(book)[cell].source = source

    return change


def set_tag(tag, cell=1):
    def change(book):
        code_cells(book)[cell].metadata["tags"] = [tag]

    return change


def not_executed(book):
    for cell in code_cells(book):
        cell.execution_count = None


def executed_out_of_order(book):
    code_cells(book)[1].execution_count = 7


def without_kernelspec(book):
    del book.metadata["kernelspec"]


def other_kernelspec(book):
    book.metadata.kernelspec.name = "my-env"


def python_version(book):
    book.metadata["language_info"] = {"name": "python", "version": "3.11.7"}


def papermill_metadata(book):
    book.metadata["papermill"] = {"duration": 1.5}


def widget_metadata(book):
    book.metadata["widgets"] = {"state": {}}


def cell_timings(book):
    code_cells(book)[1].metadata["execution"] = {"iopub.status.busy": "2024-01-01"}


def injected_cell(book):
    cell = nbformat.v4.new_code_cell("SEED = 4", metadata={"tags": ["injected-parameters"]}, execution_count=2)
    book.cells.insert(2, cell)


def second_parameters_cell(book):
    code_cells(book)[1].metadata["tags"] = ["parameters"]


def no_cells(book):
    book.cells = [cell for cell in book.cells if cell.cell_type == "markdown"]


PROBLEMS = {
    "top to bottom": [not_executed, executed_out_of_order],
    "kernelspec": [without_kernelspec, other_kernelspec],
    "Python version": [python_version],
    "papermill metadata": [papermill_metadata],
    "widgets metadata": [widget_metadata],
    "timings": [cell_timings],
    "injected-parameters": [injected_cell],
    "`parameters` and needs one": [second_parameters_cell, set_tag("other", cell=0)],
    "does not define SEED": [set_source('PROFILE = "tiny"', cell=0)],
    "no code cell": [no_cells],
    "ended with ValueError": [set_output(nbformat.v4.new_output("error", ename="ValueError", evalue="x"))],
    "stderr": [set_output(stream("warning", "stderr"))],
    "widget": [
        set_output(
            nbformat.v4.new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {"model_id": "1"}})
        )
    ],
    "alt text": [
        set_output(display(png="iVBOR")),
        set_output(display(html="<img src='x.png'>")),
        set_output(display(html='<img alt="" src="x.png">')),
        set_output(display(html='<img alt="a figure" src="x.png">')),
    ],
    "path of one machine": [
        set_output(stream("saved to /home/ada/labs/x.json\n")),
        set_output(stream("File '/root/x.py'")),
        set_output(stream("(/tmp/tmpabc)")),
        set_output(stream("C:\\Users\\ada\\x")),
        set_output(display(plain="PosixPath('/Users/ada/x')")),
    ],
    "memory address": [set_output(display(plain="<Model at 0x7f8d2f3f3880>"))],
    "hides something": [
        set_tag("nbval-ignore-output"),
        set_tag("nbval-skip"),
        set_tag("raises-exception"),
        set_source("# NBVAL_IGNORE_OUTPUT\nx = 1"),
        set_source("x = 1\n  #  NBVAL_SKIP"),
    ],
    "it is empty": [set_source(" \n")],
    "26 lines": [set_source("\n".join(f"x{n} = 1" for n in range(26)))],
}


def test_a_fit_notebook_has_no_problem():
    assert committed_problems(fit_notebook()) == []
    harmless = ["accuracy 3/4 at 0.5/home", "see https://example.org/home/x", "0x41", "either/or /etc"]
    for text in harmless:
        book = fit_notebook()
        code_cells(book)[1].outputs = [stream(text)]
        assert committed_problems(book) == [], text


@pytest.mark.parametrize(
    ("expected", "change"),
    [(expected, change) for expected, changes in PROBLEMS.items() for change in changes],
)
def test_every_kind_of_problem_is_seen(expected, change):
    book = fit_notebook()
    change(book)
    assert any(expected in problem for problem in committed_problems(book)), committed_problems(book)


def test_a_cell_of_25_lines_is_fit():
    book = fit_notebook()
    set_source("\n".join(f"x{n} = 1" for n in range(25)))(book)
    assert committed_problems(book) == []


def test_a_table_that_disagrees_with_the_folder_is_seen(tmp_path):
    write(tmp_path / "01_new.ipynb", notebook())
    write(tmp_path / "solutions" / "01_solutions.ipynb", notebook())
    write(tmp_path / "01_new-Copy1.ipynb", notebook())
    write(tmp_path / "Untitled.ipynb", notebook())
    problems = table_problems([Lab("02_gone")], tmp_path)
    assert sorted(problem.split("/")[1].split(".")[0] for problem in problems) == ["01_new", "02_gone", "solutions"]


# --- Parameters and refreshed outputs ----------------------------------------------------------------


def test_default_parameters_are_read_without_running_the_cell():
    book = notebook(parameters='PROFILE: str = "tiny"\nSEED = 3  # which run\nRATE = -1e-3\nSIZES = [2, 8]')
    expected = {"PROFILE": "tiny", "SEED": 3, "RATE": -1e-3, "SIZES": [2, 8]}
    assert default_parameters(book, "00_x") == expected


@pytest.mark.parametrize("source", ["SEED = int('3')", "print(3)", "SEED =", "A = B = 3", "import os", "SEED: int"])
def test_parameters_that_are_not_literals_are_refused(source):
    with pytest.raises(LabError, match="00_x may only assign literals"):
        default_parameters(notebook(parameters=source), "00_x")


@pytest.mark.parametrize("parameters", [None, PARAMETERS_SOURCE])
def test_a_notebook_needs_exactly_one_parameters_cell(parameters):
    book = notebook(parameters=parameters)
    if parameters:
        book.cells.append(book.cells[1].copy())
    with pytest.raises(LabError, match="exactly one cell"):
        default_parameters(book, "00_x")


def executed_copy(book):
    """What papermill leaves: an injected cell, shifted counts, timings, stderr, its metadata."""
    run = nbformat.from_dict(book)
    injected_cell(run)
    for count, cell in enumerate((cell for cell in run.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
        cell.metadata["papermill"] = {"duration": 0.1 * count}
        value = nbformat.v4.new_output("execute_result", data={"text/plain": "4"}, execution_count=count)
        cell.outputs = [stream("warning", "stderr"), stream("text"), value]
    papermill_metadata(run)
    python_version(run)
    widget_metadata(run)
    return run


def test_refresh_keeps_of_an_execution_the_outputs_only():
    tracked = notebook("2 + 2", "3 + 3")
    refreshed = with_outputs_of(tracked, executed_copy(tracked), "00_x")
    assert committed_problems(refreshed) == []
    assert [cell.id for cell in refreshed.cells] == [cell.id for cell in tracked.cells]
    for count, cell in enumerate(code_cells(refreshed), start=1):
        assert [output.output_type for output in cell.outputs] == ["stream", "execute_result"]
        assert cell.outputs[1].execution_count == count
    assert tracked == notebook("2 + 2", "3 + 3")


def test_refreshing_twice_changes_nothing():
    tracked = notebook("2 + 2")
    once = with_outputs_of(tracked, executed_copy(tracked), "00_x")
    twice = with_outputs_of(once, executed_copy(once), "00_x")
    assert notebook_bytes(once) == notebook_bytes(twice)
    assert b"warning" not in notebook_bytes(once)


def test_outputs_of_another_notebook_are_refused():
    with pytest.raises(LabError, match="changed while it was executed"):
        with_outputs_of(notebook("2 + 3"), executed_copy(notebook("2 + 2")), "00_x")
