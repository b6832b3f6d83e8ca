"""The same answers through our loss and through TRL's: equal where the definitions are, and apart by what was measured.

A failure after an upgrade of TRL means that one of its definitions changed: lab 07 speaks of the old one.
"""

from types import SimpleNamespace

import pytest
import torch

from labs_lib.branches import policy_source
from labs_lib.config import load_profile
from labs_lib.kernels.advantages import group_advantages
from labs_lib.scale.parity import Engine, fixed_batch, moved_policy, our_loss, relative_gap
from labs_lib.scoring import answer_logprobs
from labs_lib.training.grpo import GrpoTrainer

PROFILE = load_profile("tiny")
# FP32, and gradients through 4 layers: a thousandth of a per cent of their length.
ROUNDING = 1e-5
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def case():
    """The four hand-made answers, the base that "sampled" them, and the policy after one update on them."""
    return made_case(groups=0)


def made_case(groups):
    source = policy_source(PROFILE, "base")
    fixed = fixed_batch(PROFILE, source.load(), groups)
    moved = moved_policy(PROFILE, source, fixed.batch)
    return SimpleNamespace(source=source, fixed=fixed, batch=fixed.batch, moved=moved, reference=source.load())


def engine(case, captured=True, **changes):
    """TRL with `changes`; the old log-probabilities are those captured while sampling, as ours are."""
    made = Engine(PROFILE, case.source, case.fixed, **changes)
    if captured and "old_per_token_logps" in made.inputs:
        made.inputs["old_per_token_logps"] = case.batch.rollout.logprobs
    return made


def ours(case, kl_weight=0.0):
    return our_loss(PROFILE, case.moved, case.reference, case.batch, kl_weight)


# --- Where they agree --------------------------------------------------------------------------------


def test_the_batch_is_the_worked_problem_and_a_moved_policy(case):
    assert case.batch.rewards.tolist() == [[1, 0, 1, 0]]
    with torch.no_grad():
        now = answer_logprobs(case.moved, case.batch.prompt_ids, case.batch.rollout.ids, case.batch.rollout.mask, 0)
    assert (now - case.batch.rollout.logprobs).abs().max() > 0.1


def test_log_probs_old_log_probs_and_undivided_advantages_agree(case):
    mask = case.batch.rollout.mask
    with engine(case, captured=False, scale_rewards="none") as theirs, torch.no_grad():
        rewards = case.batch.rewards
        assert torch.equal(theirs.inputs["advantages"], (rewards - rewards.mean(dim=1, keepdim=True)).flatten())
        old = theirs.inputs["old_per_token_logps"]
        assert (old - case.batch.rollout.logprobs)[mask].abs().max() < 1e-4
        now = answer_logprobs(case.moved, case.batch.prompt_ids, case.batch.rollout.ids, mask, 0)
        assert (theirs.logprobs(case.moved) - now)[mask].abs().max() < 1e-4
        off_by_one = theirs.logprobs(case.moved).roll(1, dims=1)
        assert (off_by_one - now)[mask].abs().max() > 1


def test_surrogate_and_gradient_agree(case):
    expected = ours(case)
    with engine(case, beta=0.0) as theirs:
        found = theirs.loss(case.moved, case.batch.advantages)
    assert found.value == pytest.approx(expected.value, abs=ROUNDING)
    assert relative_gap(found.gradient, expected.gradient) < ROUNDING
    assert expected.gradient.norm() > 0.1


def test_prompts_of_different_lengths_agree():
    """One more group: TRL pads the shorter prompt. The base moves far on answers that it hardly ever gives; 1.4e-5 of
    the gradient's length were seen, and a prompt that is read from the wrong place changes all of it."""
    case = made_case(groups=1)
    assert len({len(ids) for ids in case.batch.prompt_ids}) == 2, "equal prompts are not padded"
    expected = ours(case)
    with engine(case, beta=0.0) as theirs:
        found = theirs.loss(case.moved, case.batch.advantages)
        theirs.inputs["prompt_mask"] = torch.ones_like(theirs.inputs["prompt_mask"])
        padding_read = theirs.loss(case.moved, case.batch.advantages)
    assert found.value == pytest.approx(expected.value, abs=ROUNDING)
    assert relative_gap(found.gradient, expected.gradient) < 3 * ROUNDING
    assert relative_gap(padding_read.gradient, expected.gradient) > 0.01


MUTANTS = {
    "advantages of the sample": lambda case: group_advantages(case.batch.rewards).flatten() * 0.75**0.5,
    "flipped": lambda case: -case.batch.advantages,
    "of another answer": lambda case: case.batch.advantages[[1, 0, *range(2, len(case.batch.advantages))]],
}


@pytest.mark.parametrize("name", MUTANTS)
def test_other_advantages_would_be_seen(case, name):
    expected = ours(case)
    with engine(case, beta=0.0) as theirs:
        found = theirs.loss(case.moved, MUTANTS[name](case))
    assert relative_gap(found.gradient, expected.gradient) > 0.1


def test_an_error_in_our_loss_would_be_seen(case, monkeypatch):
    """With the clip switched off, ours is no longer theirs."""
    from labs_lib.training import grpo

    clipped = grpo.clipped_surrogate
    monkeypatch.setattr(grpo, "clipped_surrogate", lambda n, o, a, low, high, m: clipped(n, o, a, 0.99, 1e6, m))
    assert GrpoTrainer.__module__ == grpo.__name__
    found = ours(case)
    monkeypatch.undo()
    assert relative_gap(found.gradient, ours(case).gradient) > 1e-3


# --- Where they do not, by how much --------------------------------------------------------------------


def test_the_deviation_is_the_samples_and_1e_4_is_added(case):
    with engine(case) as theirs:
        sample = float(case.batch.rewards.std(correction=1))
        assert theirs.inputs["advantages"].tolist() == pytest.approx([x / (sample + 1e-4) for x in (0.5, -0.5) * 2])
    assert float(theirs.inputs["advantages"][0]) == pytest.approx(0.865875, abs=1e-6)


@pytest.mark.parametrize(("corrected", "estimate"), [(True, 0.0706), (False, 0.7466)])
def test_the_kl_is_k3_of_the_sampled_tokens(case, corrected, estimate):
    mask, prompts, ids = case.batch.rollout.mask, case.batch.prompt_ids, case.batch.rollout.ids
    with torch.no_grad():
        now = answer_logprobs(case.moved, prompts, ids, mask, 0)[mask]
    old = case.batch.rollout.logprobs[mask]  # the reference is the policy that sampled
    k3 = (old - now).exp() - (old - now) - 1
    with engine(case, use_bias_correction_kl=corrected) as theirs:
        theirs.loss(case.moved, case.batch.advantages)
        assert theirs.metric("kl") == pytest.approx(
            float((k3 * ((now - old).exp() if corrected else 1)).mean()), rel=1e-3
        )
        assert theirs.metric("kl") == pytest.approx(estimate, rel=0.05)


GAPS = {
    "dapo": ({"beta": 0.0, "loss_type": "dapo"}, 0.0453),
    "old log-probs not passed": ({"beta": 0.0, "num_iterations": 1}, 3.311),
    "k3 with its correction": ({}, 0.0491),
    "k3 without": ({"use_bias_correction_kl": False}, 1.482),
    "the sample's deviation": ({"beta": 0.0}, 0.1341),
}


@pytest.mark.parametrize("name", GAPS)
def test_gradients_are_as_far_apart_as_was_measured(case, name):
    changes, gap = GAPS[name]
    expected = ours(case, changes.get("beta", PROFILE.grpo.kl_weight))
    with engine(case, **changes) as theirs:
        found = theirs.loss(case.moved, None if name.startswith("the sample") else case.batch.advantages)
    assert relative_gap(found.gradient, expected.gradient) == pytest.approx(gap, rel=0.05)


def test_without_old_log_probs_every_ratio_is_1(case):
    with engine(case, beta=0.0, num_iterations=1) as theirs:
        assert "old_per_token_logps" not in theirs.inputs
        theirs.loss(case.moved, case.batch.advantages)
        assert theirs.metric("clip_ratio/region_mean") == 0
    with engine(case, beta=0.0) as theirs:
        theirs.loss(case.moved, case.batch.advantages)
        assert theirs.metric("clip_ratio/region_mean") > 0.05


def test_a_temperature_divides_the_logits_that_are_scored(case):
    with engine(case, captured=False, temperature=0.7) as theirs:
        apart = (theirs.inputs["old_per_token_logps"] - case.batch.rollout.logprobs)[case.batch.rollout.mask]
    assert apart.abs().max() > 0.01, "captured at 1 and scored at 0.7: the ratios would be wrong"
