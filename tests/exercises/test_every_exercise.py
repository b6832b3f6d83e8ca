"""Every exercise of every lab: its solution passes, its stub is not attempted, plausible wrong answers are rejected.

The exercises are read from the notebooks, so that a new one without its proof fails here.
"""

import functools
import inspect
from pathlib import Path
from typing import Any

import pytest
from lab_cells import lab_namespace
from notebook_files import notebook

from exercises.mutants import lab00, lab01, lab02, lab03, lab04, lab05, lab06, lab07
from exercises.proofs import unproven
from labs_lib.errors import LabError
from labs_lib.exercises.check import Exercise, assert_discriminates
from labs_lib.exercises.registry import exercises_of
from labs_lib.paths import NOTEBOOKS, SOLUTIONS
from labs_lib.tools.labs import LABS, is_solution
from labs_lib.tools.notebooks import code_cells, read_notebook
from labs_lib.tools.stubs import STAR, stub_names, stubs

START = "00_start_here"  # makes its one exercise itself, and solves it in its text
MUTANTS = {module.__name__[-2:]: module.MUTANTS for module in (lab00, lab01, lab02, lab03, lab04, lab05, lab06, lab07)}
NAMES = [lab.name for lab in LABS if not is_solution(lab)]
CASES = [(lab, name) for lab in NAMES for name in MUTANTS.get(lab[:2], ())]
every_exercise = pytest.mark.parametrize(("lab", "name"), CASES, ids=[f"{lab[:2]}-{name}" for lab, name in CASES])


def solution_of(lab: str, name: str) -> Any:
    return max if lab == START else defined_in(SOLUTIONS / f"{lab[:2]}_solutions.ipynb", name)


def stub_of(lab: str, name: str) -> Any:
    return defined_in(NOTEBOOKS / f"{lab}.ipynb", name)


@functools.cache
def defined_in(path: Path, name: str) -> Any:
    return lab_namespace(path, [name])[name]


def exercise_of(lab: str, name: str) -> Exercise:
    return stub_of(lab, "demo") if lab == START else exercises_of(lab)[name]


@pytest.mark.parametrize("lab", NAMES)
def test_every_exercise_has_its_proof(lab):
    book = read_notebook(NOTEBOOKS / f"{lab}.ipynb")
    mutants = MUTANTS.get(lab[:2], {})
    assert unproven(book, {name: solution_of(lab, name) for name in mutants}, mutants) == []
    if lab != START:
        assert [stub.name for stub in stubs(book, lab)] == list(exercises_of(lab))


@every_exercise
def test_the_check_tells_right_from_wrong(lab, name):
    assert_discriminates(exercise_of(lab, name), solution_of(lab, name), stub_of(lab, name), MUTANTS[lab[:2]][name])


@every_exercise
def test_every_property_rejects_something(lab, name):
    """A property that no wrong answer fails is either redundant or cannot fail."""
    exercise = exercise_of(lab, name)
    for item in exercise.properties:
        alone = Exercise(name, (item,), exercise.deterministic, exercise.mutates)
        assert any(alone.evaluate(mutant).status == "wrong" for mutant in MUTANTS[lab[:2]][name]), item.hint


@every_exercise
def test_the_solution_is_called_as_the_stub(lab, name):
    if lab != START:
        solution, stub = (inspect.signature(find(lab, name)) for find in (solution_of, stub_of))
        assert list(solution.parameters) == list(stub.parameters)


# --- What would be noticed ---------------------------------------------------------------------------

STUB = "def double(x):\n    'Twice x.'\n    raise NotImplementedError"
CHECK = "exercises.DOUBLE.check(double)"
PROVEN = {"double": [abs, min, max]}


def test_a_proven_exercise_has_no_problem():
    assert unproven(notebook(STUB, CHECK), {"double": len}, PROVEN) == []
    assert unproven(notebook(f"{STUB}\n\n\n{CHECK}"), {"double": len}, PROVEN) == []
    assert unproven(notebook("def double(x):\n    return 2 * x"), {}, {}) == []


@pytest.mark.parametrize(
    ("cells", "solutions", "mutants", "problem"),
    [
        ([STUB], {"double": len}, PROVEN, "double is never checked"),
        ([CHECK, STUB], {"double": len}, PROVEN, "double is never checked"),
        ([STUB, "exercises.DOUBLE.check(other)"], {"double": len}, PROVEN, "double is never checked"),
        ([STUB, CHECK, STUB], {"double": len}, PROVEN, "double is a stub twice"),
        ([STUB, CHECK], {}, PROVEN, "double has no solution"),
        ([STUB, CHECK], {"double": len}, {}, "double has fewer than 3 mutants"),
        ([STUB, CHECK], {"double": len}, {"double": [abs, min]}, "double has fewer than 3 mutants"),
        ([STUB, CHECK], {"double": len}, PROVEN | {"gone": [abs] * 3}, "mutants of gone"),
    ],
    ids=range(8),
)
def test_what_is_missing_is_said(cells, solutions, mutants, problem):
    assert any(problem in found for found in unproven(notebook(*cells), solutions, mutants))


def test_stubs_know_their_exercise_and_their_stars():
    book = notebook(STUB, "x = 1", STUB.replace("double", "treble"))
    book.cells[0].source = f"### Exercise 2.1: twice\n*Difficulty {STAR}{STAR}☆, 5 minutes*"
    book.cells[3].update(cell_type="markdown", source=f"### Exercise 3 · Thrice ({STAR}, 5 minutes)")
    assert [(s.name, s.exercise, s.stars) for s in stubs(book, "x")] == [
        ("double", "Exercise 2.1", 2),
        ("treble", "Exercise 3", 1),
    ]
    book.cells[3].source = "### Exercise 3 · Thrice"
    with pytest.raises(LabError, match="treble has no heading"):
        stubs(book, "x")


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x",
        "def f(x):\n    raise NotImplementedError('not on this device')",
        "def f(x):\n    x += 1\n    raise NotImplementedError",
        "f = None",
        "def f(x):\n    raise ValueError",
    ],
)
def test_what_is_no_stub(source):
    assert [name for cell in code_cells(notebook(source)) for name in stub_names(cell)] == []


def test_a_lab_without_exercises_is_named():
    with pytest.raises(LabError, match="Lab 00_start_here has no exercises"):
        exercises_of(START)
