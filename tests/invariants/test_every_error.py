"""Every error to diagnose of every lab has a test in which it trips the invariant that the lab names.

The errors are read from the notebooks, so that a new one without its test fails here.
"""

import nbformat
import pytest
from notebook_files import notebook

from invariants import test_lab01, test_lab02, test_lab03, test_lab04, test_lab05, test_lab06, test_lab07
from invariants.proofs import errors_to_diagnose, marked, unproven
from labs_lib.paths import NOTEBOOKS
from labs_lib.tools.labs import LABS, is_solution
from labs_lib.tools.notebooks import read_notebook

TESTS = {"00": test_lab01, "01": test_lab01, "02": test_lab02}
TESTS |= {"03": test_lab03, "04": test_lab04, "05": test_lab05, "06": test_lab06, "07": test_lab07}
NAMES = [lab.name for lab in LABS if not is_solution(lab)]


@pytest.mark.parametrize("module", dict.fromkeys(TESTS.values()), ids=lambda module: module.__name__)
def test_every_error_to_diagnose_is_tested(module):
    labs = [name for name in NAMES if TESTS.get(name[:2]) is module]
    errors = [error for name in labs for error in errors_to_diagnose(read_notebook(NOTEBOOKS / f"{name}.ipynb"))]
    assert errors and unproven(errors, marked([module])) == []


def test_every_lab_has_its_test_module():
    assert sorted(TESTS) == [name[:2] for name in NAMES]


# --- What would be noticed ---------------------------------------------------------------------------

CATCH = "try:\n    require_order(flipped)\nexcept AssertionError as error:\n    print(error)"


def announced(*cells):
    """A lab: markdown where a text begins like markdown, else code."""
    book = notebook(*cells)
    for cell in book.cells:
        if cell.source.startswith(("#", "**")):
            cell.cell_type = "markdown"
    return nbformat.from_dict(book)


def test_errors_are_found_with_the_invariants_that_are_put_to_them():
    first, second, third = errors_to_diagnose(
        announced(
            "def require_order(x):\n    assert x",
            "**Error to diagnose.** The sign is flipped.",
            CATCH,
            "### Errors to diagnose: two more",
            "diagnose(require_sum, wrong)",
            "### A text between",
            "refuse_all(right)",
            "## Another section",
            CATCH,
            "### Error to diagnose: nothing in code",
            "x = 1",
        )
    )
    assert (first.cell, second.cell, third.cell) == ("cell-3", "cell-5", "cell-11")
    assert (first.invariants, second.invariants) == ({"require_order"}, {"require_sum"})
    assert {"flipped", "print"} <= first.names and "refuse_all" in second.names and third.names == {"x"}
    assert not third.invariants


def test_talk_about_errors_announces_none():
    assert errors_to_diagnose(announced("**Reading.** An **error to diagnose** was here", "# Error to diagnose")) == []


def trips_order():
    with pytest.raises(AssertionError):
        require_order(None)  # noqa: F821


ERRORS = errors_to_diagnose(announced("**Error to diagnose.** The sign.", CATCH))
CELL = "cell-2"


@pytest.mark.parametrize(
    ("marks", "problem"),
    [
        ([], "no test shows that the error of cell-2 trips require_order"),
        ([], "no test is about the error of cell-2"),
        ([(trips_order, CELL, ())], "no test shows that the error of cell-2 trips require_order"),
        ([(trips_order, "cell-9", ("require_order",))], "about cell-9, where no error is announced"),
        ([(announced, CELL, ("require_order",))], "announced never uses require_order"),
        ([(trips_order, CELL, ("raises",))], "cell-2 has nothing to do with raises"),
    ],
    ids=range(6),
)
def test_what_is_missing_is_said(marks, problem):
    assert any(problem in found for found in unproven(ERRORS, marks)), unproven(ERRORS, marks)


def test_a_tested_error_has_no_problem():
    assert unproven(ERRORS, [(trips_order, CELL, ("require_order",))]) == []


@pytest.mark.diagnoses(CELL, "require_order")
def marked_only():
    pass


def test_a_mark_alone_is_no_test():
    class Module:
        one = marked_only

    assert unproven(ERRORS, marked([Module])) == ["marked_only never uses require_order"]
