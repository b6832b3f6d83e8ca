"""OfficeHelp's four trainers in three modes: bit-identical ends, and no part of the state without which they are.

On BF16 backbones, as in the labs.
"""

import copy
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_model import IDENTITY
from small_office import PAD_ID, small_judge
from small_trainers import INTERRUPT_AT, JUDGE_SEED, LENGTHS, PPO, PROMPTS, TRAINERS, ppo_trainer

from labs_lib.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, state_differences
from labs_lib.errors import CheckpointError, VerificationError
from labs_lib.models.roles import learned_tensors
from labs_lib.office_rewards import JudgeReward
from labs_lib.training.optimizer import MOMENTS
from labs_lib.training.ppo import PpoTrainer
from labs_lib.training.run import CONTINUOUS, INTERRUPTED, RESUMED, RunPlan, run, run_three_ways

KINDS = tuple(TRAINERS)
MAKE = {kind: partial(make, dtype=torch.bfloat16) for kind, make in TRAINERS.items()}


def plan(kind: str) -> RunPlan:
    """Saves as the real branches do: at each epoch's end, PPO every second iteration."""
    every = INTERRUPT_AT[kind]
    return RunPlan(LENGTHS[kind], lambda step: step % every == 0, IDENTITY, kind)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """For each kind a folder with all three modes, each run to its end once for this module."""
    ends = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        ends[kind] = folder, run_three_ways(MAKE[kind], folder, plan(kind), INTERRUPT_AT[kind])
    return ends


@pytest.fixture
def interrupted(finished, tmp_path):
    """A copy of the interrupted mode's folder, which a test may continue."""
    return lambda kind: Path(shutil.copytree(finished[kind][0] / INTERRUPTED, tmp_path / kind))


def at_interruption(finished, kind) -> Checkpoint:
    return load_checkpoint(latest_checkpoint(finished[kind][0] / INTERRUPTED), IDENTITY)


# --- Interrupted and resumed --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_in_the_continuous_runs_bits(finished, kind):
    _, ends = finished[kind]
    assert ends[INTERRUPTED].step == INTERRUPT_AT[kind] < ends[CONTINUOUS].step == LENGTHS[kind]
    assert state_differences(ends[CONTINUOUS], ends[RESUMED]) == []
    assert ends[CONTINUOUS].state_sha256 == ends[RESUMED].state_sha256 != ends[INTERRUPTED].state_sha256


Saved = tuple[dict[str, torch.Tensor], dict[str, Any]]  # tensors and record


def state_of(trainer) -> Saved:
    return {name: tensor.clone() for name, tensor in trainer.tensors().items()}, copy.deepcopy(trainer.record())


def differences(first: Saved, second: Saved) -> list[str]:
    names = [name for name in first[0].keys() | second[0].keys() if not same(first[0].get(name), second[0].get(name))]
    return names + [key for key in first[1].keys() | second[1].keys() if first[1].get(key) != second[1].get(key)]


def same(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    return first is not None and second is not None and torch.equal(first, second)


def optimisers(trainer):
    return trainer.optimizers if isinstance(trainer, PpoTrainer) else {"policy": trainer.optimizer}


def place(trainer):
    """What holds order and cursor: PPO's stream of prompts, or a trainer of epochs itself."""
    return trainer.stream if isinstance(trainer, PpoTrainer) else trainer


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_trainer_goes_on_with_the_same_examples_counters_and_rates(finished, kind):
    """Item by item, so that a failure says which. The whole run is a second one: the same seed gives the same bits."""
    torch.manual_seed(123)  # the global generator plays no part
    whole, resumed = MAKE[kind](), MAKE[kind]()
    while whole.step < INTERRUPT_AT[kind]:
        whole.advance()
    resumed.restore(at_interruption(finished, kind))
    for _ in range(2):
        assert (place(resumed).order, place(resumed).cursor) == (place(whole).order, place(whole).cursor)
        assert resumed.step == whole.step and differences(state_of(resumed), state_of(whole)) == []
        for trainer in (whole, resumed):
            trainer.advance()
        assert resumed.history[-1] == whole.history[-1]
        for name, optimizer in optimisers(whole).items():
            after = optimisers(resumed)[name].tensors()
            counters = [counter for counter in after if ".step." in counter]
            assert counters and optimisers(resumed)[name].updates == optimizer.updates
            assert all(after[counter] == optimizer.updates for counter in counters)


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_sees_other_examples(finished, kind):
    other = MAKE[kind](seed=49)
    other.advance()
    assert other.history[0] != at_interruption(finished, kind).record["history"][0]


@pytest.mark.parametrize("kind", KINDS)
def test_durations_survive_a_resume_outside_of_the_comparable_state(finished, kind):
    _, ends = finished[kind]
    (key,) = ends[RESUMED].durations
    assert len(ends[RESUMED].durations[key]) == LENGTHS[kind]
    assert ends[RESUMED].durations != ends[CONTINUOUS].durations


# --- What the state is made of ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One part of a state, and what a resume finds in its place when it was not saved."""

    kind: str
    name: str
    forget: Callable[[Saved, Saved], Saved]  # (saved, of a fresh trainer) -> what is left

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


def tensors_under(kind: str, prefix: str) -> Part:
    """They are those of a fresh trainer, as if the role or the generator had been made anew."""

    def forget(saved, fresh):
        mine = {name: tensor for name, tensor in fresh[0].items() if name.startswith(prefix)}
        assert mine and mine.keys() == {name for name in saved[0] if name.startswith(prefix)}
        return saved[0] | mine, saved[1]

    return Part(kind, prefix, forget)


def adam_under(kind: str, prefix: str, moment: str) -> Part:
    """One kind of tensor of one optimiser is zero, as if only the others had been saved."""

    def forget(saved, fresh):
        mine = [name for name in saved[0] if name.startswith(f"{prefix}adamw.{moment}.")]
        assert mine
        return saved[0] | {name: torch.zeros_like(saved[0][name]) for name in mine}, saved[1]

    return Part(kind, f"{prefix}adamw.{moment}", forget)


def absent_under(kind: str, prefix: str) -> Part:
    """One optimiser's tensors are not in the state at all."""

    def forget(saved, fresh):
        return {name: tensor for name, tensor in saved[0].items() if not name.startswith(prefix)}, saved[1]

    return Part(kind, f"{prefix}absent", forget)


def entry(kind: str, key: str) -> Part:
    """An entry of the record is a fresh trainer's."""
    return Part(kind, key, lambda saved, fresh: (saved[0], saved[1] | {key: fresh[1][key]}))


ROLES = {"sft": "policy", "judge": "judge", "dpo": "policy"}
PARTS, REFUSED = [], []
for kind, role in ROLES.items():
    PARTS += [tensors_under(kind, f"{role}."), tensors_under(kind, "generator.permutation")]
    PARTS += [adam_under(kind, "", moment) for moment in MOMENTS]
    PARTS += [entry(kind, key) for key in ("updates", "history", "validation_nll" if kind == "sft" else "validation")]
    REFUSED += [absent_under(kind, "adamw.")]
for role in ("actor", "critic"):
    PARTS += [tensors_under("ppo", f"{role}.")]
    PARTS += [adam_under("ppo", f"optimizer.{role}.", moment) for moment in MOMENTS]
    REFUSED += [absent_under("ppo", f"optimizer.{role}.")]
PARTS += [tensors_under("ppo", f"generator.{name}") for name in ("draws", "prompts")]
PARTS += [entry("ppo", key) for key in ("iterations", "updates", "history")]


def one_step_later(saved: Checkpoint, kind: str, part: Part | None = None) -> Saved:
    """The state after the next step of a trainer that is restored from a state, which lacks one part."""
    trainer = MAKE[kind]()
    tensors, record = saved.tensors, copy.deepcopy(saved.record)
    if part is not None:
        tensors, record = part.forget((tensors, record), state_of(trainer))
    trainer.restore(SimpleNamespace(tensors=tensors, record=record, durations=saved.durations))
    trainer.advance()
    return state_of(trainer)


@pytest.fixture(scope="module")
def continued(finished):
    """What a resume that forgets nothing reaches one step after the interruption."""
    return {kind: one_step_later(at_interruption(finished, kind), kind) for kind in KINDS}


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_state_without_one_part_is_another(finished, continued, part):
    found = one_step_later(at_interruption(finished, part.kind), part.kind, part)
    assert differences(found, continued[part.kind]) != []


@pytest.mark.parametrize("part", REFUSED, ids=str)
def test_a_state_without_an_optimiser_is_refused(finished, part):
    with pytest.raises(CheckpointError, match=r"The state of AdamW lacks adamw\.exp_avg\."):
        one_step_later(at_interruption(finished, part.kind), part.kind, part)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_in_the_state(finished, kind):
    """A part that nobody added to the list above would go unwatched."""
    state = at_interruption(finished, kind)
    prefixes = tuple(part.name for part in PARTS if part.kind == kind)
    compared = ("judge.", "reference.", "backbones") if kind == "ppo" else ()  # refused when they are others
    assert [name for name in state.tensors if not name.startswith((*prefixes, *compared))] == []
    assert set(state.record) - {*prefixes, *compared} == {"order", "cursor"}


@pytest.mark.parametrize("kind", KINDS)
def test_order_and_cursor_decide_the_next_examples(kind):
    """Before the interruption, inside of a permutation: after its end both are replaced."""
    trainer = TRAINERS[kind]()
    for _ in range(INTERRUPT_AT[kind] - 1):
        trainer.advance()
    tensors, record = state_of(trainer)
    assert 0 < record["cursor"] < len(record["order"])

    def next_examples(**changes):
        resumed = TRAINERS[kind]()
        state = copy.deepcopy(record) | changes
        resumed.restore(SimpleNamespace(tensors=tensors, record=state, durations=trainer.durations()))
        resumed.advance()
        return examples_of(resumed)

    expected = next_examples()
    trainer.advance()
    assert examples_of(trainer) == expected
    assert next_examples(cursor=0) != expected
    assert next_examples(order=record["order"][::-1]) != expected


def examples_of(trainer):
    last = trainer.history[-1]
    return last["examples"] if "examples" in last else [answer["prompt"] for answer in last["answers"]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_holds_what_the_roles_learned_and_no_backbone(finished, kind):
    """Megabytes of frozen weights would be saved with every step; they are named by their fingerprint instead."""
    trainer, tensors = MAKE[kind](), finished[kind][1][CONTINUOUS].tensors
    roles = trainer.roles if kind == "ppo" else {trainer.role: trainer.model}
    learned = {f"{role}.{name}" for role, model in roles.items() for name in learned_tensors(model)}
    rest = {name for name in tensors if name.startswith(tuple(f"{role}." for role in roles))}
    assert rest == learned
    assert all(tensors[name].dtype == torch.float32 for name in learned)


# --- PPO's roles ---------------------------------------------------------------------------------------------


def test_the_frozen_roles_are_in_the_state_and_do_not_move(finished):
    _, ends = finished["ppo"]
    start = ppo_trainer(dtype=torch.bfloat16).tensors()
    for name, tensor in start.items():
        if name.startswith(("judge.", "reference.")):
            assert all(torch.equal(end.tensors[name], tensor) for end in ends.values())
    moved = {name.split(".")[0] for name, t in start.items() if not torch.equal(ends[CONTINUOUS].tensors[name], t)}
    assert {"actor", "critic"} <= moved and not moved & {"judge", "reference"}


def test_resuming_with_another_judge_is_refused(interrupted):
    other = JudgeReward(small_judge(JUDGE_SEED + 1, torch.bfloat16, learned=True), PAD_ID)
    with pytest.raises(VerificationError, match=r"The frozen judge is not that of .*ppo"):
        run(lambda: MAKE["ppo"](reward=other), interrupted("ppo"), plan("ppo"))


def test_a_run_killed_between_the_two_networks_updates_resumes_to_the_same_bits(finished, tmp_path):
    """The actor has made its step, the critic has not: nothing of that iteration may be kept."""

    def killed():
        trainer = MAKE["ppo"]()
        step = trainer.optimizers["critic"].step

        def kill_or_step():
            if trainer.step == PPO.interrupt_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return step()

        trainer.optimizers["critic"].step = kill_or_step
        return trainer

    child = os.fork()
    if child == 0:  # the kill comes from within, at one exact place; anything else ends with status 1
        try:
            run(killed, tmp_path, plan("ppo"))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert load_checkpoint(latest_checkpoint(tmp_path), IDENTITY).step == PPO.interrupt_at
    assert run(MAKE["ppo"], tmp_path, plan("ppo")).state_sha256 == finished["ppo"][1][CONTINUOUS].state_sha256


def test_states_are_saved_after_whole_iterations_and_no_rollout_is_consumed_twice(finished):
    record = finished["ppo"][1][INTERRUPTED].record
    assert record["updates"] == PPO.updates_per_iteration * record["iterations"]
    assert record["cursor"] == record["iterations"] * PPO.prompts_per_iteration == PROMPTS
    history = finished["ppo"][1][RESUMED].record["history"]
    consumed = [answer["rollout_id"] for row in history for answer in row["answers"]]
    assert len(set(consumed)) == len(consumed) == PPO.iterations * PPO.prompts_per_iteration
