import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.kernels.surrogate import clipped_surrogate, surrogate_audit

RATIOS = [0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0]


def at_ratios(ratios, advantage):
    """One answer whose tokens have exactly these ratios -> (surrogate, gradient by logprobs)."""
    logprobs = torch.tensor([ratios], dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor([advantage], dtype=torch.float64)
    surrogate = clipped_surrogate(logprobs, torch.zeros(1, len(ratios), dtype=torch.float64), advantages)
    surrogate.loss.sum().backward()
    return surrogate, logprobs.grad[0]


@pytest.mark.parametrize(
    "advantage, values, active",
    [
        (1.0, [0.5, 0.79, 0.81, 1.0, 1.19, 1.2, 1.2], [False] * 5 + [True] * 2),
        (-1.0, [-0.8, -0.8, -0.81, -1.0, -1.19, -1.21, -2.0], [True] * 2 + [False] * 5),
    ],
)
def test_values_flags_and_gradients_for_both_signs(advantage, values, active):
    surrogate, gradient = at_ratios(RATIOS, advantage)
    torch.testing.assert_close(-surrogate.loss[0].detach(), torch.tensor(values, dtype=torch.float64))
    assert surrogate.clip_active[0].tolist() == active
    assert surrogate.outside[0].tolist() == [True, True, False, False, False, True, True]
    # d(-ratio * A)/d logp = -ratio * A where the clip does not act, 0 where it does.
    expected = [0.0 if clip else -r * advantage for r, clip in zip(RATIOS, active, strict=True)]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64))


@settings(max_examples=100, deadline=None)
@given(st.floats(-2, 2), st.floats(-3, 3).filter(lambda a: abs(a) > 1e-6), st.data())
def test_clip_active_is_exactly_where_the_gradient_vanishes(log_ratio, advantage, data):
    surrogate, gradient = at_ratios([math.exp(log_ratio)], advantage)
    assert surrogate.clip_active.item() == (gradient.item() == 0.0)
    assert not surrogate.clip_active.item() or surrogate.outside.item()


def test_outside_taken_for_active_is_rejected():
    """Mutant: an audit that reports the outside share as the clip share."""
    surrogate, gradient = at_ratios([0.5, 2.0], 1.0)
    assert (surrogate.outside[0] != (gradient == 0)).any()
    assert (surrogate.clip_active[0] == (gradient == 0)).all()


def test_equal_logprobs_give_ratio_one_and_the_policy_gradient():
    """At ratio 1 both branches of the minimum are equal: the gradient must be whole, not halved or doubled."""
    logprobs = torch.randn(3, 4).requires_grad_()
    advantages = torch.tensor([1.5, -0.5, 0.0])
    surrogate = clipped_surrogate(logprobs, logprobs.detach().clone(), advantages)
    surrogate.loss.sum().backward()
    assert (surrogate.ratio == 1).all() and not surrogate.outside.any()
    torch.testing.assert_close(logprobs.grad, -advantages[:, None].expand(3, 4))


def test_equal_rewards_leave_no_gradient():
    logprobs = torch.randn(2, 3).requires_grad_()
    clipped_surrogate(logprobs, torch.randn(2, 3), torch.zeros(2)).loss.sum().backward()
    assert (logprobs.grad == 0).all()


def test_asymmetric_clip():
    old = torch.zeros(1, 2)
    now = torch.tensor([[1.25, 1.35]]).log()
    surrogate = clipped_surrogate(now, old, torch.ones(1), clip_low=0.2, clip_high=0.28)
    assert surrogate.outside[0].tolist() == [False, True]
    torch.testing.assert_close(surrogate.loss, torch.tensor([[-1.25, -1.28]]))


def test_advantages_per_token_and_per_answer_agree():
    now, old, advantages = torch.randn(2, 3), torch.randn(2, 3), torch.tensor([1.0, -2.0])
    by_answer = clipped_surrogate(now, old, advantages)
    by_token = clipped_surrogate(now, old, advantages[:, None].expand(2, 3))
    assert all(torch.equal(a, b) for a, b in zip(by_answer, by_token, strict=True))


def masked_case():
    mask = torch.tensor([[True, True, False, False]])
    now = torch.tensor([[-1.0, -2.0, 900.0, -torch.inf]], requires_grad=True)
    old = torch.tensor([[-1.1, -2.0, 0.0, torch.nan]])
    return now, old, torch.tensor([-1.0]), mask


def test_garbage_in_the_padding_reaches_neither_loss_nor_gradient():
    now, old, advantages, mask = masked_case()
    surrogate = clipped_surrogate(now, old, advantages, mask=mask)
    surrogate.loss.sum().backward()
    assert surrogate.loss.isfinite().all() and (surrogate.loss[~mask] == 0).all()
    assert now.grad.isfinite().all() and (now.grad[~mask] == 0).all() and (now.grad[mask] != 0).all()
    assert (surrogate.ratio[~mask] == 1).all() and not surrogate.outside[~mask].any()


def test_masking_only_the_result_is_rejected():
    """Mutants: a product with the mask, and a where() after the exponential."""
    for after in (lambda x, m: x * m, lambda x, m: torch.where(m, x, 0.0)):
        now, old, advantages, mask = masked_case()
        after(-(now - old).exp() * advantages[:, None], mask).sum().backward()
        assert not now.grad.isfinite().all()


def test_audit_counts_active_tokens_only():
    ratios = torch.tensor([[2.0, 0.5, 1.0, 5.0], [0.5, 1.0, 1.0, 5.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    surrogate = clipped_surrogate(ratios.log(), torch.zeros(2, 4), torch.tensor([1.0, 1.0]))
    audit = surrogate_audit(surrogate, mask)
    assert audit.tokens == 5 and audit.active_clip_share == 1 / 5 and audit.outside_share == 3 / 5
    assert abs(audit.max_ratio_deviation - 1.0) < 1e-6
    diluted = surrogate.clip_active.float().mean().item()  # mutant: padding counted too
    assert diluted != audit.active_clip_share


def train_two_updates(recompute_old):
    """A three-token softmax policy, two updates on one rollout -> the audits before each of them."""
    logits = torch.zeros(1, 3, requires_grad=True)
    ids, advantages, mask = torch.tensor([[0, 1]]), torch.tensor([1.0]), torch.ones(1, 2, dtype=torch.bool)
    captured = logits.detach().log_softmax(-1).gather(1, ids)
    audits = []
    for _ in range(2):
        now = logits.log_softmax(-1).gather(1, ids)
        old = now.detach() if recompute_old else captured
        surrogate = clipped_surrogate(now, old, advantages)
        audits.append(surrogate_audit(surrogate, mask))
        (gradient,) = torch.autograd.grad(surrogate.loss.sum(), logits)
        logits = (logits - gradient).detach().requires_grad_()
    return audits


def test_a_recomputed_old_policy_shows_in_the_audit():
    first, second = train_two_updates(recompute_old=False)
    assert first.max_ratio_deviation == 0 and first.active_clip_share == 0
    assert second.max_ratio_deviation > 0.2 and second.active_clip_share > 0
    assert all(audit.max_ratio_deviation == 0 for audit in train_two_updates(recompute_old=True))


def test_constants_that_require_grad_are_refused_by_name():
    now, constant = torch.zeros(1, 2, requires_grad=True), torch.zeros(1, 2)
    with pytest.raises(LabError, match="old_logprobs requires grad"):
        clipped_surrogate(now, now, torch.ones(1))
    with pytest.raises(LabError, match="advantages requires grad"):
        clipped_surrogate(now, constant, torch.ones(1, requires_grad=True))


@pytest.mark.parametrize(
    "now, advantage", [(torch.nan, 1.0), (200.0, -1.0), (200.0, 1.0), (200.0, 0.0), (0.0, torch.nan)]
)
def test_active_values_that_are_not_finite_are_refused_with_their_place(now, advantage):
    logprobs = torch.zeros(2, 3)
    logprobs[1, 2] = now
    advantages = torch.zeros(2, 3)
    advantages[1, 2] = advantage
    with pytest.raises(LabError, match="not finite at prompt/answer row 1, position 2"):
        clipped_surrogate(logprobs, torch.zeros(2, 3), advantages)


def test_shapes_masks_and_clips_are_checked():
    two, ones = torch.zeros(2, 3), torch.ones(2)
    with pytest.raises(LabError, match="old_logprobs has shape"):
        clipped_surrogate(two, torch.zeros(3), ones)
    with pytest.raises(LabError, match="advantages has shape"):
        clipped_surrogate(two, two, torch.ones(3))
    with pytest.raises(LabError, match="advantages has shape"):
        clipped_surrogate(two, two, torch.ones(1, 3))
    with pytest.raises(LabError, match="clip range"):
        clipped_surrogate(two, two, ones, clip_low=1.2)
    with pytest.raises(LabError, match="mask has dtype"):
        clipped_surrogate(two, two, ones, mask=torch.ones(2, 3))
    with pytest.raises(LabError, match="no active token"):
        surrogate_audit(clipped_surrogate(two, two, ones), torch.zeros(2, 3, dtype=torch.bool))
