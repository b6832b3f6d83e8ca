import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

from labs_lib.errors import LabError
from labs_lib.kernels.preference import bradley_terry_loss, dpo_loss


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


def exact_loss(d):
    """-log sigmoid(d) = log(1 + e^-d) with 60 digits, rounded once."""
    with localcontext() as context:
        context.prec = 60
        return float((1 + (-Decimal(d)).exp()).ln())


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def gradients(loss, *inputs):
    """By each input; 0 for one that does not enter, so that a mutant fails on the number."""
    return torch.autograd.grad(loss.sum(), inputs, materialize_grads=True)


# --- Bradley-Terry --------------------------------------------------------------------------------------


def check_bradley_terry(loss_of):
    """Values against 60 digits, gradients against -(1 - sigmoid(d)), near 0 and far from it."""
    differences = [0.0, 0.3, -0.3, 5.0, -5.0, 21.0, -21.0, 60.0, -60.0]
    chosen, rejected = double([d + 2.0 for d in differences]).requires_grad_(), double([2.0] * 9).requires_grad_()
    loss = loss_of(chosen, rejected)
    expected = double([exact_loss(d) for d in (chosen - rejected).tolist()])
    close(loss.detach(), expected)
    slope = -(1 - torch.sigmoid((chosen - rejected).detach()))
    by_chosen, by_rejected = gradients(loss, chosen, rejected)
    close(by_chosen, slope)
    close(by_rejected, -slope)


def check_far_apart(loss_of, dtype):
    """At +-1e4 the probability of the preference is 0 or 1 in floating point; its loss and gradient are not."""
    chosen = torch.tensor([1e4, -1e4], dtype=dtype).requires_grad_()
    loss = loss_of(chosen, torch.zeros(2, dtype=dtype))
    loss.sum().backward()
    assert loss.tolist() == [0.0, 1e4] and chosen.grad.tolist() == [0.0, -1.0]


def test_values_and_gradients_of_a_preference():
    check_bradley_terry(bradley_terry_loss)
    assert bradley_terry_loss(double([1.0]), double([1.0])).item() == math.log(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_far_apart_stay_finite(dtype):
    check_far_apart(bradley_terry_loss, dtype)


def naive(chosen, rejected):
    return -torch.sigmoid(chosen - rejected).log()


def exponential(chosen, rejected):
    return ((rejected - chosen).exp() + 1).log()


@pytest.mark.parametrize("bug", [naive, exponential])
def test_unstable_formulas_are_rejected(bug):
    with pytest.raises(AssertionError):
        check_far_apart(bug, torch.float32)


@pytest.mark.parametrize(
    "bug",
    [
        lambda c, r: bradley_terry_loss(r, c),  # the sides swapped
        lambda c, r: 1 - torch.sigmoid(c - r),  # the error probability, not its logarithm
        lambda c, r: (1 - (c - r)).clamp(min=0),  # a hinge
        lambda c, r: bradley_terry_loss(c - r.detach(), torch.zeros_like(r)),  # one side learns only
        lambda c, r: softplus(r - c),  # cut to its asymptote above 20: 1e-9 off
    ],
)
def test_other_pair_losses_are_rejected(bug):
    with pytest.raises(AssertionError):
        check_bradley_terry(bug)


@settings(max_examples=100, deadline=None)
@given(st.floats(-1e4, 1e4), st.floats(-1e3, 1e3))
def test_only_the_difference_counts_and_it_is_a_probability(difference, shift):
    score, other = double([difference]), double([0.0])
    loss, reverse = bradley_terry_loss(score, other), bradley_terry_loss(other, score)
    close(loss, double([exact_loss(difference)]))
    close(torch.exp(-loss) + torch.exp(-reverse), double([1.0]))
    close(bradley_terry_loss(score + shift, other + shift), loss, 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 6), st.integers(0, 10_000))
def test_gradients_of_any_number_of_pairs(pairs, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = [3 * torch.randn(pairs, generator=generator, dtype=torch.float64) for _ in range(4)]
    chosen, rejected = (part.requires_grad_() for part in scores[:2])
    assert bradley_terry_loss(chosen, rejected).shape == (pairs,)
    assert torch.autograd.gradcheck(bradley_terry_loss, (chosen, rejected))
    assert torch.autograd.gradcheck(lambda c, r: dpo_loss(c, r, *scores[2:], beta=0.3), (chosen, rejected))


# --- DPO ------------------------------------------------------------------------------------------------
#
#   chosen: -10 against -12 by the reference, +2 nats; rejected: -9 against -8, -1 nat; beta = 0.1
#   margin = 0.1 * (2 - (-1)) = 0.3      loss = log(1 + e^-0.3) = 0.554355244468527
#   gradient by the chosen log-prob = -0.1 * (1 - sigmoid(0.3)) = -0.1 * 0.425557483188341

PAIR = (-10.0, -9.0, -12.0, -8.0)
LOSS, SLOPE = 0.554355244468527, 0.0425557483188341


def check_dpo(loss_of):
    chosen, rejected = (double([x]).requires_grad_() for x in PAIR[:2])
    reference = [double([x]) for x in PAIR[2:]]
    result = loss_of(chosen, rejected, *reference, 0.1)
    close(result.margin.detach(), double([0.3]))
    close(result.loss.detach(), double([LOSS]))
    by_chosen, by_rejected = gradients(result.loss, chosen, rejected)
    close(by_chosen, double([-SLOPE]))
    close(by_rejected, double([SLOPE]))


def test_one_pair_by_hand():
    check_dpo(dpo_loss)


@pytest.mark.parametrize(
    "bug",
    [
        lambda c, r, rc, rr, beta: dpo_loss(c, r, torch.zeros_like(rc), torch.zeros_like(rr), beta),  # no reference
        lambda c, r, rc, rr, beta: dpo_loss(c, r, rr, rc, beta),  # the references swapped
        lambda c, r, rc, rr, beta: dpo_loss(r, c, rr, rc, beta),  # the sides swapped
        lambda c, r, rc, rr, beta: dpo_loss(c, r, rc, rr, 1.0)._replace(margin=beta * (c - rc - r + rr)),
        lambda c, r, rc, rr, beta: dpo_loss(c, r.detach(), rc, rr, beta),  # only the chosen side is pushed
        lambda c, r, rc, rr, beta: dpo_loss(c.exp(), r.exp(), rc.exp(), rr.exp(), beta),  # no logarithms
        lambda c, r, rc, rr, beta: dpo_loss(c / 2, r / 3, rc / 2, rr / 3, beta),  # means over the tokens
    ],
)
def test_other_dpo_losses_are_rejected(bug):
    with pytest.raises(AssertionError):
        check_dpo(bug)


def test_the_start_is_log_two_whatever_the_pair():
    chosen, rejected = double([-3.0, -80.0]), double([-70.0, -2.0])
    result = dpo_loss(chosen, rejected, chosen, rejected, beta=0.1)
    assert result.margin.tolist() == [0.0, 0.0] and result.loss.tolist() == [math.log(2)] * 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-200, 0), min_size=4, max_size=4), st.floats(1e-3, 5))
def test_dpo_is_bradley_terry_on_implicit_rewards(numbers, beta):
    chosen, rejected, reference_chosen, reference_rejected = (double([x]) for x in numbers)
    result = dpo_loss(chosen, rejected, reference_chosen, reference_rejected, beta)
    implicit = beta * (chosen - reference_chosen), beta * (rejected - reference_rejected)
    close(result.margin, implicit[0] - implicit[1])
    close(result.loss, bradley_terry_loss(*implicit))
    close(result.loss, double([exact_loss(result.margin.item())]))


# --- Dtypes and errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_lower_precisions_are_subtracted_in_fp32(dtype):
    """At -300 BF16 counts in steps of 2: the subtraction itself must not be rounded to them."""
    chosen, rejected = torch.tensor([-300.0], dtype=dtype), torch.tensor([-0.5], dtype=dtype)
    loss = bradley_terry_loss(chosen, rejected)
    result = dpo_loss(chosen, rejected, rejected, chosen, beta=0.5)
    assert loss.dtype == result.loss.dtype == result.margin.dtype == torch.float32
    assert loss.item() == 299.5 and result.margin.item() == -299.5


def test_wrong_pairs_are_refused():
    two = torch.zeros(2)
    with pytest.raises(LabError, match="rejected has shape"):
        bradley_terry_loss(two, torch.zeros(1))
    with pytest.raises(LabError, match=r"chosen has shape \(2, 1\)"):
        bradley_terry_loss(torch.zeros(2, 1), two)
    with pytest.raises(LabError, match="rejected that is not finite at row 1"):
        bradley_terry_loss(two, torch.tensor([0.0, torch.nan]))
    with pytest.raises(LabError, match="reference_rejected has shape"):
        dpo_loss(two, two, two, torch.zeros(2, 2), 0.1)
    with pytest.raises(LabError, match="chosen_logprob that is not finite at row 0"):
        dpo_loss(torch.tensor([-torch.inf, 0.0]), two, two, two, 0.1)


@pytest.mark.parametrize("beta", [0.0, -0.1, math.nan, math.inf])
def test_beta_is_positive(beta):
    with pytest.raises(LabError, match="beta is"):
        dpo_loss(*[torch.zeros(1)] * 4, beta)


@pytest.mark.parametrize("name", ["reference_chosen", "reference_rejected"])
def test_a_reference_that_learns_is_refused_by_name(name):
    arguments = dict.fromkeys(
        ("chosen_logprob", "rejected_logprob", "reference_chosen", "reference_rejected"), torch.zeros(1)
    )
    arguments[name] = torch.zeros(1, requires_grad=True)
    with pytest.raises(LabError, match=f"{name} requires grad"):
        dpo_loss(**arguments, beta=0.1)
