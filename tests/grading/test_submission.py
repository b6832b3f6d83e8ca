"""What is read of a submission: any bytes, any cells, and only the statements that an exercise needs."""

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grading.submissions import LAB02, solved_cells, sources, submitted
from labs_lib.errors import LabError
from labs_lib.exercises.registry import exercises_of
from labs_lib.tools.grading.scopes import STAR_IMPORT, bound_names, changed_names, read_names
from labs_lib.tools.grading.sheet import graded_labs, lab_of, read_lab
from labs_lib.tools.grading.submission import needed, parsed, read_submission
from labs_lib.tools.grading.texts import printable

LABS = graded_labs()
SOLVED = [(lab, name) for lab, names in LABS.items() for name in names]

# --- Files -------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["cells", "source", "x"]), inner),
    max_leaves=8,
)
KINDS = st.sampled_from(["code", "markdown", 3])
CELLS = st.lists(st.fixed_dictionaries({}, optional={"cell_type": KINDS, "source": VALUES}) | VALUES)


@given(st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused_with_a_sentence(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "x.ipynb"
    path.write_bytes(data)
    try:
        read_submission(path)
    except LabError as error:
        assert "x.ipynb" in str(error) and "\n" not in str(error)


@given(CELLS)
def test_any_cells_are_read(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("any") / "x.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    submission = read_submission(path)
    assert len(submission.cells) == sum(isinstance(cell, dict) and cell.get("cell_type") == "code" for cell in cells)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "is missing"),
        ("folder", "cannot be read"),
        (b"# my solutions", "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b"[]", "no list of cells"),
        (b'{"worksheets": []}', "no list of cells"),
        (b'{"cells": {"a": 1}}', "no list of cells"),
        (b" " * ((64 << 20) + 1), "more than 64 MB"),
    ],
    ids=["missing", "folder", "text", "bytes", "deep", "list", "old", "dict", "large"],
)
def test_what_is_no_notebook_is_refused(tmp_path, data, sentence):
    path = tmp_path / "x.ipynb"
    if data == "folder":
        path.mkdir()
    elif data is not None:
        path.write_bytes(data)
    with pytest.raises(LabError, match=sentence):
        read_submission(path)


# --- Statements --------------------------------------------------------------------------------------


def statement(source):
    (node,) = ast.parse(source).body
    return node


@pytest.mark.parametrize(
    ("source", "bound", "read"),
    [
        ("x = y + 1", {"x"}, {"y"}),
        ("def f(a, b=c):\n    loss = a\n    return loss + d", {"f"}, {"c", "d"}),
        ("def f(a: Problem) -> Kind:\n    return [n for n in a]", {"f"}, {"Problem", "Kind"}),
        ("def f():\n    def g():\n        return h\n    return g", {"f"}, {"h"}),
        ("def f():\n    global n\n    n = 1", {"f", "n"}, set()),
        ("f = lambda a: a + b", {"f"}, {"b"}),
        ("class A(B):\n    c = d", {"A"}, {"B", "d"}),
        ("import a.b, c as d", {"a", "d"}, set()),
        ("from a import b as c", {"c"}, set()),
        ("from a import *", {STAR_IMPORT}, set()),
        ("if a:\n    def f():\n        return b", {"f"}, {"a", "b"}),
        ("for i in a:\n    b[i] = c", {"i"}, {"a", "b", "c", "i"}),
        ("a(b)", set(), {"a", "b"}),
        ("@a\ndef f():\n    pass", {"f"}, {"a"}),
        ("(a, *b), c = d", {"a", "b", "c"}, {"d"}),
        ("print(x := y)", {"x"}, {"print", "y"}),
    ],
)
def test_scopes_are_pythons(source, bound, read):
    assert bound_names(statement(source)) == bound
    assert read_names(statement(source)) == read


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("a.b.c = d", {"a"}),
        ("a[0][b] += c", {"a"}),
        ("a.append(b)", {"a"}),
        ("del a.b", {"a"}),
        ("for i in a:\n    b[i] = c", {"b"}),
        ("x = a.pop()", set()),
        ("a(b)", set()),
        ("f().g(a)", set()),
    ],
)
def test_a_change_of_an_object_is_seen(source, changed):
    assert changed_names(statement(source)) == changed


def chosen(name, cells, lab=()):
    return [item.source for item in needed(name, parsed(cells), parsed(lab))]


def test_only_what_a_function_needs_is_run():
    cells = ["import torch\nimport os", "loss = train(100)", "def half(x):\n    return x / TWO", "TWO = 2", "half(8)"]
    cells += ["def f(x):\n    loss = half(x)\n    return torch.tensor(loss)"]
    found = chosen("f", cells)
    assert [text.split("\n")[0] for text in found] == ["import torch", "def half(x):", "TWO = 2", "def f(x):"]


def test_definitions_that_are_made_in_steps_keep_their_order():
    cells = ["names = ['a']", "other = []", "names.append('b')", "names += ['c']", "def f():\n    return names"]
    assert chosen("f", cells) == ["names = ['a']", "names.append('b')", "names += ['c']", "def f():\n    return names"]


def test_what_is_imported_is_not_changed():
    cells = ["from check import Exercise", "Exercise.evaluate = lambda *_: 1", "def f():\n    return Exercise"]
    assert chosen("f", cells) == [cells[0], cells[2]]


def test_what_was_deleted_is_taken_from_the_lab():
    lab = ["import torch", "BASE = 2", "def f():\n    raise NotImplementedError"]
    (ours, theirs) = needed("f", parsed(["def f():\n    return torch.ones(2)"]), parsed(lab))
    assert (ours.source, ours.cell, theirs.cell) == ("import torch", 0, 1)
    assert chosen("f", ["BASE = 3", "def f():\n    return BASE"], lab) == ["BASE = 3", "def f():\n    return BASE"]


def test_magics_do_not_hide_a_definition():
    cells = ["%%time\ndef f(x):\n    return x", "!pip list", "%matplotlib inline", "%%bash\nls", "f?"]
    submission = parsed(cells)
    assert submission.broken == () and [s.cell for s in submission.definitions("f")] == [1]


def test_a_broken_cell_is_named_and_does_not_hide_the_others():
    submission = parsed(["\n\ndef f(x)\n    return x", "def g(x):\n    return x", "x = '\0'", "(" * 500 + ")" * 500])
    assert [item.cell for item in submission.broken] == [1, 3, 4]
    assert submission.broken[0].line == "def f(x)" and "SyntaxError" in submission.broken[0].error
    assert submission.definitions("g") and not submission.definitions("f")
    assert submission.broken_definition("f") == submission.broken[0] and submission.broken_definition("g") is None


def test_texts_of_students_are_one_line_without_control_characters():
    assert printable("a\n\x1b[31m b\ud800") == "a \ufffd[31m b\ufffd"
    assert len(printable("x" * 1000)) == 300


# --- Which lab, and its solutions --------------------------------------------------------------------


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_is_known_by_the_functions_that_it_asks_for(lab):
    assert lab_of(sources(submitted(lab, {})), "anna.ipynb", LABS) == lab
    assert lab_of(parsed(solved_cells(lab)), "anna.ipynb", LABS) == lab


def test_a_file_name_decides_where_the_functions_do_not():
    assert lab_of(parsed([]), f"{LAB02}-anna.ipynb", LABS) == LAB02
    assert lab_of(parsed(["def answer_mask(x) return"]), "03.ipynb", LABS) == LAB02
    both = parsed(["def mixed_share(p, n):\n    return p", "def answer_mask(x, y):\n    return x"])
    assert lab_of(both, "02_x.ipynb", LABS) == LAB02 and lab_of(both, "03_x.ipynb", LABS)[:2] == "03"
    for name, sentence in (("anna.ipynb", "holds none of the exercises"), ("00_start_here.ipynb", "nothing to grade")):
        with pytest.raises(LabError, match=sentence):
            lab_of(parsed(["x = 1"]), name, LABS)
    with pytest.raises(LabError, match="holds none of the exercises"):
        lab_of(both, "anna.ipynb", LABS)


@pytest.mark.parametrize(("lab", "name"), SOLVED, ids=[name for _, name in SOLVED])
def test_a_solution_in_its_lab_needs_no_run_of_the_lab_and_is_right(lab, name):
    (solution,) = parsed(solved_cells(lab)).definitions(name)
    statements = needed(name, sources(submitted(lab, {name: solution.source})), read_lab(lab).code)
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    assert all(isinstance(statement(item.source), kinds) for item in statements), "something of the lab would be run"
    space = {"__name__": "__main__"}
    for item in statements:
        exec(item.source, space)
    assert exercises_of(lab)[name].evaluate(space[name]).status == "right"
