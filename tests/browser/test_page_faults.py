"""What is called a fault of a page: every one is found on its own, and a page without one passes."""

from dataclasses import replace

import pytest
from nbformat.v4 import new_output
from notebook_files import notebook
from page_faults import STDERR, TRACEBACK, Cell, Image, Shown, committed_figures, faults

from labs_lib.figures.style import ShownFigure
from labs_lib.progress import frame
from labs_lib.tools.notebooks import code_cells

FIGURE = Image("Two lines: reward up, length down.", complete=True, width=1080, height=600)
BAR = frame("GRPO", 7, 7, "7/7")
MOVING = frame("GRPO", 3, 7, "3/7 [00:02<00:03]")
TRAINED = Cell("code", "[1]:", (("application/vnd.jupyter.stdout", BAR),))
DRAWN = Cell("code", "[2]:", (("text/html", ""),), (FIGURE,))
SHOWN = Shown((Cell("markdown"), TRAINED, DRAWN), frames=(MOVING,))


def with_cell(**changes):
    """The page with another last cell."""
    return replace(SHOWN, cells=(*SHOWN.cells[:-1], replace(DRAWN, **changes)))


def with_bar(text):
    cells = (SHOWN.cells[0], replace(TRAINED, outputs=(("application/vnd.jupyter.stdout", text),)), DRAWN)
    return replace(SHOWN, cells=cells)


FAULTY = {
    "not run": (with_cell(prompt="[ ]:"), "cell 2: it was not executed, its prompt is [ ]:"),
    "still running": (with_cell(prompt="[*]:"), "cell 2: it was not executed, its prompt is [*]:"),
    "run out of order": (with_cell(prompt="[7]:"), "cell 2: its count is 7 and not 2"),
    "failed": (with_cell(outputs=((STDERR, f"{TRACEBACK}\nValueError: no"),)), "cell 2: it failed: ValueError: no"),
    "stderr": (with_cell(outputs=((STDERR, "a warning"),)), "cell 2: it has text on stderr: a warning"),
    "no figure": (with_cell(images=()), "it shows 0 figures of 1"),
    "no alt text": (
        with_cell(images=(replace(FIGURE, alt=" "),)),
        "cell 2: a figure has no alt text that says what it shows, only ' '",
    ),
    "a name for an alt text": (
        with_cell(images=(replace(FIGURE, alt="figure 1"),)),
        "cell 2: a figure has no alt text that says what it shows, only 'figure 1'",
    ),
    "not loaded": (
        with_cell(images=(replace(FIGURE, complete=False),)),
        f"cell 2: a figure does not load: {FIGURE.alt}",
    ),
    "broken image": (with_cell(images=(replace(FIGURE, width=0),)), f"cell 2: a figure does not load: {FIGURE.alt}"),
    "formula": (
        with_cell(bad_formulas=("No argument",)),
        "cell 2: MathJax cannot set a formula: No argument",
    ),
    "cut off": (with_cell(too_wide=("table",)), "cell 2: it does not fit into the window: table"),
    "bar that stopped": (with_bar(frame("GRPO", 3, 7, "3/7")), "cell 1: a progress bar stopped at 43%"),
    "bars that never moved": (replace(SHOWN, frames=()), "no progress bar was seen to move"),
    "first frames only": (
        replace(SHOWN, frames=(frame("GRPO", 0, 7, "0/7 [00:00]"),)),
        "no progress bar was seen to move",
    ),
    "a dialog": (replace(SHOWN, dialogs=("Kernel Restarting",)), "a dialog: Kernel Restarting"),
    "a script error": (replace(SHOWN, script_errors=("no model",)), "an error in the page's scripts: no model"),
    "no code": (Shown((Cell("markdown", "", (), (FIGURE,)),), (MOVING,)), "it has no code cell"),
}


def test_a_page_as_it_should_be_has_no_fault():
    assert faults(SHOWN, figures=1, live=True) == []
    assert faults(replace(SHOWN, frames=()), figures=1, live=False) == []


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found_and_nothing_else(name):
    shown, expected = FAULTY[name]
    assert faults(shown, figures=1, live=True) == [expected]


def test_figures_of_a_committed_lab_are_counted():
    book = notebook("1", "2", "3")
    shown = ShownFigure(b"", FIGURE.alt)._repr_mimebundle_()
    for cell in code_cells(book)[1:3]:
        cell.outputs = [new_output("stream", text="<img is only text here"), new_output("display_data", shown)]
    assert committed_figures(book) == 2
