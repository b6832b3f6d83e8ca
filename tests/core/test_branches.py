"""Branches: trained in three modes under the learning scope, reloaded equal, refused when anything was swapped."""

import copy
import fcntl
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_model import PROFILE, small_model, tokenizer

from labs_lib import branch_runs, branches, evidence
from labs_lib.branch_runs import branch_folder, branch_seconds, one_at_a_time
from labs_lib.branches import PolicySource, ensure_branch, load_policy, protocol_branches, train_branch
from labs_lib.checkpoint import load_model_weights, save_model_weights
from labs_lib.config import Budget, GroupSizeRuns, Supervised
from labs_lib.errors import (
    BaseModelError,
    EvidenceExistsError,
    IdentityError,
    LabError,
    LearningScopeError,
    VerificationError,
)
from labs_lib.models.base import LoadedBase
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.paths import OUTPUTS_VARIABLE, outputs_root
from labs_lib.progress import WIDTH
from labs_lib.storage import sha256_file
from labs_lib.tasks.stock_arithmetic.corpus import DATA_FOLDER
from labs_lib.training.grpo import GrpoTrainer
from labs_lib.training.run import CONTINUOUS, INTERRUPTED, MODES, RESUMED
from labs_lib.training.supervised import SupervisedTrainer

SMALL = replace(
    PROFILE,
    budget=Budget(prompt_tokens=256, answer_tokens=10, total_tokens=266),
    warmstart=Supervised(examples=12, epochs=2, batch_size=6, micro_batch_size=6, learning_rate=1e-3),
    sft=Supervised(examples=8, epochs=2, batch_size=8, micro_batch_size=8, learning_rate=1e-3),
    grpo=replace(
        PROFILE.grpo,
        iterations=2,
        prompts_per_iteration=2,
        group_size=3,
        learning_rate=1e-3,
        interrupt_at=1,
        checkpoint_every=1,
    ),
    group_size_runs=GroupSizeRuns(iterations=2, group_sizes=(2,), interrupt_at=1),
)


def small_base(profile, weak=False):
    return LoadedBase(small_model(seed=int(weak)), tokenizer(), "0" * 64)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(outputs folder, trained warm start, SFT and GRPO), made once for this module."""
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(folder))
        patch.setattr(branches, "load_base", small_base)
        made = {name: ensure_branch(SMALL, name) for name in ("sft", "grpo", "warmstart")}
    return folder, made


@pytest.fixture
def outputs(trained, tmp_path, monkeypatch):
    """A copy of the trained outputs, which a test may damage."""
    folder = Path(shutil.copytree(trained[0], tmp_path / "outputs"))
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(folder))
    monkeypatch.setattr(branches, "load_base", small_base)
    return folder


@pytest.fixture
def empty_outputs(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(branches, "load_base", small_base)
    return tmp_path


# --- Three modes, one result -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["warmstart", "sft", "grpo"])
def test_a_branch_ends_alike_in_every_mode_and_reloads_equal(trained, outputs, name):
    branch = trained[1][name]
    assert set(branch.ends) == set(MODES)
    assert branch.state_sha256[CONTINUOUS] == branch.state_sha256[RESUMED] != branch.ends[INTERRUPTED].state_sha256
    loaded = load_policy(SMALL, name).model
    assert policy_fingerprint(loaded) == branch.fingerprint
    final = branch.final.tensors
    assert all(torch.equal(final[f"policy.{n}"], p) for n, p in loaded.named_parameters())
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_branches_start_where_they_say(trained):
    _, made = trained
    start_of = {name: branch.final.manifest["identity"]["start"] for name, branch in made.items()}
    assert start_of["sft"] == start_of["grpo"] == made["warmstart"].fingerprint
    assert start_of["warmstart"] == policy_fingerprint(small_model())
    assert len({branch.fingerprint for branch in made.values()}) == 3


def test_grpo_starts_at_its_reference(trained):
    first, _ = trained[1]["grpo"].final.record["history"][0]["updates"]
    assert abs(first["kl_mean"]) < 1e-6 and first["max_ratio_deviation"] < 2e-4


def test_what_is_trained_is_found_not_made_again(trained, outputs, monkeypatch):
    def never(*arguments):
        raise AssertionError("a trainer was made")

    monkeypatch.setattr(branches, "GrpoTrainer", never)
    monkeypatch.setattr(branches, "SupervisedTrainer", never)
    assert ensure_branch(SMALL, "grpo").fingerprint == trained[1]["grpo"].fingerprint
    with pytest.raises(AssertionError):
        ensure_branch(SMALL, "grpo", fresh=True)
    assert load_policy(SMALL, "warmstart")  # fresh threw away one branch only
    assert not list(branch_folder(SMALL, "grpo").glob("*/step-*"))


def test_what_is_found_done_is_not_loaded(trained, outputs, monkeypatch):
    """Only the base is, once, for its fingerprint: two models of a real size would take seconds each time."""
    loaded = []
    monkeypatch.setattr(branches, "load_base", lambda *given: loaded.append(given) or small_base(*given))
    ensure_branch(SMALL, "grpo")
    assert loaded == [(SMALL, False)]
    assert evidence.tokens_scored(SMALL, trained[1]["sft"]) > 0
    assert len(loaded) == 1


def test_the_tokenizer_alone_is_that_of_the_loaded_base():
    source = PolicySource(SMALL, False, None, None)
    alone, loaded = (t.backend_tokenizer.to_str() + t.chat_template for t in (source.tokenizer(), tokenizer()))
    assert alone == loaded


def _without_chats(base, folder):
    found = copy.deepcopy(tokenizer())  # which is made once for all tests
    found.chat_template = None
    return found


def _unreadable(base, folder):
    raise ValueError("expected value\nat line 1")


@pytest.mark.parametrize(
    "reads, said", [(_without_chats, "knows no chats"), (_unreadable, r"cannot be read: expected value at line 1\.$")]
)
def test_a_tokenizer_that_is_of_no_use_is_one_sentence(outputs, monkeypatch, reads, said):
    monkeypatch.setattr(branches, "base_tokenizer", reads)
    with pytest.raises(BaseModelError, match=f"The tokenizer of tiny-base {said}"):
        ensure_branch(SMALL, "grpo")


def test_the_negative_control_sees_the_same_first_answers_and_other_pay(trained, outputs):
    """Its own name is no part of a stream's: what differs is the shuffle alone."""
    control = ensure_branch(SMALL, "grpo-shuffled")
    first, other = (b.final.record["history"][0]["answers"] for b in (trained[1]["grpo"], control))
    assert [a["ids"] for a in first] == [a["ids"] for a in other]
    assert set(control.ends) == {CONTINUOUS}


def test_seconds_are_kept_by_phase(trained):
    for branch in trained[1].values():
        seconds = branch_seconds(branch.final)
        assert seconds["total"] == pytest.approx(sum(v for k, v in seconds.items() if k != "total"))
        assert (seconds["generation"] > 0) == (branch.branch.kind == "grpo")


# --- The protocol ----------------------------------------------------------------------------------------------------


def test_the_protocol_has_fifteen_resumable_states():
    made = protocol_branches(PROFILE)
    three_ways = [name for name, branch in made.items() if branch.three_ways]
    assert three_ways == ["warmstart", "sft", "grpo", "grpo-g2", "grpo-g8"]
    assert len(three_ways) * len(MODES) == 15
    sizes = [made[name].grpo for name in ("grpo-g2", "grpo-g8")]
    assert [(g.group_size, g.iterations, g.interrupt_at) for g in sizes] == [(2, 20, 8), (8, 20, 8)]
    assert {g.iterations * g.prompts_per_iteration for g in sizes} == {80}
    assert [g.iterations * g.prompts_per_iteration * g.group_size for g in sizes] == [160, 640]
    assert made["grpo-shuffled"].grpo == made["grpo"].grpo and made["grpo-shuffled"].shuffle_rewards


@pytest.mark.parametrize("weak", ["assets/tiny-base-weak", None])
def test_every_start_comes_before_its_users(weak):
    known = ["base", "base-weak"]
    made = protocol_branches(replace(PROFILE, base=replace(PROFILE.base, weak_location=weak)))
    for name, branch in made.items():
        assert branch.start in known
        assert branch.weak == name.endswith("-weak")
        known.append(name)
    assert ("grpo-weak" in made) == (weak is not None)


def test_weak_branches_start_from_the_weak_base(outputs):
    assert policy_fingerprint(load_policy(SMALL, "base-weak").model) == policy_fingerprint(small_model(seed=1))
    assert policy_fingerprint(load_policy(SMALL, "base").model) == policy_fingerprint(small_model(seed=0))
    assert protocol_branches(SMALL)["warmstart-weak"].start == "base-weak"


def test_an_unknown_branch_is_refused_with_the_list(outputs):
    with pytest.raises(LabError, match="'grpo-g3'.*warmstart, sft, grpo"):
        ensure_branch(SMALL, "grpo-g3")


def test_no_example_of_the_warm_start_serves_again(trained):
    _, made = trained
    warm = {name for row in made["warmstart"].final.record["history"] for name in row["examples"]}
    later = {name for row in made["sft"].final.record["history"] for name in row["examples"]}
    prompts = {a["prompt"] for row in made["grpo"].final.record["history"] for a in row["answers"]}
    assert len(warm) == SMALL.warmstart.examples and len(later) == SMALL.sft.examples
    assert not warm & later and not warm & prompts and {name.split("-")[0] for name in warm | later} == {"train"}


def test_more_examples_than_there_are_is_refused(empty_outputs):
    too_many = replace(SMALL, warmstart=replace(SMALL.warmstart, examples=200))
    with pytest.raises(LabError, match="200 examples and got 128"):
        ensure_branch(too_many, "warmstart")


# --- What learning may see -------------------------------------------------------------------------------------------


class FileWasRead(Exception):
    """Nothing stopped the trainer from reading."""


def reading(trainer_class, path):
    """A trainer that opens `path` in its first step."""

    class Curious(trainer_class):
        def advance(self):
            Path(path).read_bytes()
            raise FileWasRead

    return Curious


TEST_FILES = [DATA_FOLDER / "test.visible.jsonl", DATA_FOLDER / "test.labels.jsonl"]
VALIDATION_FILES = [DATA_FOLDER / "validation.visible.jsonl", DATA_FOLDER / "validation.labels.jsonl"]
TRAINERS = {"warmstart": ("SupervisedTrainer", SupervisedTrainer), "grpo": ("GrpoTrainer", GrpoTrainer)}


@pytest.mark.parametrize(
    "name, path",
    [("warmstart", path) for path in TEST_FILES] + [("grpo", path) for path in TEST_FILES + VALIDATION_FILES],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_step_that_opens_a_held_out_file_is_refused_by_name(outputs, monkeypatch, name, path):
    attribute, trainer_class = TRAINERS[name]
    monkeypatch.setattr(branches, attribute, reading(trainer_class, path))
    with pytest.raises(LearningScopeError, match=path.name.replace(".", r"\.")):
        ensure_branch(SMALL, name, fresh=True)
    assert path.read_bytes()  # after the training it may be opened


@pytest.mark.parametrize("name", TRAINERS)
def test_a_step_that_opens_an_evaluation_is_refused(outputs, monkeypatch, name):
    path = outputs_root(SMALL.name) / "evaluations" / "evaluation-grpo.json"
    path.parent.mkdir()
    path.write_text("{}")
    attribute, trainer_class = TRAINERS[name]
    monkeypatch.setattr(branches, attribute, reading(trainer_class, path))
    with pytest.raises(LearningScopeError, match=r"evaluation-grpo\.json"):
        ensure_branch(SMALL, name, fresh=True)


def test_without_the_scope_a_curious_trainer_would_go_unnoticed(outputs, monkeypatch):
    monkeypatch.setattr(branches, "_scope", lambda branch: nullcontext())
    monkeypatch.setattr(branches, "GrpoTrainer", reading(GrpoTrainer, TEST_FILES[0]))
    with pytest.raises(FileWasRead):
        ensure_branch(SMALL, "grpo", fresh=True)


def test_supervised_training_may_read_validation_for_its_nll(trained, outputs, monkeypatch):
    assert len(trained[1]["warmstart"].final.record["validation_nll"]) == SMALL.warmstart.epochs
    monkeypatch.setattr(branches, "SupervisedTrainer", reading(SupervisedTrainer, VALIDATION_FILES[0]))
    with pytest.raises(FileWasRead):
        ensure_branch(SMALL, "warmstart", fresh=True)


# --- Swapped and changed ---------------------------------------------------------------------------------------------


def weights_of(name):
    return outputs_root(SMALL.name) / "models" / name / "model.safetensors"


def test_a_swapped_weights_file_is_refused(trained, outputs):
    shutil.copy(weights_of("sft"), weights_of("warmstart"))
    with pytest.raises(EvidenceExistsError, match="warmstart"):
        load_policy(SMALL, "warmstart")
    with pytest.raises(EvidenceExistsError, match="warmstart"):
        ensure_branch(SMALL, "grpo")


def test_weights_of_another_state_are_not_taken_for_the_final_ones(trained, outputs):
    """A branch that was trained anew beside old weights: they name the state that they are of."""
    tensors, metadata = load_model_weights(weights_of("warmstart"))
    assert metadata["state"] == trained[1]["warmstart"].final.state_sha256
    save_model_weights(weights_of("warmstart"), tensors, metadata | {"state": "of an earlier run"}, fresh=True)
    with pytest.raises(EvidenceExistsError, match="warmstart"):
        ensure_branch(SMALL, "warmstart")
    weights_of("warmstart").unlink()
    assert ensure_branch(SMALL, "warmstart").fingerprint == trained[1]["warmstart"].fingerprint
    assert load_model_weights(weights_of("warmstart"))[1] == metadata


def test_weights_swapped_after_the_branch_was_found_are_refused(trained, outputs):
    source = PolicySource(SMALL, False, weights_of("sft"), trained[1]["warmstart"].fingerprint)
    with pytest.raises(VerificationError, match="not the policy that its branch ended with"):
        source.load()


def test_one_changed_bit_in_the_weights_is_refused(trained, outputs):
    tensors, metadata = load_model_weights(weights_of("warmstart"))
    tensors["model.norm.weight"][0] = torch.nextafter(tensors["model.norm.weight"][0], torch.tensor(torch.inf))
    save_model_weights(weights_of("warmstart"), tensors, metadata, fresh=True)
    with pytest.raises(VerificationError):
        PolicySource(SMALL, False, weights_of("warmstart"), trained[1]["warmstart"].fingerprint).load()


def test_missing_weights_are_written_again_from_the_state(trained, outputs):
    before = sha256_file(weights_of("warmstart"))
    weights_of("warmstart").unlink()
    load_policy(SMALL, "warmstart")
    assert sha256_file(weights_of("warmstart")) == before


def changed_grpo(**changes):
    return replace(SMALL, grpo=replace(SMALL.grpo, **changes))


@pytest.mark.parametrize(
    "profile, named",
    [
        (changed_grpo(kl_weight=0.03), r"config\.grpo\.kl_weight \(saved 0\.02, now 0\.03\)"),
        (replace(SMALL, seed=49), r"config\.seed \(saved 48, now 49\)"),
        (replace(SMALL, kl_block=64), r"config\.kl_block"),
    ],
)
def test_another_config_is_refused_naming_the_key(outputs, profile, named):
    with pytest.raises(IdentityError, match=named):
        ensure_branch(profile, "grpo")


@pytest.mark.parametrize(
    "name, key", [("code_fingerprint", "code"), ("sha256_file", "data"), ("sha256_bytes", "tokenizer")]
)
def test_other_code_data_or_tokenizer_is_refused_naming_it(outputs, monkeypatch, name, key):
    monkeypatch.setattr(branch_runs, name, lambda *arguments: "e" * 64)
    with pytest.raises(IdentityError, match=rf"{key} \(saved"):
        ensure_branch(SMALL, "warmstart")


def test_another_base_is_refused(outputs, monkeypatch):
    monkeypatch.setattr(branches, "load_base", lambda profile, weak: small_base(profile, True))
    with pytest.raises(IdentityError, match=r"start \(saved"):
        ensure_branch(SMALL, "warmstart")


def test_a_branch_of_the_same_name_and_another_make_is_refused(outputs):
    branch = protocol_branches(SMALL)["grpo"]
    other = replace(branch, grpo=replace(branch.grpo, group_size=2), shuffle_rewards=True)
    with pytest.raises(
        IdentityError,
        match=r"branch\.grpo\.group_size \(saved 3, now 2\), branch\.shuffle_rewards \(saved False, now True\)",
    ):
        train_branch(SMALL, other)


def test_every_module_that_makes_a_number_is_in_the_code_fingerprint():
    """What the trainers import of this library, apart from what only stores, checks or shows."""
    package = Path(branches.__file__).parent
    covered = {package / name for name in (*branch_runs.COMMON_CODE, *branches.NUMERIC_CODE)}
    assert all(path.exists() for path in covered)
    for module in (GrpoTrainer, SupervisedTrainer):
        for imported in vars(sys.modules[module.__module__]).values():
            name = getattr(imported, "__module__", None)
            if not isinstance(name, str) or not name.startswith("labs_lib."):
                continue
            file = package.parent / (name.replace(".", "/") + ".py")
            if file.stem in ("checkpoint", "config", "errors", "fingerprint"):
                continue
            assert any(file == path or path in file.parents for path in covered), name


def test_one_process_at_a_time_trains_a_branch(empty_outputs):
    lock = branch_folder(SMALL, "grpo") / ".lock"
    with one_at_a_time(SMALL, "grpo"), open(lock) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(lock) as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


FIRST_PROCESS = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("inside", flush=True)
sys.stdin.read()
"""
LOOKS = 3  # of the second process, before the first one leaves


def second_process(monkeypatch, tell):
    """Whether a first process had left when this one got in, and the seconds that this one slept."""
    path, pipe = branch_folder(SMALL, "grpo") / ".lock", subprocess.PIPE
    path.parent.mkdir(parents=True)
    slept = []
    with subprocess.Popen([sys.executable, "-c", FIRST_PROCESS, path], stdin=pipe, stdout=pipe) as first:
        assert first.stdout.readline() == b"inside\n"

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == LOOKS:
                first.communicate()  # closes its stdin and waits for its end

        monkeypatch.setattr(branch_runs, "time", SimpleNamespace(monotonic=lambda: 1.0 * len(slept), sleep=sleep))
        with one_at_a_time(SMALL, "grpo", tell):
            return first.poll() is not None, slept


def test_a_second_process_waits_until_the_first_has_left(empty_outputs, monkeypatch, capsys):
    assert second_process(monkeypatch, tell=False) == (True, [branch_runs.SECONDS_BETWEEN_LOOKS] * LOOKS)
    assert capsys.readouterr().out == ""


def test_without_the_lock_a_second_process_would_not_wait(empty_outputs, monkeypatch):
    monkeypatch.setattr(branch_runs, "_locked", lambda lock: True)
    assert second_process(monkeypatch, tell=False) == (False, [])


def test_who_waits_says_so_in_a_line_that_a_progress_bar_covers(empty_outputs, monkeypatch, capsys):
    second_process(monkeypatch, tell=True)
    before, *lines = capsys.readouterr().out.split("\r")
    told = [f"grpo: in training in another process, waiting [00:0{second}]" for second in range(LOOKS)]
    assert before == "" and lines == [line.ljust(WIDTH) for line in told]


def test_who_need_not_wait_says_nothing(empty_outputs, capsys):
    with one_at_a_time(SMALL, "grpo", tell=True):
        assert capsys.readouterr().out == ""
