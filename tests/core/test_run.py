"""Running and resuming: bit-identical ends, whatever stops a run, and refusals that name the difference."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import small_model
import torch
from small_model import EPOCH, GRPO, IDENTITY, LENGTHS, TRAINERS, killed_inside_a_step, plan

from labs_lib.checkpoint import latest_checkpoint, load_checkpoint, state_differences
from labs_lib.errors import CheckpointError, IdentityError, VerificationError
from labs_lib.seeding import named_generator
from labs_lib.training import grpo
from labs_lib.training.grpo import GrpoTrainer
from labs_lib.training.run import CONTINUOUS, INTERRUPTED, RESUMED, run, run_three_ways
from labs_lib.training.supervised import SupervisedTrainer

KINDS = ("sft", "grpo")
CLASSES = {"sft": SupervisedTrainer, "grpo": GrpoTrainer}
INTERRUPT_AT = {"sft": EPOCH, "grpo": GRPO.interrupt_at}

pytestmark = pytest.mark.usefixtures("paid_by_parity")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """For each kind a folder with all three modes, each run to its end once for this module."""
    ends = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo, "verify", small_model.parity_verdict)
        for kind in KINDS:
            folder = tmp_path_factory.mktemp(kind)
            ends[kind] = folder, run_three_ways(TRAINERS[kind], folder, plan(kind), INTERRUPT_AT[kind])
    return ends


@pytest.fixture
def interrupted(finished, tmp_path):
    """A copy of the interrupted mode's folder, which a test may damage or continue."""

    def copied(kind):
        return Path(shutil.copytree(finished[kind][0] / INTERRUPTED, tmp_path / kind))

    return copied


# --- Interrupted and resumed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_in_the_continuous_runs_bits(finished, kind):
    _, ends = finished[kind]
    assert ends[INTERRUPTED].step == INTERRUPT_AT[kind] < ends[CONTINUOUS].step == LENGTHS[kind]
    assert state_differences(ends[CONTINUOUS], ends[RESUMED]) == []
    assert ends[CONTINUOUS].state_sha256 == ends[RESUMED].state_sha256 != ends[INTERRUPTED].state_sha256


def place(trainer):
    """What holds order and cursor: GRPO's stream of prompts, or a supervised trainer itself."""
    return trainer.stream if isinstance(trainer, GrpoTrainer) else trainer


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_trainer_goes_on_with_the_same_draws_counters_and_rate(finished, kind):
    """Item by item, so that a failure says which: next prompts, tokens, Adam's counters, rate, cursor."""
    folder, _ = finished[kind]
    whole, resumed = TRAINERS[kind](), TRAINERS[kind]()
    while whole.step < INTERRUPT_AT[kind]:
        whole.advance()
    resumed.restore(load_checkpoint(latest_checkpoint(folder / INTERRUPTED), IDENTITY))
    assert place(resumed).cursor == place(whole).cursor and place(resumed).order == place(whole).order
    for trainer in (whole, resumed):
        trainer.advance()
    assert resumed.history[-1] == whole.history[-1]
    assert place(resumed).cursor == place(whole).cursor
    counters = [name for name in whole.optimizer.tensors() if ".step." in name]
    updates = whole.optimizer.updates
    assert counters and updates == resumed.optimizer.updates
    assert all(resumed.optimizer.tensors()[name] == whole.optimizer.tensors()[name] == updates for name in counters)


@pytest.mark.parametrize("kind", KINDS)
def test_durations_survive_a_resume_outside_of_the_comparable_state(finished, kind):
    _, ends = finished[kind]
    (key,) = ends[RESUMED].durations
    assert len(ends[RESUMED].durations[key]) == LENGTHS[kind]
    assert ends[RESUMED].durations != ends[CONTINUOUS].durations


def generator_not_restored(trainer, checkpoint):
    if isinstance(trainer, GrpoTrainer):
        trainer.generators["draws"] = named_generator(48, "grpo/draws")
    else:
        trainer.generator = named_generator(48, "sft/permutation")


def adam_not_restored(trainer, checkpoint):
    trainer.optimizer._adamw.state.clear()


def cursor_not_restored(trainer, checkpoint):
    place(trainer).cursor = 0


def schedule_not_restored(trainer, checkpoint):
    if isinstance(trainer, GrpoTrainer):
        trainer.optimizer.updates = 0
    else:  # its step is the optimiser's: shift the schedule itself
        trainer.optimizer.schedule = replace(trainer.optimizer.schedule, total=trainer.optimizer.schedule.total + 1)


def one_weight_rounded(trainer, checkpoint):
    with torch.no_grad():
        last = trainer.optimizer.parameters[-1]
        last[0] = torch.nextafter(last[0], torch.tensor(torch.inf))


def history_not_restored(trainer, checkpoint):
    trainer.history = []


MUTANTS = [
    generator_not_restored,
    adam_not_restored,
    cursor_not_restored,
    schedule_not_restored,
    one_weight_rounded,
    history_not_restored,
]


@pytest.mark.parametrize("kind, mutant", [(kind, mutant) for kind in KINDS for mutant in MUTANTS])
def test_a_forgetful_resume_is_noticed(finished, interrupted, kind, mutant):
    class Forgetful(CLASSES[kind]):
        def restore(self, checkpoint):
            super().restore(checkpoint)
            mutant(self, checkpoint)

    end = run(lambda: TRAINERS[kind](Forgetful), interrupted(kind), plan(kind))
    assert state_differences(finished[kind][1][CONTINUOUS], end) != []


def test_run_three_ways_refuses_a_forgetful_trainer(tmp_path):
    class Forgetful(SupervisedTrainer):
        def restore(self, checkpoint):
            super().restore(checkpoint)
            adam_not_restored(self, checkpoint)

    with pytest.raises(VerificationError, match=r"differs from the continuous one in: tensor adamw\.exp_avg"):
        run_three_ways(lambda: small_model.sft_trainer(Forgetful), tmp_path, plan("sft"), EPOCH)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_state_and_another_seed_another(finished, tmp_path, kind):
    expected = finished[kind][1][CONTINUOUS].state_sha256
    torch.manual_seed(123)  # the global generator plays no part
    assert run(TRAINERS[kind], tmp_path / "again", plan(kind)).state_sha256 == expected
    other = run(lambda: TRAINERS[kind](seed=49), tmp_path / "other", plan(kind))
    assert other.state_sha256 != expected


# --- Signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_inside_a_step_resumes_to_the_same_bits(finished, tmp_path, kind):
    child = os.fork()
    if child == 0:  # the kill comes from within, at one exact place; anything else ends with status 1
        try:
            run(lambda: killed_inside_a_step(TRAINERS[kind](), INTERRUPT_AT[kind] + 1), tmp_path, plan(kind))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    # The step after the last save is lost, never half of it kept.
    assert load_checkpoint(latest_checkpoint(tmp_path), IDENTITY).step == INTERRUPT_AT[kind]
    end = run(TRAINERS[kind], tmp_path, plan(kind))
    assert end.state_sha256 == finished[kind][1][CONTINUOUS].state_sha256


def pressing_ctrl_c(kind, at_step):
    """A trainer during whose step `at_step` the user presses Ctrl-C, twice."""

    class Pressed(CLASSES[kind]):
        def advance(self):
            if self.step + 1 == at_step:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            super().advance()

    return lambda: TRAINERS[kind](Pressed)


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_completes_and_saves_the_step(finished, tmp_path, kind):
    step = INTERRUPT_AT[kind] - 1  # one at which nothing would have been saved; for SFT inside of an epoch
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match=f"after step {step}; run the same command"):
        run(pressing_ctrl_c(kind, step), tmp_path, plan(kind))
    assert signal.getsignal(signal.SIGINT) is handler
    assert load_checkpoint(latest_checkpoint(tmp_path), IDENTITY).step == step
    end = run(TRAINERS[kind], tmp_path, plan(kind))
    assert end.state_sha256 == finished[kind][1][CONTINUOUS].state_sha256


def test_an_error_inside_a_step_leaves_the_last_whole_state(tmp_path):
    class Failing(SupervisedTrainer):
        def advance(self):
            if self.step == EPOCH + 1:
                raise VerificationError("something is wrong")
            super().advance()

    with pytest.raises(VerificationError):
        run(lambda: small_model.sft_trainer(Failing), tmp_path, plan("sft"))
    assert load_checkpoint(latest_checkpoint(tmp_path), IDENTITY).step == EPOCH


# --- What is on disk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", IDENTITY)
def test_another_identity_is_refused_naming_the_key(interrupted, key):
    with pytest.raises(IdentityError, match=rf"\b{key} \(saved {IDENTITY[key]}, now other\)"):
        run(TRAINERS["sft"], interrupted("sft"), plan("sft", identity={**IDENTITY, key: "other"}))


def test_a_finished_run_of_another_identity_is_refused_too(finished):
    with pytest.raises(IdentityError, match="data"):
        run(TRAINERS["sft"], finished["sft"][0] / CONTINUOUS, plan("sft", identity={**IDENTITY, "data": "x"}))


@pytest.mark.parametrize("name", ["tensors.safetensors.gz", "record.json", "manifest.json"])
def test_a_flipped_byte_is_refused_naming_the_file(interrupted, name):
    folder = interrupted("grpo")
    file = latest_checkpoint(folder) / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        run(TRAINERS["grpo"], folder, plan("grpo"))


def test_a_finished_run_is_found_not_made_again(finished):
    def never():
        raise AssertionError("a trainer was made")

    folder, ends = finished["sft"]
    assert run(never, folder / CONTINUOUS, plan("sft")).state_sha256 == ends[CONTINUOUS].state_sha256


def test_a_state_past_the_end_is_refused(finished):
    with pytest.raises(CheckpointError, match="past this run's last step, 2"):
        run(TRAINERS["sft"], finished["sft"][0] / CONTINUOUS, plan("sft", until=2))


def test_states_are_saved_after_whole_iterations_with_all_their_updates(finished):
    record = finished["grpo"][1][INTERRUPTED].record
    assert record["updates"] == GRPO.updates_per_iteration * record["iterations"]
    assert len(record["history"]) == record["iterations"] == INTERRUPT_AT["grpo"]
    assert record["cursor"] == record["iterations"] * GRPO.prompts_per_iteration


def test_no_rollout_is_consumed_twice_over_a_resume(finished):
    history = finished["grpo"][1][RESUMED].record["history"]
    consumed = [answer["rollout_id"] for row in history for answer in row["answers"]]
    assert len(set(consumed)) == len(consumed) == GRPO.iterations * GRPO.prompts_per_iteration * GRPO.group_size
    # The believable bug: the history is kept, the counter of iterations is not.
    repeated = [answer["rollout_id"] for row in [*history, *history[2:]] for answer in row["answers"]]
    assert len(set(repeated)) != len(repeated)
