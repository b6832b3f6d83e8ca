"""Labs in JupyterLab, as `make lab` starts it, in a headless browser: run from the menu and looked at.

Screenshots are kept in outputs/browser. `walk.py` beside this file takes them of every lab, for people to look at.
"""

import shutil
import subprocess
import sys

import lab_server
import psutil
import pytest
from chromium import VARIABLE, NoBrowser, chromium, find_chromium, is_required
from lab_page import open_lab
from lab_server import end, jupyter_lab, left_running
from notebook_files import notebook, write
from page_faults import committed_figures, faults

from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.tools.notebooks import default_parameters, read_notebook

pytestmark = pytest.mark.slow

LAB = "02_group_advantages"
TRAINING_LAB = "04_sft_and_reward_model"
BUDGET = 0.05  # trains every model of the lab, for about half a minute in all
FAULTY = "99_faulty"

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAAAAABX3VL4AAAADklEQVR4nGNgYGBgYAAAAAYAAXKCmeoAAAAASUVORK5CYII="
BARE_FIGURE = f'<img src="data:image/png;base64,{DOT}">'
MISSING_FIGURE = '<img src="missing.png" alt="A figure that is not there at all.">'
# A cell for every fault that a page can show, and a mark of it in what must be found.
FAULTY_CELLS = {
    "import sys\nprint('a warning', file=sys.stderr)": "it has text on stderr: a warning",
    f"from IPython.display import HTML\nHTML({MISSING_FIGURE!r})": "a figure does not load: A figure that is not there",
    f"HTML({BARE_FIGURE!r})": "a figure has no alt text that says what it shows, only 'Image'",  # JupyterLab's own
    "from labs_lib.progress import ProgressBar\nwith ProgressBar('half', 2) as bar:\n    bar.advance()": (
        "a progress bar stopped at 50%"
    ),
    "HTML('<table style=\"width: 5000px\"><td>a table</table>')": "it does not fit into the window: table",
    "raise ValueError('on purpose')": "it failed: ValueError: on purpose",
    "print('never run')": "it was not executed",
}


@pytest.fixture(scope="module")
def browser():
    try:
        with chromium() as found:
            yield found
    except NoBrowser as reason:
        give_up(reason)


def give_up(reason):
    (pytest.fail if is_required() else pytest.skip)(f"no lab was looked at: {reason}")


@pytest.fixture(scope="module")
def pictures():
    """The folder in which screenshots are kept, those of the last run only."""
    folder = ROOT / "outputs" / "browser"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A copy of notebooks/, and a notebook with faults beside the labs."""
    folder = tmp_path_factory.mktemp("browser") / "notebooks"
    shutil.copytree(NOTEBOOKS, folder)
    faulty = notebook(*FAULTY_CELLS)
    faulty.cells[0].source = r"# A lab with $\frac{1}$"
    write(folder / f"{FAULTY}.ipynb", faulty)
    return folder


@pytest.fixture(scope="module")
def address(browser, copies, pictures):
    scratch = copies.parent
    try:
        with jupyter_lab(copies, scratch) as found:
            yield found
    finally:
        shutil.copy(scratch / "server.log", pictures)
    assert left_running(scratch) == []


# --- Labs --------------------------------------------------------------------------------------------


def test_a_lab_from_the_menu(browser, address, copies, pictures):
    with open_lab(browser, address, copies / f"{LAB}.ipynb", pictures) as lab:
        figures = committed_figures(lab.book)
        lab.wait_for_the_end(figures)
        assert faults(lab.shown(), figures, live=False) == [], "the outputs that are committed"
        lab.open_hint()
        lab.picture(pictures / f"{LAB}-hint.png")
        lab.clear()
        lab.run_all()
        lab.picture_of_a_moving_bar(pictures / f"{LAB}-running.png")
        lab.wait_for_the_end(figures)
        lab.move_a_slider()
        lab.pictures_of_all(pictures, LAB)
        assert figures > 0 and faults(lab.shown(), figures, live=True) == []


def test_a_training_lab_from_the_menu_with_a_budget_that_is_typed(browser, address, copies, pictures):
    path = copies / f"{TRAINING_LAB}.ipynb"
    with open_lab(browser, address, path, pictures) as lab:
        figures = committed_figures(lab.book)
        lab.clear()
        lab.type_budget(BUDGET)
        lab.run_all()
        lab.picture_of_a_moving_bar(pictures / f"{TRAINING_LAB}-running.png")
        lab.wait_for_the_end(figures)
        lab.pictures_of_all(pictures, TRAINING_LAB)
        assert figures > 0 and faults(lab.shown(), figures, live=True) == []
        lab.save()
    saved = read_notebook(path)
    assert default_parameters(saved, path.name)["BUDGET"] == BUDGET
    assert "Reduced budget: 5 %" in path.read_text()


def test_the_faults_of_a_page_are_seen(browser, address, copies, pictures):
    with open_lab(browser, address, copies / f"{FAULTY}.ipynb", pictures) as lab:
        lab.clear()
        lab.run_all()
        lab.wait_for_the_end(figures=2)
        lab.pictures_of_all(pictures, FAULTY)
        found = faults(lab.shown(), figures=3, live=True)
    for cell, fault in enumerate(FAULTY_CELLS.values(), start=2):
        assert any(line.startswith(f"cell {cell}: ") and fault in line for line in found), (fault, found)
    assert any("MathJax" in line and line.startswith("cell 0: ") for line in found), found
    assert "it shows 2 figures of 3" in found and "no progress bar was seen to move" in found
    assert len(found) == len(FAULTY_CELLS) + 3, "\n".join(found)


# --- The browser -------------------------------------------------------------------------------------


def test_without_a_browser_nothing_is_seen_and_ci_fails(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoBrowser, match="apt-get install chromium") as missing:
        find_chromium()
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no lab was looked at: there is no Chromium"):
        give_up(missing.value)
    monkeypatch.setenv(VARIABLE, "required")
    with pytest.raises(pytest.fail.Exception, match="no lab was looked at: there is no Chromium"):
        give_up(missing.value)


def test_ci_requires_the_browser():
    assert f"export {VARIABLE}=required\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


# --- The server --------------------------------------------------------------------------------------


def test_a_server_that_does_not_start_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="did not start(.|\n)*nowhere"), jupyter_lab(tmp_path / "nowhere", tmp_path):
        pass
    assert left_running(tmp_path) == []


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # one that its new parent has not yet heard of
    except psutil.NoSuchProcess:
        return False


def test_what_does_not_end_by_itself_is_ended(monkeypatch):
    monkeypatch.setattr(lab_server, "STOP_TIMEOUT", 1)
    command = [sys.executable, "-c", PARENT, STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "up\n"
        started = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children()]
        end(parent)
    assert len(started) == 2 and not any(map(is_alive, started))
