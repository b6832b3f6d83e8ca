"""`make test` must fail on a committed output that no run produced, and hide only what follows `≈`."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib import util
from types import SimpleNamespace

import nbformat
import pytest
from notebook_files import notebook, write

from labs_lib.paths import OUTPUTS_VARIABLE, ROOT
from labs_lib.tools.execute import execute
from labs_lib.tools.notebooks import code_cells, committed_problems, read_notebook, with_outputs_of, write_notebook

FIGURE = """from matplotlib import pyplot
from labs_lib.figures.style import save_figure
figure, axes = pyplot.subplots(figsize=(1, 1))
save_figure(figure, "00-empty", "An empty pair of axes without any line.")"""
PROGRESS = """from labs_lib.progress import progress
for _ in progress(range(3), "counting"):
    pass"""
STDERR = "import os, sys\nprint('process', os.getpid(), file=sys.stderr)\nprint('done')"
# A thread of the kernel reads the descriptor and has to come to it before the cell ends.
DESCRIPTOR = "import os, time\n_ = os.write(1, b'from the descriptor')\ntime.sleep(1)"


# name: (source of the cell, edit of its committed output or None, whether the comparison must fail)
CASES = {
    "untouched": ("print('reward 1')", None, False),
    "a digit": ("print('reward 1')", ("reward 1", "reward 2"), True),
    "a space": ("print('reward 1')", ("reward 1", "reward  1"), True),
    "a removed line": ("print('a')\nprint('b')", ("b\n", ""), True),
    "a value": ("2 + 2", ("4", "5"), True),
    "a dict's value": ("{'reward': 1}", ("1", "0"), True),
    "a time without the sign": ("print('took 1.5 s')", ("1.5 s", "2.5 s"), True),
    "a number behind the sign": ("print('took ≈1.5 s')", ("≈1.5", "≈12.25"), False),
    "a small number behind the sign": ("print('loss ≈1.2e-06, ok')", ("≈1.2e-06", "≈-9e+10"), False),
    "a thousand behind the sign": ("print('≈1,234.5 tokens')", ("≈1,234.5", "≈999"), False),
    "the unit behind the number": ("print('took ≈1.5 s')", ("≈1.5 s", "≈1.5 ms"), True),
    "a second number": ("print('≈1.5 of 20')", ("of 20", "of 21"), True),
    "a number after the sign and a space": ("print('≈ 1.5')", ("1.5", "1.6"), True),
    "the sign itself": ("print('took ≈1.5 s')", ("≈1.5", "1.5"), True),
    "nan where a number was": ("print('loss ≈0.5')", ("≈0.5", "≈nan"), True),
    "text behind the sign": ("print('≈half')", ("half", "third"), True),
    "the text of a figure": (FIGURE, ("without any line", "with many lines"), True),
    "the pixels of a figure": (FIGURE, ("base64,iVBOR", "base64,iVBOX"), False),
    "a progress bar": (PROGRESS, None, False),
    "progress that stopped early": (PROGRESS, ("3/3", "2/3"), True),
    "stderr": (STDERR, None, False),
    "hidden by a semicolon": ("3 + 3;", None, False),
    "a file descriptor": (DESCRIPTOR, None, False),
}


def pytest_run(arguments, outputs, **environment):
    """Compare notebooks of one folder, which stands for the repository: tests outside of it have no names."""
    rootdir = str(arguments[0].parent)
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", "pyproject.toml", "--rootdir", rootdir]
    return subprocess.run(
        [*command, "--nbval", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, OUTPUTS_VARIABLE: str(outputs), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def failed_cells(report):
    """Numbers of the code cells that failed, from 0."""
    cases = ElementTree.parse(report).iter("testcase")
    return {int(case.get("name").removeprefix("Cell ")) for case in cases if len(case)}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """A notebook with all cases, executed, refreshed, its outputs edited: its folder, and what is in it."""
    folder = tmp_path_factory.mktemp("nbval")
    path = write(folder / "00_cases.ipynb", notebook(*(source for source, _, _ in CASES.values())))
    executed = folder / "executed.ipynb"
    before = os.environ.copy()
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # as outside of a test: ipykernel heeds it
    os.environ.update({"PYTHONPATH": str(ROOT), OUTPUTS_VARIABLE: str(folder / "run")})
    try:
        assert execute(path, executed, {}, str(folder), 120) is None
    finally:
        os.environ.clear()
        os.environ.update(before)
    refreshed = with_outputs_of(read_notebook(path), read_notebook(executed), "00_cases")
    for cell, (_, edit, _) in zip(code_cells(refreshed)[1:], CASES.values(), strict=True):
        if edit:
            cell.outputs = nbformat.from_dict([_edit(output, *edit) for output in cell.outputs])
    write_notebook(path, refreshed)
    return folder, refreshed


@pytest.fixture(scope="module", params=["0", "2"], ids=["one process", "two workers"])
def comparison(cases, request):
    """Compare that notebook with a new execution: the cells that failed, the notebook, the folder written to."""
    folder, refreshed = cases
    outputs, report = folder / f"outputs-{request.param}", folder / f"report-{request.param}.xml"
    result = pytest_run([folder / "00_cases.ipynb", "-n", request.param, "--junitxml", report], outputs)
    assert result.returncode == 1, result.stdout + result.stderr
    return failed_cells(report), refreshed, outputs


def _edit(value, old, new):
    if isinstance(value, dict):
        return {key: _edit(item, old, new) for key, item in value.items()}
    return value.replace(old, new) if isinstance(value, str) else value


@pytest.mark.parametrize(("number", "name"), list(enumerate(CASES, start=1)), ids=list(CASES))
def test_comparison(comparison, number, name):
    failed, refreshed, _ = comparison
    _, edit, must_fail = CASES[name]
    if edit:
        assert edit[1] in str(code_cells(refreshed)[number].outputs) or edit[1] == ""
    assert (number in failed) is must_fail


def test_a_refreshed_notebook_is_fit_to_be_committed(cases):
    assert committed_problems(cases[1]) == []


def test_comparing_writes_figures_to_the_test_outputs_only(comparison):
    assert (comparison[2] / "figures" / "00-empty.png").is_file()


def committed(path, *sources):
    """A notebook that claims to have been executed, with the stream `x` from its last cell."""
    book = notebook(*sources)
    for count, cell in enumerate(code_cells(book), start=1):
        cell.execution_count = count
    return write(path, book)


def test_a_dead_kernel_fails_at_once_and_by_name(tmp_path):
    path = committed(tmp_path / "00_dead.ipynb", "import os; os._exit(1)", "x = 1")
    result = pytest_run([path], tmp_path / "outputs")
    assert result.returncode == 1
    assert "the kernel died while it ran this cell" in result.stdout
    assert "2 failed, 1 passed" in result.stdout


def test_a_cell_that_does_not_end_is_interrupted_and_fails(tmp_path):
    path = committed(tmp_path / "00_slow.ipynb", "import time; time.sleep(600)")
    result = pytest_run([path, "--nbval-cell-timeout=2"], tmp_path / "outputs")
    assert result.returncode == 1
    assert "Timeout of 2 seconds exceeded" in result.stdout


def test_states_of_an_earlier_run_are_never_reused(tmp_path):
    path = committed(tmp_path / "00_x.ipynb", "x = 1")
    (tmp_path / "outputs" / "tiny").mkdir(parents=True)
    result = pytest_run([path], tmp_path / "outputs")
    assert result.returncode != 0
    assert "not empty" in result.stdout + result.stderr


def test_states_are_kept_where_that_is_asked_for(tmp_path):
    state = tmp_path / "outputs" / "tiny" / "state"
    state.parent.mkdir(parents=True)
    state.touch()
    show = "from labs_lib.paths import outputs_base\nassert (outputs_base() / 'tiny' / 'state').exists()"
    result = pytest_run([committed(tmp_path / "00_x.ipynb", show), "--keep-outputs"], tmp_path / "outputs")
    assert result.returncode == 0 and "2 passed" in result.stdout
    assert state.exists()


def test_without_the_variable_the_test_outputs_are_emptied_first(tmp_path, monkeypatch, request):
    conftest = _load_conftest()
    monkeypatch.delenv(OUTPUTS_VARIABLE, raising=False)
    monkeypatch.setattr(conftest, "ROOT", tmp_path)
    monkeypatch.setattr(conftest, "outputs_base", lambda: tmp_path / conftest.TEST_OUTPUTS)
    state = tmp_path / conftest.TEST_OUTPUTS / "tiny" / "state.safetensors"
    students = tmp_path / "outputs" / "tiny" / "state.safetensors"
    for path in (state, students):
        path.parent.mkdir(parents=True)
        path.touch()
    conftest._clean_outputs(request.config)
    assert not state.exists()
    assert students.exists()
    monkeypatch.delenv(OUTPUTS_VARIABLE)
    with pytest.raises(pytest.UsageError, match="Another run"):
        conftest._clean_outputs(request.config)


def _load_conftest():
    spec = util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- Side by side ------------------------------------------------------------------------------------

NAMES = ("00_start_here", "03_grpo_training", "04_sft_and_reward_model")
STATE = (
    "from labs_lib.paths import outputs_root\nfolder = outputs_root(PROFILE)\nfolder.mkdir(parents=True, exist_ok=True)"
)


def test_notebooks_side_by_side_keep_their_cells_together_and_name_what_failed(tmp_path):
    cells = ["n = 1", "n += 1", "assert n == 2; n += 1", "assert n == 3; n += 1", "assert n == 4"]
    paths = [committed(tmp_path / f"0{number}_x.ipynb", STATE, *cells) for number in range(4)]
    committed(paths[2], STATE, *cells, "(folder / 'state').touch()", "assert n == 5, 'an invariant'", "n += 1")
    result = pytest_run([*paths, "-n", "2"], tmp_path / "outputs")  # -n alone deals out single cells
    assert result.returncode == 1
    assert "1 failed, 30 passed" in result.stdout
    assert re.search(r"^FAILED .*02_x\.ipynb::Cell 8", result.stdout, re.MULTILINE)
    assert "Cell 8: Cell execution caused an exception" in result.stdout


def test_a_worker_that_dies_is_a_failure_and_names_its_cell(tmp_path):
    kill_worker = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"
    paths = [
        committed(tmp_path / "00_dies.ipynb", "x = 1", kill_worker, "x = 2"),
        committed(tmp_path / "01_x.ipynb", "1;"),
    ]
    result = pytest_run([*paths, "-n", "2", "--max-worker-restart", "0"], tmp_path / "outputs")
    assert result.returncode == 1
    assert re.search(r"crashed while running '.*00_dies\.ipynb::Cell 2'", result.stdout)


def test_a_worker_leaves_the_outputs_to_the_process_that_started_it(tmp_path, monkeypatch):
    conftest = _load_conftest()
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(conftest, "_patch_nbval", lambda: None)
    (tmp_path / "state").touch()  # of another worker
    option = SimpleNamespace(
        nbval_lax=False, nbval_sanitize_with=None, nbval_cell_timeout=2000, nbval_kernel_startup_timeout=60
    )
    conftest._configure_nbval(SimpleNamespace(option=option, workerinput={}))
    with pytest.raises(pytest.UsageError, match="not empty"):
        conftest._configure_nbval(SimpleNamespace(option=option))


def test_the_longest_labs_are_compared_first_and_a_need_before_its_users():
    lines = [f"{name}.ipynb::Cell {cell}" for name in ("solutions/03_solutions", "04_x", *NAMES) for cell in (1, 0)]
    items = [SimpleNamespace(path=ROOT / "notebooks" / line.partition("::")[0], line=line) for line in lines]
    _load_conftest()._longest_notebooks_first(items)
    found = [item.line for item in items]
    assert found[:4] == [f"{name}.ipynb::Cell {cell}" for name in (NAMES[2], NAMES[1]) for cell in (1, 0)]
    assert found[-2:] == ["04_x.ipynb::Cell 1", "04_x.ipynb::Cell 0"]  # no lab of the table
    assert found.index(lines[0]) > found.index(f"{NAMES[1]}.ipynb::Cell 0")


def test_lax_comparison_is_refused(tmp_path):
    path = committed(tmp_path / "00_x.ipynb", "x = 1")
    result = pytest_run([path, "--nbval-lax"], tmp_path / "outputs")
    assert result.returncode != 0
    assert re.search("--nbval-lax compares nothing", result.stdout + result.stderr)


def test_every_rule_of_the_sanitiser_is_read(monkeypatch):
    from nbval.plugin import get_sanitize_patterns

    text = (ROOT / "tests" / "nbval_sanitize.cfg").read_text(encoding="ascii")
    assert len(get_sanitize_patterns(text)) == text.count("\nregex:") == text.count("\nreplace:") == 2
