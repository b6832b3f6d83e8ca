"""A second process beside a lab: begun only where it helps, ended with its parent, and resumed to the same bits."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
from test_office_branches import SMALL, patch_small

from labs_lib import beside, office_branches
from labs_lib.beside import INTERRUPTED, main, train_beside
from labs_lib.branch_runs import branch_folder, weights_file
from labs_lib.checkpoint import latest_checkpoint, load_checkpoint
from labs_lib.config import load_profile
from labs_lib.cores import THREADS_VARIABLE
from labs_lib.errors import LabError
from labs_lib.office_branches import BASE, SFT, ensure_office, office_identity, office_protocol, role_source
from labs_lib.paths import OUTPUTS_VARIABLE, ROOT, outputs_root
from labs_lib.training.run import CONTINUOUS
from labs_lib.training.supervised import SupervisedTrainer

PROFILE = load_profile("tiny")
COMMAND = [sys.executable, "-m", "labs_lib.beside"]


@pytest.fixture(autouse=True)
def outputs(tmp_path, monkeypatch):
    """An empty outputs folder, and two cores."""
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(beside, "side_by_side", lambda: 2)
    return tmp_path


@pytest.fixture
def begun(monkeypatch):
    """The processes that would have been started: (command, keywords) of each."""
    made = []
    monkeypatch.setattr(beside, "_processes", [])
    monkeypatch.setattr(beside.subprocess, "Popen", lambda command, **keywords: made.append((command, keywords)))
    return made


# --- When it is begun ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2])
def test_an_unknown_branch_is_refused_before_anything_starts(begun, monkeypatch, cores):
    monkeypatch.setattr(beside, "side_by_side", lambda: cores)
    with pytest.raises(LabError, match="'ppo-kl'.*sft-office, judge, ppo, judge-courtesy"):
        train_beside(PROFILE, [SFT, "ppo-kl"])
    assert begun == []


def test_the_command_carries_profile_seed_and_names(begun):
    assert train_beside(replace(PROFILE, seed=51), [SFT, "judge"])
    ((command, keywords),) = begun
    assert command == [*COMMAND, "tiny", "51", "1.0", SFT, "judge"]
    assert keywords["stdin"] == subprocess.PIPE and keywords["cwd"] == ROOT


@pytest.mark.parametrize(
    ("changes", "cores", "share"),
    [
        ({}, 1, 1),
        ({"threads": 2}, 4, 2),
        ({"threads": 0}, 4, 2),
        ({"threads": 0}, 2, 1),
        ({"device": "cuda"}, 4, 1),
    ],
    ids=["one core", "two threads", "all threads", "another lab on the second core", "cuda"],
)
def test_nothing_is_started_where_it_would_compete(begun, outputs, monkeypatch, changes, cores, share):
    monkeypatch.setattr(beside, "side_by_side", lambda: cores)
    monkeypatch.setenv(THREADS_VARIABLE, str(share))  # of a profile that leaves them open
    assert not train_beside(replace(PROFILE, **changes), [SFT])
    assert begun == [] and list(outputs.iterdir()) == []


def test_the_child_trains_the_names_in_order_and_shows_nothing_that_it_finds(monkeypatch):
    trained = []
    monkeypatch.setattr(beside, "_stop_with_parent", lambda: None)
    monkeypatch.setattr(beside, "start", lambda *given: given)
    monkeypatch.setattr(office_branches, "ensure_office", lambda *given, **named: trained.append((given, named)))
    assert main("tiny", "51", "0.25", SFT, "judge") == 0
    assert trained == [((("tiny", 51, 0.25), name), {"show_complete": False}) for name in (SFT, "judge")]


# --- How it ends -----------------------------------------------------------------------------------------------

PARENT_STOPS_IN = 3  # of four updates, and only 2 and 4 would have been saved


def forked_child(monkeypatch) -> int:
    """The exit status of `main` on a small base, whose parent closes its stdin during update `PARENT_STOPS_IN`."""
    (stdin, parents_end), (in_that_step, childs_end) = os.pipe(), os.pipe()

    class Watched(SupervisedTrainer):
        def advance(self):
            if self.step + 1 == PARENT_STOPS_IN:
                os.write(childs_end, b".")
                while threading.active_count() > 1:  # until the thread that waits for the parent's end has acted
                    time.sleep(0.01)
            super().advance()

    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(parents_end)
            os.close(in_that_step)
            sys.stdin = os.fdopen(stdin)
            monkeypatch.setattr(beside, "start", lambda *given: SMALL)
            monkeypatch.setattr(office_branches, "SupervisedTrainer", Watched)
            status = main("tiny", "48", "1", SFT)
        except KeyboardInterrupt:
            status = INTERRUPTED
        finally:
            os._exit(status)
    os.close(childs_end)  # so that a child that ends early ends the wait, too
    assert os.read(in_that_step, 1) == b"."
    os.close(parents_end)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def newest_step(profile):
    return load_checkpoint(latest_checkpoint(branch_folder(profile, SFT) / CONTINUOUS)).step


def test_who_is_stopped_and_resumed_ends_in_the_uninterrupted_runs_bits(tmp_path, monkeypatch):
    patch_small(monkeypatch)
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "uninterrupted"))
    whole = ensure_office(SMALL, SFT)
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "stopped"))
    assert (forked_child(monkeypatch), newest_step(SMALL)) == (INTERRUPTED, PARENT_STOPS_IN)
    resumed = ensure_office(SMALL, SFT)
    assert (resumed.state_sha256, resumed.fingerprint) == (whole.state_sha256, whole.fingerprint)
    assert resumed.weights.read_bytes() == whole.weights.read_bytes()


def deaf():
    """Never learns that the parent has ended."""


def abrupt():
    """Ends with the parent at once, in the middle of a step."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(INTERRUPTED)), daemon=True).start()


@pytest.mark.parametrize(("mutant", "ending"), [(deaf, (0, 4)), (abrupt, (INTERRUPTED, 2))], ids=["deaf", "abrupt"])
def test_a_child_that_goes_on_or_loses_its_step_is_noticed(monkeypatch, mutant, ending):
    patch_small(monkeypatch)
    monkeypatch.setattr(beside, "_stop_with_parent", mutant)
    assert (forked_child(monkeypatch), newest_step(SMALL)) == ending


def ignore_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_a_child_whose_parent_is_gone_does_not_begin():
    """Not even where Ctrl-C is ignored, which all children of a script's background inherit."""
    command, nowhere = [*COMMAND, "tiny", "48", "1.0", SFT], subprocess.DEVNULL
    assert subprocess.run(command, cwd=ROOT, stdin=nowhere, preexec_fn=ignore_ctrl_c).returncode == INTERRUPTED
    assert not weights_file(PROFILE, SFT).exists()


KILLED_PARENT = f"""
import os, signal, sys
from types import SimpleNamespace
sys.modules["labs_lib.office_branches"] = SimpleNamespace(office_protocol=lambda profile: [{SFT!r}])  # needs no torch
from labs_lib import beside
from labs_lib.config import load_profile
beside.side_by_side = lambda: 2
beside.train_beside(load_profile("tiny"), [{SFT!r}])
print(beside._processes[0].pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def test_a_child_ends_with_a_killed_parent():
    parent = subprocess.run([sys.executable, "-c", KILLED_PARENT], cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.returncode == -signal.SIGKILL
    wait_for(lambda: has_ended(int(parent.stdout)))
    assert not weights_file(PROFILE, SFT).exists()  # it did not end because it was done


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- The real child --------------------------------------------------------------------------------------------


@pytest.fixture
def real_child(monkeypatch):
    """A process that trains the real SFT actor."""
    monkeypatch.setattr(beside, "_processes", [])
    assert train_beside(PROFILE, [SFT])
    (process,) = beside._processes
    yield process
    process.kill()
    process.communicate()


def own_identity():
    """What this process asks of a state before it continues it."""
    base = role_source(PROFILE, BASE)
    return office_identity(PROFILE, office_protocol(PROFILE)[SFT], base.actor(), base, None)


@pytest.mark.slow
def test_a_child_holds_its_branch_and_leaves_it_to_be_continued(real_child):
    folder = branch_folder(PROFILE, SFT)
    wait_for(lambda: real_child.poll() is not None or latest_checkpoint(folder / CONTINUOUS))
    with open(folder / ".lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.getpgid(real_child.pid) != os.getpgrp()  # a kernel that ends kills its group
    real_child.stdin.close()
    assert real_child.wait() == INTERRUPTED
    state = load_checkpoint(latest_checkpoint(folder / CONTINUOUS), own_identity())
    assert 21 <= state.step < 42 and not weights_file(PROFILE, SFT).exists()  # an epoch has 21 updates
    assert b"Traceback" not in (outputs_root(PROFILE.name) / "beside.log").read_bytes()
