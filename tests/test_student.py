"""The student edition: without outputs and solutions, the same bytes every time, and it runs untouched."""

import ast
import os
import re
import subprocess
import sys

import nbformat
import pytest
from notebook_files import notebook, outputs_text, write

from labs_lib.errors import LabError
from labs_lib.exercises.registry import exercises_of
from labs_lib.paths import NOTEBOOKS, ROOT, SOLUTIONS
from labs_lib.tools import student
from labs_lib.tools.labs import LABS, is_solution
from labs_lib.tools.notebooks import code_cells, notebook_bytes, read_notebook
from labs_lib.tools.student import require_untouched, student_files, student_makefile, student_notebook, write_edition

STUB = "def double(x):\n    raise NotImplementedError"
HINT = "<details><summary>Hint</summary>\nDouble it.\n</details>"
TOLD = "<details><summary>{}</summary>\n\n`2 * x`\n\n</details>\n"


@pytest.fixture(scope="module")
def files():
    return student_files(ROOT)


def test_every_lab_is_in_it_and_no_solution(files):
    labs = {f"notebooks/{lab.name}.ipynb" for lab in LABS if not is_solution(lab)}
    assert {name for name in files if name.startswith("notebooks/") and not name.endswith(".md")} == labs
    assert {"LICENSE", "Makefile", "README.md", "requirements.txt", "labs_lib/paths.py", "configs/tiny.yaml"} <= set(
        files
    )
    tops = {"LICENSE", "Makefile", "README.md", "assets", "configs", "data", "docs", "labs_lib", "notebooks"}
    assert {name.split("/")[0] for name in files} <= tops | {"requirements.txt"}
    assert not [name for name in files if re.search(r"solution|teacher|/\.|__pycache__|\.pyc$|^assets/bases/", name)]


def test_notebooks_have_no_outputs_and_stubs_as_we_wrote_them(files):
    for lab in LABS:
        if is_solution(lab):
            continue
        book = nbformat.reads(files[f"notebooks/{lab.name}.ipynb"].decode(), as_version=4)
        nbformat.validate(book)
        assert all(cell.outputs == [] and cell.execution_count is None for cell in code_cells(book))
        ours = read_notebook(NOTEBOOKS / f"{lab.name}.ipynb")
        assert [(c.id, c.source) for c in book.cells] == [(c.id, c.source) for c in ours.cells]


def bodies(book):
    """What each function of a notebook does, without its name, its docstring and its layout."""
    nodes = [node for cell in code_cells(book) for node in ast.walk(ast.parse(cell.source))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {f.name: ast.unparse(f.body[ast.get_docstring(f) is not None :]) for f in functions}


@pytest.mark.parametrize("lab", [lab.name for lab in LABS if not is_solution(lab) and lab.name[:2] != "00"])
def test_no_function_of_a_lab_is_a_solution_of_it(files, lab):
    handed_out = set(bodies(nbformat.reads(files[f"notebooks/{lab}.ipynb"].decode(), as_version=4)).values())
    solved = bodies(read_notebook(SOLUTIONS / f"{lab[:2]}_solutions.ipynb"))
    assert not [name for name in exercises_of(lab) if solved[name] in handed_out]
    assert handed_out and not set(exercises_of(lab)) - set(solved)


def test_the_same_repository_gives_the_same_bytes(files):
    assert student_files(ROOT) == files and list(files) == sorted(files)


def test_what_tells_a_solution_goes_and_hints_stay():
    book = notebook(STUB, "secret = 2", "x = 1")
    book.cells[0].source = f"# Title\n\n{HINT}\n\n{TOLD.format('Solution')}\n{TOLD.format('The answer')}\nText."
    code_cells(book)[2].metadata["tags"] = ["solution"]
    code_cells(book)[1].outputs = [nbformat.v4.new_output("stream", text="4")]
    code_cells(book)[1].execution_count = 7
    code_cells(book)[1].metadata["execution"] = {"iopub.status.busy": "2024-01-01"}
    result = student_notebook(book)
    text = notebook_bytes(result).decode()
    assert HINT.split("\n")[1] in text and "Text." in text and "parameters" in text
    assert "2 * x" not in text and "secret" not in text and "stream" not in text and "iopub" not in text
    assert len(result.cells) == 4 and len(book.cells) == 5, "the lab itself is changed"


def test_a_filled_stub_is_not_handed_out():
    require_untouched(notebook(STUB), "09_x", ["double"])
    for filled in ("def double(x):\n    return 2 * x", "x = 1"):
        with pytest.raises(LabError, match="09_x: double is no untouched stub"):
            require_untouched(notebook(filled), "09_x", ["double"])


@pytest.mark.parametrize("lab", [lab.name for lab in LABS if not is_solution(lab) and lab.name[:2] != "00"])
def test_our_stubs_are_untouched(lab):
    require_untouched(read_notebook(NOTEBOOKS / f"{lab}.ipynb"), lab, list(exercises_of(lab)))


def test_the_makefile_has_the_targets_of_a_student(files, tmp_path):
    (tmp_path / "Makefile").write_bytes(files["Makefile"])
    listed = subprocess.run(["make", "help"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make (\S+)", listed, re.MULTILINE) == [
        *("help", "setup", "run-all", "lab", "report", "audit", "model", "clean")
    ]
    assert "test" not in re.findall(r"^[a-z-]+(?=:)", files["Makefile"].decode(), re.MULTILINE)


def test_blocks_of_a_makefile_are_kept_or_left_out_as_a_whole():
    text = (
        "# make test\nX := 1\n\nlab: $(READY)  ## open\n\t$(PY) lab\n\ntest: $(READY)\n\tpytest\n\nclean:\n\trm -rf x\n"
    )
    assert student_makefile(text) == "X := 1\n\nlab: $(READY)  ## open\n\t$(PY) lab\n\nclean:\n\trm -rf x\n"


def test_a_folder_with_other_files_is_not_overwritten(tmp_path):
    write_edition(tmp_path, {"a/b.txt": b"1", "c.txt": b"2"}, fresh=False)
    write_edition(tmp_path, {"a/b.txt": b"3", "c.txt": b"2"}, fresh=False)
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"3"
    (tmp_path / "mine.ipynb").write_text("work")
    with pytest.raises(LabError, match=r"mine\.ipynb, which is not of the edition"):
        write_edition(tmp_path, {"a/b.txt": b"3", "c.txt": b"2"}, fresh=False)
    write_edition(tmp_path, {"c.txt": b"2"}, fresh=True)
    assert [path.name for path in tmp_path.iterdir()] == ["c.txt"]


def test_teachers_notes_and_hidden_files_stay_here(tmp_path):
    for name in ("docs/teacher-notes.md", "docs/install.md", "docs/.draft.md", "docs/__pycache__/x.pyc"):
        write(tmp_path / "x.ipynb", notebook())
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [path.name for path in student._files(tmp_path / "docs")] == ["install.md"]


@pytest.mark.slow
@pytest.mark.parametrize("lab", ["00_start_here", "01_verifier"])
def test_an_untouched_lab_runs_in_the_edition_alone(files, tmp_path, lab):
    write_edition(tmp_path, files, fresh=False)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LABS_", "PYTEST"))} | {"PYTHONPATH": ""}
    command = [sys.executable, "-m", "labs_lib.tools.run_all", lab]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    said = outputs_text(tmp_path / "outputs" / "tiny" / "notebooks" / f"{lab}.ipynb")
    expected = list(exercises_of(lab)) if lab != "00_start_here" else ["largest_operand"]
    assert re.findall(r"^○ not attempted: (\w+)", said, re.MULTILINE) == expected
