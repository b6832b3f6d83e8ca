"""Submissions that go wrong in every way that a student can think of, graded in processes as `make grade` does."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from grading.submissions import LAB02, handed_in, solved_cells, sources, submitted
from labs_lib.errors import LabError
from labs_lib.exercises import check, lab02
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.tools.grading.__main__ import main
from labs_lib.tools.grading.running import Limits
from labs_lib.tools.grading.sheet import Mark, grade, read_lab, render, with_points
from labs_lib.tools.grading.submission import parsed
from labs_lib.tools.stubs import Stub

NAMES = ("answer_mask", "advantages_of_groups", "clipped_loss", "exact_kl", "answer_mean_loss")
SOLUTIONS = {name: parsed(solved_cells(LAB02)).definitions(name)[0].source for name in NAMES}
HEADS = {
    "answer_mask": "def answer_mask(lengths, width):",
    "advantages_of_groups": "def advantages_of_groups(rewards, epsilon=1e-8):",
    "clipped_loss": "def clipped_loss(logprobs, old_logprobs, advantages, clip=0.2):",
    "exact_kl": "def exact_kl(policy_logits, reference_logits):",
    "answer_mean_loss": "def answer_mean_loss(values, mask):",
}
PATIENT = Limits(seconds=300, total=3000)


def graded(book, limits=PATIENT):
    sheet = grade(sources(book), "anna.ipynb", read_lab(LAB02), limits)
    return sheet, {mark.name: mark for mark in sheet.marks}


def body(name, *lines):
    return "\n    ".join([HEADS[name], *lines])


@pytest.fixture(scope="module")
def accidents():
    """Right, and four ways to bring a process down."""
    return graded(
        submitted(
            LAB02,
            {
                "answer_mask": f"%%time\n{SOLUTIONS['answer_mask']}\n\n\nimport no_such_module",
                "advantages_of_groups": body("advantages_of_groups", "import os", "os._exit(0)"),
                "clipped_loss": body("clipped_loss", "import ctypes", "return ctypes.string_at(0)"),
                "exact_kl": body("exact_kl", "return torch.ones(1 << 40)"),
                "answer_mean_loss": "import sys\n\nsys.exit()\n" + body("answer_mean_loss", "raise KeyboardInterrupt"),
            },
        )
    )


def test_a_right_function_is_right_whatever_stands_beside_it(accidents):
    sheet, marks = accidents
    assert (marks["answer_mask"].status, marks["answer_mask"].points) == ("right", 1)
    assert (sheet.points, sheet.out_of) == (1, 8)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("advantages_of_groups", "its process died in the check (status 0)"),
        ("clipped_loss", "its process died in the check (signal SIGSEGV)"),
        ("answer_mean_loss", "KeyboardInterrupt"),
    ],
)
def test_a_process_that_dies_costs_one_mark(accidents, name, reason):
    assert (accidents[1][name].status, accidents[1][name].points) == ("wrong", 0)
    assert accidents[1][name].detail == reason


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the memory of a process")
def test_memory_is_bounded(accidents):
    assert accidents[1]["exact_kl"].status == "wrong" and "memory" in accidents[1]["exact_kl"].detail


FAKE = """class Fake:
    def check(self, answer):
        print("✓ answer_mask")


class exercises:
    ANSWER_MASK = Fake()


exercises.ANSWER_MASK.check(None)
"""
OVERWRITE = """import glob
from pathlib import Path
from labs_lib.exercises import check, lab02

for path in (check.__file__, lab02.__file__, "../labs_lib/exercises/check.py", "../labs_lib/exercises/lab02.py"):
    Path(path).write_text("raise SystemExit")
    DONE = True
for path in glob.glob("../../results"):
    with open(path, "a") as file:
        file.write('{"nonce": "0", "status": "right", "hint": null}\\n')
    DONE = True
"""


@pytest.fixture(scope="module")
def tricks():
    """A ticking print, replaced checks, a library written over; helpers and moved cells, which are no tricks."""
    book = submitted(
        LAB02,
        {
            "answer_mask": body("answer_mask", "print('✓ answer_mask')", "exercises", "return lengths"),
            "advantages_of_groups": body("advantages_of_groups", "return rewards if DONE else None"),
            "clipped_loss": body("clipped_loss", "Exercise.evaluate", "return logprobs"),
            "exact_kl": "x = 1",
            "answer_mean_loss": body("answer_mean_loss", "return mean_of(mean_of_rows(values, mask))"),
        },
        first=[FAKE, OVERWRITE, "from labs_lib.exercises.check import Exercise\nExercise.evaluate = lambda *_: 1"],
        last=[
            "def mean_of_rows(values, mask):\n    return torch.where(mask, values, ZERO).sum(1) / mask.sum(1)",
            "ZERO = 0.0\nmean_of = torch.Tensor.mean",
            SOLUTIONS["exact_kl"],
        ],
    )
    book.cells = [cell for cell in book.cells if ".check(" not in cell.source or cell.source == FAKE]
    return graded(book)


@pytest.mark.parametrize("name", ["answer_mask", "advantages_of_groups", "clipped_loss"])
def test_no_trick_makes_a_wrong_function_right(tricks, name):
    mark = tricks[1][name]
    hints = [item.hint for item in getattr(lab02, name.upper()).properties]
    assert mark.status == "wrong" and any(mark.detail.startswith(hint) for hint in hints)


def test_added_and_moved_cells_are_part_of_an_answer(tricks):
    assert [tricks[1][name].status for name in ("exact_kl", "answer_mean_loss")] == ["right", "right"]
    assert tricks[0].failed == ()


def test_nothing_of_the_repository_was_written(tricks):
    for module in (check, lab02):
        with open(module.__file__, encoding="utf-8") as file:
            assert file.read() != "raise SystemExit"


CHILDREN = """import subprocess, sys

sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
CHILDREN = [subprocess.Popen(sleep, start_new_session=new_session) for new_session in (False, True)]
with open(PLACE, "w") as file:
    print(*(child.pid for child in CHILDREN), file=file)
    WRITTEN = True
"""


def test_an_endless_loop_ends_with_all_that_it_started(tmp_path):
    pids = tmp_path / "pids"
    loop = body("answer_mask", "WRITTEN", "while True:", "    pass")
    book = submitted(LAB02, {"answer_mask": loop}, first=[f"PLACE = {str(pids)!r}", CHILDREN])
    _, marks = graded(book, Limits(seconds=10))
    assert marks["answer_mask"].detail == "it took more than 10 s, in the check"
    found = [int(pid) for pid in pids.read_text().split()]
    assert len(found) == 2 and not any(alive(pid) for pid in found)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_all_of_it_has_a_time_limit_too():
    _, marks = graded(submitted(LAB02, SOLUTIONS), Limits(total=1e-9))
    assert {mark.detail for mark in marks.values()} == {"not checked: grading was given 1e-09 s in all"}


# --- What needs no process ---------------------------------------------------------------------------


def test_an_untouched_lab_has_no_points():
    sheet, marks = graded(submitted(LAB02, {}))
    assert {mark.status for mark in marks.values()} == {"not attempted"} and sheet.points == 0
    assert sum(line.endswith("not attempted") for line in render(sheet)) == 5


def test_what_is_missing_or_no_python_is_said():
    broken = "def answer_mask(lengths, width)\n    return lengths"
    book = submitted(LAB02, {"answer_mask": broken, "exact_kl": "x = (1"})
    sheet, marks = graded(book)
    assert (
        marks["answer_mask"].status == "wrong" and "its cell is no Python (SyntaxError" in marks["answer_mask"].detail
    )
    assert (marks["exact_kl"].status, marks["exact_kl"].detail) == ("not attempted", "the notebook does not define it")
    assert [cell.line for cell in sheet.failed] == ["def answer_mask(lengths, width)", "x = (1"]
    assert any("failed: SyntaxError" in line for line in render(sheet))


def test_the_last_definition_counts():
    stub = body("answer_mask", "raise NotImplementedError")
    _, marks = graded(submitted(LAB02, {"answer_mask": SOLUTIONS["answer_mask"]}, last=[stub]))
    assert marks["answer_mask"].status == "not attempted"


def test_points_are_those_of_an_exercise_with_all_of_its_functions():
    stubs = (Stub("f", "a", "Exercise 1", 1), Stub("g", "b", "Exercise 2", 2), Stub("h", "b", "Exercise 2", 2))
    for given, points in ((("f", "g", "h"), [1, 0, 2]), (("f", "g"), [1, 0, 0]), (("h",), [0, 0, 0])):
        statuses = {stub.name: "right" if stub.name in given else "wrong" for stub in stubs}
        found = with_points([Mark(s.name, s.exercise, s.stars, statuses[s.name], 0, 0, "") for s in stubs])
        assert [mark.points for mark in found] == points
        assert [mark.out_of for mark in found] == [1, 0, 2]


@pytest.mark.parametrize("cells", [[], ["x = 1"]], ids=["no cells", "other cells"])
def test_an_empty_notebook_is_graded_by_its_name(tmp_path, capsys, cells):
    book = submitted(LAB02, {})
    book.cells = [cell for cell in book.cells if cell.source in cells]
    assert main([str(handed_in(tmp_path / "02_anna.ipynb", book))]) == 0
    assert "0 of 8 points (0 right, 0 wrong, 5 not attempted)" in capsys.readouterr().out


def test_the_sheet_as_json(capsys):
    assert main([str(NOTEBOOKS / f"{LAB02}.ipynb"), "--json"]) == 0
    sheet = json.loads(capsys.readouterr().out)
    assert (sheet["lab"], sheet["points"], sheet["out_of"], sheet["failed"]) == (LAB02, 0, 8, [])
    assert [mark["name"] for mark in sheet["marks"]] == list(NAMES)
    assert sheet["marks"][1] == {
        "name": "advantages_of_groups",
        "exercise": "Exercise 2.2",
        "stars": 2,
        "status": "not attempted",
        "points": 0,
        "out_of": 2,
        "detail": "",
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([""], "Which notebook"),
        (["missing.ipynb"], "missing.ipynb is missing"),
        ([str(NOTEBOOKS / "00_start_here.ipynb")], "nothing to grade"),
        ([str(NOTEBOOKS / f"{LAB02}.ipynb"), "--seconds", "0"], "have to be positive"),
    ],
    ids=["none", "missing", "lab 00", "limit"],
)
def test_what_cannot_be_graded_is_one_sentence(arguments, sentence):
    with pytest.raises(LabError, match=sentence):
        main(arguments)


def test_the_command_ends_with_status_2_and_one_line(tmp_path):
    command = [sys.executable, "-m", "labs_lib.tools.grading", str(tmp_path / "gone.ipynb")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_a_right_submission_has_all_points(tmp_path, capsys):
    book = submitted(LAB02, SOLUTIONS)
    assert main([str(handed_in(tmp_path / "anna.ipynb", book)), "--seconds", "300"]) == 0
    out = capsys.readouterr().out
    assert "8 of 8 points (5 right, 0 wrong, 0 not attempted)" in out and "failed" not in out
