"""Every error to diagnose of lab 03 trips its invariant, and the right thing does not.

Checks, plain code and buggy trainers are the notebook's own: its definitions are executed here, on a model that
takes milliseconds.
"""

import ast
import sys

import pytest
import torch

from labs_lib.branches import PolicySource
from labs_lib.checkpoint import load_checkpoint, save_model_weights, state_differences, untied_state_dict
from labs_lib.config import load_profile
from labs_lib.errors import LearningScopeError, VerificationError
from labs_lib.evidence import require_consumed_once, require_verified_rewards
from labs_lib.models.base import load_base
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.tasks.learning_scope import stock_arithmetic_scope
from labs_lib.tasks.stock_arithmetic.corpus import load_split
from labs_lib.tools.notebooks import code_cells, read_notebook
from labs_lib.training import grpo
from labs_lib.training.grpo import GrpoTrainer
from labs_lib.training.supervised import accumulate_gradient, pad_targets

sys.path.insert(0, str(ROOT / "tests" / "core"))  # the small model and its trainers
from small_model import PROFILE, examples, grpo_trainer, parity_verdict, small_model, tokenizer

PAD, EOS = tokenizer().pad_token_id, tokenizer().eos_token_id


@pytest.fixture(scope="module")
def lab():
    """The notebook's imports, functions and classes, without anything that it runs."""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    space = {"profile": PROFILE, "G": PROFILE.grpo.group_size, "eos": EOS, "pad": PAD, "tokenizer": tokenizer()}
    for cell in code_cells(read_notebook(NOTEBOOKS / "03_grpo_training.ipynb")):
        body = [node for node in ast.parse(cell.source).body if isinstance(node, kept)]
        exec(compile(ast.Module(body, []), "03_grpo_training", "exec"), space)
    return space


@pytest.fixture(autouse=True)
def paid_by_parity(monkeypatch):
    monkeypatch.setattr(grpo, "verify", parity_verdict)


def ran(kind=GrpoTrainer, iterations=4, **changes):
    trainer = grpo_trainer(kind, **changes)
    for _ in range(iterations):
        trainer.advance()
    return trainer


# --- 1: the start ------------------------------------------------------------------------------------


def test_the_mask_is_made_by_position(lab):
    targets = [example.target for example in examples(10, 6)]
    ids, mask = lab["padded"](targets, PAD)
    library_ids, library_mask = pad_targets(targets, PAD)
    assert torch.equal(ids, library_ids) and torch.equal(mask, library_mask)
    lab["require_supervised"](mask, targets)


@pytest.mark.diagnoses("cell-008", "require_supervised")
def test_masks_from_ids_or_one_short_of_eos_are_noticed(lab):
    targets = [example.target for example in examples(10, 6)]
    filled, mask = lab["padded"](targets, EOS)
    without_last = mask & mask.roll(-1, dims=1)
    without_last[:, -1] = False
    for wrong in (filled != EOS, without_last, torch.ones_like(mask)):
        with pytest.raises(AssertionError, match="are supervised"):
            lab["require_supervised"](wrong, targets)


def test_the_plain_supervised_gradient_is_the_librarys_for_every_split(lab):
    policy, batch = small_model(), examples(10, 8)
    loss = lab["sft_loss"](policy, batch)
    loss.backward()
    plain = lab["take_gradient"](policy)
    assert plain.norm() > 1e-2
    for size in (1, 2, 3, 8):
        assert accumulate_gradient(policy, batch, size, PAD) == pytest.approx(loss.item(), abs=1e-4)
        found = lab["take_gradient"](policy)
        assert torch.allclose(found / plain.norm(), plain / plain.norm(), atol=1e-5)


@pytest.mark.diagnoses("cell-013", "require_same_gradient")
def test_a_mean_of_means_is_noticed(lab):
    policy, batch = small_model(), examples(10, 8)
    lab["sft_loss"](policy, batch).backward()
    plain = lab["take_gradient"](policy)
    with pytest.raises(AssertionError, match="depends on the split"):
        lab["require_same_gradient"](lab["mean_of_means"](policy, batch, 3), plain, "mean of means")


def test_a_test_file_cannot_be_opened_while_learning():
    with stock_arithmetic_scope(validation_nll=True):
        load_split("validation", labels=True)
        with pytest.raises(LearningScopeError, match="test.visible"):
            load_split("test", labels=False)
    assert load_split("test", labels=False)


# --- 2: one iteration --------------------------------------------------------------------------------


@pytest.fixture
def sampled(lab):
    """Two answers of the small model by the notebook's plain sampler, as its comparison takes them, and their draws."""
    lab["policy"] = small_model()
    prompt, draws = [5, 6, 7], torch.rand(2, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return [{"prompt": prompt, "ids": lab["sample_answer"](lab["policy"], prompt, draw)[0]} for draw in draws], draws


def test_answers_may_part_only_where_a_draw_lies_on_an_edge(lab, sampled):
    answers, draws = sampled
    assert lab["parted"](answers, answers, draws) == []
    others = [dict(answer, ids=[answer["ids"][0] ^ 1, *answer["ids"][1:]]) for answer in answers]
    with pytest.raises(AssertionError, match="a draw that is clear"):
        lab["parted"](answers, others, draws)
    edges = lab["policy"](torch.tensor([answers[0]["prompt"]])).logits[0, -1].double().softmax(-1).cumsum(-1)
    draws[0, 0] = edges[answers[0]["ids"][0]]
    assert lab["parted"](answers[:1], others[:1], draws[:1]) == answers[:1]


def test_an_answer_that_goes_on_where_the_other_ends_is_noticed(lab, sampled):
    answers, draws = sampled
    longer = [dict(answer, ids=[*answer["ids"], EOS]) for answer in answers]
    with pytest.raises(AssertionError, match="goes on where the other ends"):
        lab["parted"](answers, longer, draws)


def plain_answers(batch):
    rows = range(len(batch.verdicts))
    return [
        {
            "prompt": batch.prompt_ids[row // batch.rewards.shape[1]],
            "ids": batch.rollout.answer_ids(row),
            "old": batch.rollout.logprobs[row][batch.rollout.mask[row]].tolist(),
            "advantage": batch.advantages[row].item(),
        }
        for row in rows
    ]


def test_the_plain_objective_is_that_of_the_library_in_both_updates(lab):
    trainer = grpo_trainer()
    losses, sample = [], trainer.sample

    def sampled():
        trainer.batch = sample()
        return trainer.batch

    def observed(*arguments):
        losses.append(lab["grpo_loss"](trainer.policy, trainer.reference, plain_answers(trainer.batch), PROFILE.grpo))
        return GrpoTrainer.update(trainer, *arguments)

    trainer.sample, trainer.update = sampled, observed
    trainer.advance()
    recorded = [update["loss"] for update in trainer.history[0]["updates"]]
    assert [loss.item() for loss in losses] == pytest.approx(recorded, abs=1e-4)
    assert abs(recorded[1]) > 1e-3


def test_the_plain_loop_draws_the_librarys_tokens(lab):
    trainer = grpo_trainer()
    draws = lab["answer_draws"](lab["named_generator"](48, "grpo/draws"), 8, 6)
    batch = trainer.sample()
    for row in range(8):
        ids, captured = lab["sample_answer"](trainer.policy, batch.prompt_ids[row // 4], draws[row])
        assert ids == batch.rollout.answer_ids(row)
        kept = batch.rollout.logprobs[row][batch.rollout.mask[row]].tolist()
        assert captured == pytest.approx(kept, abs=1e-4)


def test_three_policies_that_keep_their_places_pass(lab):
    lab["require_three_policies"](ran(), policy_fingerprint(small_model()))


@pytest.mark.diagnoses("cell-034", "require_three_policies")
@pytest.mark.parametrize(("kind", "symptom"), [("RecomputesOld", "recomputed"), ("MovesReference", "no longer")])
def test_a_policy_in_anothers_place_is_noticed(lab, kind, symptom):
    with pytest.raises(AssertionError, match=symptom):
        lab["require_three_policies"](ran(lab[kind]), policy_fingerprint(small_model()))


# --- 4: exact resume ---------------------------------------------------------------------------------


@pytest.fixture
def interrupted(lab, tmp_path):
    """Saves of a run of four iterations, and a function that resumes it after the second with another trainer."""
    lab["scratch"] = tmp_path
    whole, saved = grpo_trainer(), {}
    while whole.step < 4:
        whole.advance()
        saved[whole.step] = lab["save"](whole, "whole")
    lab["saved"] = saved

    def resume(kind):
        trainer = grpo_trainer(kind)
        trainer.restore(load_checkpoint(saved[2]))
        while trainer.step < 4:
            trainer.advance()
        end = load_checkpoint(lab["save"](trainer, kind.__name__))
        return trainer, state_differences(load_checkpoint(saved[4]), end)

    return resume


def test_a_right_resume_differs_in_nothing(interrupted):
    trainer, differing = interrupted(GrpoTrainer)
    assert differing == []
    assert require_consumed_once(trainer.history) == 4 * 8


@pytest.mark.diagnoses("cell-053")
def test_forgotten_generators_are_named(lab, interrupted):
    _, differing = interrupted(lab["ForgetsGenerators"])
    assert {"tensor generator.draws", "record history"} <= set(differing)


@pytest.mark.diagnoses("cell-053", "require_consumed_once")
def test_a_rollout_optimised_twice_is_named(lab, interrupted):
    trainer, differing = interrupted(lab["CountersOfYesterday"])
    assert "record history" in differing
    with pytest.raises(VerificationError, match="grpo/0002/0/0 was optimised twice"):
        require_consumed_once(trainer.history)


# --- 5 to 7: evaluation, a swapped start, rewards ----------------------------------------------------


@pytest.mark.diagnoses("cell-067", "require_pass_at_1")
def test_the_best_of_four_is_not_pass_at_1(lab):
    rewards = {"a": (1, 0, 0, 0), "b": (0, 0, 0, 0), "c": (1, 1, 1, 1)}
    rows = [{"problem": name, "reward": reward} for name, values in rewards.items() for reward in values]
    lab["require_pass_at_1"](5 / 12, rows)
    assert lab["published"](rows) == pytest.approx(2 / 3)
    with pytest.raises(AssertionError, match="left out"):
        lab["require_pass_at_1"](lab["published"](rows), rows)


@pytest.mark.diagnoses("cell-077", "PolicySource")
def test_a_start_from_elsewhere_is_refused(tmp_path):
    profile = load_profile("tiny")
    right, elsewhere = (load_base(profile, weak).model for weak in (False, True))
    files = [tmp_path / "right.safetensors", tmp_path / "elsewhere.safetensors"]
    for model, file in zip((right, elsewhere), files, strict=True):
        save_model_weights(file, untied_state_dict(model))
    fingerprint = policy_fingerprint(right)
    PolicySource(profile, False, files[0], fingerprint).load()
    with pytest.raises(VerificationError, match="is not the policy that its branch ended with"):
        PolicySource(profile, False, files[1], fingerprint).load()


@pytest.mark.diagnoses("cell-089", "require_verified_rewards")
def test_a_bonus_for_style_is_noticed(lab):
    lab["typical"] = 4
    require_verified_rewards(ran().history)
    styled = ran(lab["PaysForBrevity"])
    assert any(a["paid"] not in (0, 1) for row in styled.history for a in row["answers"])
    with pytest.raises(VerificationError, match="pay the verifier's reward"):
        require_verified_rewards(styled.history)


def test_shuffled_rewards_are_accepted_as_the_control_only():
    history = ran(shuffle_rewards=True).history
    require_verified_rewards(history, shuffled=True)
    with pytest.raises(VerificationError):
        require_verified_rewards(history)
    more = [{**row, "answers": [{**a, "paid": 1.0} for a in row["answers"]]} for row in history]
    with pytest.raises(VerificationError):
        require_verified_rewards(more, shuffled=True)


def test_a_doubled_history_is_noticed():
    history = ran(iterations=2).history
    with pytest.raises(VerificationError, match="optimised twice"):
        require_consumed_once([*history, {**history[0], "iteration": 99}])
