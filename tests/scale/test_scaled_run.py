"""A run by TRL in several processes: started, followed, read back, and refused where it is not what it should be."""

import json
import sys
from dataclasses import replace

import pytest

from labs_lib.branches import policy_source
from labs_lib.config import load_profile
from labs_lib.errors import BaseModelError, LabError, VerificationError
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.models.locations import WEIGHTS
from labs_lib.scale import launch
from labs_lib.scale.launch import last_words, run_job
from labs_lib.scale.run import groups_of, read_rollouts, require_whole_groups, rollout_counts
from labs_lib.scale.start import export_policy, read_policy
from labs_lib.scale.worker import POLICY, PROGRESS, answers_file
from labs_lib.storage import read_json

TINY = load_profile("tiny")


# --- The start -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    export_policy(TINY, policy_source(TINY, "base"), folder)
    return folder


def test_an_exported_policy_is_the_policy_with_its_own_tokenizer(start_folder):
    base, read = policy_source(TINY, "base").load(), read_policy(TINY, start_folder)
    assert policy_fingerprint(read.model) == policy_fingerprint(base.model)
    assert read.tokenizer.backend_tokenizer.to_str() == base.tokenizer.backend_tokenizer.to_str()
    assert read.tokenizer.chat_template == base.tokenizer.chat_template
    assert not (start_folder / "README.md").exists()


def test_a_policy_of_another_shape_is_not_adopted(start_folder):
    other = replace(TINY, base=replace(TINY.base, parameters=1))
    with pytest.raises(BaseModelError, match="unique parameters"):
        read_policy(other, start_folder)


def test_what_is_read_back_must_be_what_was_written(tmp_path, monkeypatch):
    from labs_lib.scale import start

    monkeypatch.setattr(start, "untied_state_dict", lambda model: {n: t * 0 for n, t in _untied(model).items()})
    with pytest.raises(VerificationError, match="does not hold the policy"):
        export_policy(TINY, policy_source(TINY, "base"), tmp_path)


def _untied(model):
    from labs_lib.checkpoint import untied_state_dict

    return untied_state_dict(model)


# --- What was sampled -------------------------------------------------------------------------------------


def row(problem, reward=0, ids=(1, 2)):
    return {"update": 0, "problem": problem, "ids": list(ids), "reason": "", "reward": reward}


def written(folder, *processes):
    for number, rollouts in enumerate(processes):
        answers_file(folder, number).write_text("".join(json.dumps(rows) + "\n" for rows in rollouts))
    return folder


def test_rollouts_of_all_processes_are_put_together_and_counted(tmp_path):
    first = [[row("a", 1), row("a"), row("b"), row("b")], [row("c"), row("c"), row("a"), row("a")]]
    second = [[row("d", 1), row("d", 1)], [row("e", ids=(1, 2, 3)), row("e", 1)]]
    rollouts = read_rollouts(written(tmp_path, first, second), 2)
    require_whole_groups(rollouts, 2)
    assert [len(rows) for rows in rollouts] == [6, 6]
    assert rollout_counts(rollouts, 2) == {
        "rollouts": 2,
        "answers": 12,
        "tokens_generated": 25,
        "problems": 5,
        "mixed_groups": 2 / 6,
        "rewards": [3 / 6, 1 / 6],
    }


def test_a_group_that_was_cut_and_processes_out_of_step_are_refused(tmp_path):
    cut = [[row("a")] * 2, [row("a"), row("b"), row("b"), row("a")]]
    with pytest.raises(VerificationError, match="Rollout 2 has a group of several problems"):
        require_whole_groups(read_rollouts(written(tmp_path, cut), 1), 2)
    with pytest.raises(VerificationError, match="made 1, 2 rollouts each"):
        read_rollouts(written(tmp_path, [[row("a")] * 2], [[row("a")] * 2] * 2), 2)
    assert [len(group) for group in groups_of([row("a")] * 5, 2)] == [2, 2, 1]


# --- Starting ------------------------------------------------------------------------------------------------


def test_the_last_words_are_our_sentence_or_the_last_error(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("start\nerror: held out\nTraceback\nRuntimeError: x\n")
    assert last_words(log) == "error: held out"
    log.write_text("[rank1]: Traceback\n[rank1]: ValueError: too few\nsignal 15\n")
    assert last_words(log) == "ValueError: too few"
    log.write_text("only this\n\n")
    assert last_words(log) == "only this"
    log.write_text("")
    assert last_words(log) == "no message"


def test_a_launcher_that_fails_is_a_sentence_and_its_bar_ends(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(launch, "require_engine", lambda: None)
    said = "import sys; print('RuntimeError: no port'); sys.exit(3)"
    monkeypatch.setattr(launch, "launch_command", lambda *_: [sys.executable, "-c", said])
    with pytest.raises(LabError, match="accelerate failed: RuntimeError: no port"):
        run_job(TINY, tmp_path / "run", tmp_path, 2, 6)
    assert capsys.readouterr().out.rstrip("\n").endswith("0/6")


def test_a_stopped_parent_leaves_no_process(tmp_path, monkeypatch):
    class Interrupted(Exception):
        pass

    def interrupt(_):
        raise Interrupted

    monkeypatch.setattr(launch, "require_engine", lambda: None)
    monkeypatch.setattr(launch, "launch_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(launch.time, "sleep", interrupt)
    started = []
    popen = launch.subprocess.Popen
    monkeypatch.setattr(launch.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with pytest.raises(Interrupted):
        run_job(TINY, tmp_path / "run", tmp_path, 2, 6)
    assert started[0].returncode is not None


@pytest.mark.engine
@pytest.mark.slow
def test_two_processes_train_to_the_end(start_folder, tmp_path, capsys):
    """Two iterations of two updates: whole groups in each process, other answers in each, one policy that moved."""
    changes = {"max_steps": 4, "lr_scheduler_type": "constant", "lr_scheduler_kwargs": None, "max_completion_length": 8}
    run_job(TINY, tmp_path, start_folder, 2, 4, changes=changes)
    assert (tmp_path / PROGRESS).read_text() == "4"
    rollouts = read_rollouts(tmp_path, 2)
    require_whole_groups(rollouts, TINY.grpo.group_size)
    assert [len(rows) for rows in rollouts] == [16, 16]
    assert len({row["problem"] for rows in rollouts for row in rows}) == 8
    assert [rows[0]["update"] for rows in rollouts] == [0, 2]
    trained = read_policy(TINY, tmp_path / POLICY).model
    assert policy_fingerprint(trained) != policy_fingerprint(read_policy(TINY, start_folder).model)
    assert read_json(tmp_path / "seconds.json")["training"] > 0
    assert (tmp_path / POLICY / WEIGHTS).exists() and capsys.readouterr().out.rstrip("\n").endswith("4/4")


@pytest.mark.engine
@pytest.mark.slow
def test_a_mistake_in_a_process_is_one_sentence(start_folder, tmp_path):
    with pytest.raises(LabError, match="error: unknown TRL key num_generation; did you mean num_generations"):
        run_job(TINY, tmp_path, start_folder, 2, 4, changes={"num_generation": 4})
