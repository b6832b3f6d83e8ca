"""Every error to diagnose of lab 05 trips its invariant, and the right thing does not.

Checks, plain code and buggy trainers are the notebook's own: its definitions are executed here, on roles that take
milliseconds.
"""

import sys
from types import SimpleNamespace

import pytest
import torch

from labs_lib.errors import VerificationError
from labs_lib.kernels import gae as kernels
from labs_lib.models.roles import learned_fingerprint, require_separate
from labs_lib.office_rewards import JudgeReward
from labs_lib.paths import NOTEBOOKS, ROOT
from labs_lib.rollout import answer_draws
from labs_lib.seeding import named_generator
from labs_lib.training.ppo import PpoTrainer

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "core"))  # the small roles and their trainers
from notebook_definitions import notebook_definitions
from small_model import ANSWER_TOKENS, tokenizer
from small_office import EOS_ID, PAD_ID, small_actor, small_judge
from small_trainers import ACTOR, JUDGE_SEED, PPO, ppo_prompts, ppo_settings, ppo_trainer

R, V = [0.0, 0.0, 1.0], [0.4, 0.6, 0.5]  # the worked example
RETURNS = [0.95625, 0.975, 1.0]


@pytest.fixture(scope="module")
def lab():
    """The notebook's imports, functions and classes, without anything that it runs."""
    space = notebook_definitions(NOTEBOOKS / "05_ppo_gae.ipynb")
    space.update(ppo=PPO, eos=EOS_ID, pad=PAD_ID, r=R, V=V, returns_by_hand=RETURNS)  # what its functions read
    return space


def ran(kind=PpoTrainer, iterations=4, **changes):
    trainer = ppo_trainer(kind, **changes)
    for _ in range(iterations):
        trainer.advance()
    return trainer


# --- 1: four roles -----------------------------------------------------------------------------------


@pytest.mark.diagnoses("cell-057", "require_same_judge")
def test_a_shared_backbone_is_refused_and_would_move_the_reward(lab):
    judge = small_judge(JUDGE_SEED, learned=True)
    started = learned_fingerprint(judge)
    lab["judged"] = SimpleNamespace(fingerprint=started)
    reward = JudgeReward(judge, PAD_ID)
    roles = [small_actor(ACTOR, learned=True), lab["share_backbone"](judge), small_actor(ACTOR, learned=True)]

    with pytest.raises(VerificationError, match="share"):
        PpoTrainer(*roles, reward, tokenizer(), ppo_prompts(), ppo_settings())
    lab["require_same_judge"](judge)
    reward.roles = {}  # nobody tells the trainer
    trainer = PpoTrainer(*roles, reward, tokenizer(), ppo_prompts(), ppo_settings())
    given = ppo_prompts()[0].ids, [5, 6, EOS_ID]
    with torch.no_grad():
        before = lab["score_of"](judge, *given)
    for _ in range(3):
        trainer.advance()
    with torch.no_grad():
        assert abs(lab["score_of"](judge, *given) - before) > 1e-4
    with pytest.raises(AssertionError, match="no longer the one"):
        lab["require_same_judge"](judge)


def test_separate_roles_keep_the_judge(lab):
    trainer = ppo_trainer()
    require_separate(trainer.roles)
    started = learned_fingerprint(trainer.roles["judge"])
    trainer.advance()
    lab["judged"] = SimpleNamespace(fingerprint=started)
    lab["require_same_judge"](trainer.roles["judge"])


# --- 2 and 3: token rewards and advantages -----------------------------------------------------------


def test_plain_rewards_and_advantages_are_the_librarys(lab):
    trainer = ran(iterations=2)
    for row in (answer for step in trainer.history for answer in step["answers"]):
        cut = row["finish_reason"] == "length"
        parts = row["logprobs"], row["reference_logprobs"], row["score"], cut, PPO.kl_weight, PPO.truncation_penalty
        assert lab["token_rewards"](*parts) == pytest.approx(row["rewards"], abs=1e-5)
        advantages, returns = lab["gae"](row["rewards"], row["values"], PPO.gamma, PPO.gae_lambda)
        assert advantages == pytest.approx(row["advantages"], abs=1e-5)
        assert returns == pytest.approx(row["returns"], abs=1e-5)
        lab["require_end"](row["rewards"], row["returns"])


def test_the_worked_example_is_right_in_fp64(lab):
    advantages, returns = lab["gae"](R, V, 1.0, 0.95)
    assert advantages == pytest.approx([0.55625, 0.375, 0.5], abs=1e-12)
    assert returns == pytest.approx(RETURNS, abs=1e-12)
    tensors = (torch.tensor([x], dtype=torch.float64) for x in (R, V))
    found = kernels.generalised_advantages(*tensors, torch.ones(1, 3, dtype=torch.bool), 1.0, 0.95)
    assert found.advantages[0].tolist() == pytest.approx(advantages, abs=1e-12)


@pytest.mark.diagnoses("05-errors-to-diagnose", "require_end")
def test_a_bootstrap_past_the_end_is_noticed(lab):
    lab["require_end"](R, lab["gae"](R, V, 1.0, 0.95)[1])
    for lam in (0.0, 0.95, 1.0):
        with pytest.raises(AssertionError, match="something came after the end"):
            lab["require_end"](R, lab["gae"](R, V, 1.0, lam, after=0.7)[1])


@pytest.mark.diagnoses("05-errors-to-diagnose", "require_padding_is_nothing")
def test_padding_that_enters_is_noticed_below_lambda_1_only(lab):
    def right(*arguments):
        return kernels.generalised_advantages(*arguments).advantages

    for lam in (0.0, 0.95, 1.0):
        lab["require_padding_is_nothing"](right, lam)
    lab["require_padding_is_nothing"](lab["padding_enters"], 1.0)  # why a test at lambda 1 proves nothing
    with pytest.raises(AssertionError, match="word on padding"):
        lab["require_padding_is_nothing"](lab["padding_enters"], 0.95)


@pytest.mark.diagnoses("05-errors-to-diagnose", "require_end")
def test_returns_from_whitened_advantages_are_noticed(lab):
    found = [lab["gae"](rewards, V, 1.0, 0.95)[0] for rewards in (R, [0.0, 0.0, 5.0])]
    flat = torch.tensor(found).flatten()
    for rewards, advantages in zip((R, [0.0, 0.0, 5.0]), found, strict=True):
        white = ((torch.tensor(advantages) - flat.mean()) / flat.std()).tolist()
        with pytest.raises(AssertionError, match="last return"):
            lab["require_end"](rewards, [a + v for a, v in zip(white, V, strict=True)])


# --- 4: losses and a whole iteration -----------------------------------------------------------------


def test_plain_losses_are_those_of_the_library_in_both_updates(lab):
    step = ran(iterations=2).history[1]
    for update in step["updates"]:
        pairs = list(zip(update["logprobs"], update["values"], step["answers"], strict=True))
        tensors = [(torch.tensor(now), torch.tensor(values), row) for now, values, row in pairs]
        actors = [
            lab["actor_loss"](now, torch.tensor(row["logprobs"]), torch.tensor(row["advantages"]), PPO)
            for now, _, row in tensors
        ]
        critics = [lab["critic_loss"](values, torch.tensor(row["returns"])) for _, values, row in tensors]
        assert torch.stack(actors).mean().item() == pytest.approx(update["actor"]["loss"], abs=1e-4)
        assert torch.stack(critics).mean().item() == pytest.approx(update["critic"]["loss"], abs=1e-4)


def test_the_plain_loop_plays_the_librarys_answers(lab):
    trainer = ppo_trainer()
    roles = trainer.roles
    draws = answer_draws(named_generator(48, "ppo/draws"), PPO.prompts_per_iteration, ANSWER_TOKENS)
    order = torch.randperm(len(trainer.stream.prompts), generator=named_generator(48, "ppo/prompts")).tolist()
    chosen = [trainer.stream.prompts[index] for index in order[: PPO.prompts_per_iteration]]
    played = [lab["play"](roles, prompt.ids, draw) for prompt, draw in zip(chosen, draws, strict=True)]
    trainer.advance()
    for mine, theirs in zip(played, trainer.history[0]["answers"], strict=True):
        assert mine["ids"] == theirs["ids"]
        assert mine["score"] == pytest.approx(theirs["score"], abs=1e-3)
        for name in ("logprobs", "rewards", "values", "advantages", "returns"):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-3)


@pytest.mark.diagnoses("cell-051", "require_moved")
def test_recomputed_log_probs_are_noticed(lab):
    assert lab["require_moved"](ran().history) > 0
    with pytest.raises(AssertionError, match="exactly 0"):
        lab["require_moved"](ran(lab["RecomputesOld"]).history)


@pytest.mark.diagnoses("cell-051", "require_value_gradient")
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_second_half_and_a_missing_one_are_noticed(lab, factor):
    lab["require_value_gradient"](lab["critic_loss"])
    with pytest.raises(AssertionError, match=f"{factor:.2f} times"):
        lab["require_value_gradient"](lambda values, returns: factor * lab["critic_loss"](values, returns))


@pytest.mark.diagnoses("cell-051", "require_captured")
def test_recomputed_old_values_are_noticed(lab):
    history = ran().history
    now = [values for row in history for values in row["updates"][-1]["values"]]
    old = [answer["values"] for row in history for answer in row["answers"]]
    assert 0 <= lab["require_captured"](now, old) <= 1
    with pytest.raises(AssertionError, match="'old' is recomputed"):
        lab["require_captured"](now, now)


# --- 6 and 7: what a score is, and when curves part --------------------------------------------------


@pytest.mark.diagnoses("cell-079", "require_identified")
def test_a_score_called_usefulness_depends_on_a_zero_that_nothing_fixed(lab):
    pairs = [(1.0, True), (-0.5, False), (3.0, False)]
    lab["require_identified"](lab["preferred"], pairs)
    with pytest.raises(AssertionError, match="no preference has fixed"):
        lab["require_identified"](lab["usefulness"], pairs)


def test_plain_dpo_is_the_librarys(lab):
    case = (-4.0, -7.5, -5.0, -7.0)
    columns = [torch.tensor([value], dtype=torch.float64, requires_grad=index < 2) for index, value in enumerate(case)]
    found = lab["dpo_loss"](*columns, beta=0.3).loss
    found.backward()
    loss, gradient = lab["plain_dpo"](*case, beta=0.3)
    assert (found.item(), columns[0].grad.item()) == pytest.approx((loss, gradient), abs=1e-12)
    assert columns[1].grad.item() == pytest.approx(-gradient, abs=1e-12)


def run(seed, paid, success):
    curves = {"score": paid, "success": success, "recognised": [4] * len(paid)}
    return {"reward": "judge", "seed": seed, "kl_weight": 0.02, "answers_an_iteration": 4, "curves": curves}


@pytest.mark.parametrize(
    ("success", "paid", "expected"),
    [([4, 1], [1.0, 2.0], [48]), ([4, 4], [1.0, 2.0], []), ([1, 4], [1.0, 2.0], []), ([4, 1], [2.0, 1.0], [])],
)
def test_curves_part_only_where_paid_rises_and_the_rubric_falls(lab, success, paid, expected):
    lab["study"] = {"runs": [run(48, paid, success), run(49, [1.0, 2.0], [2, 3])]}
    assert lab["parted_seeds"]("judge", 0.02, width=1) == expected
