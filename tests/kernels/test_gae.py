import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.kernels.gae import (
    generalised_advantages,
    generalised_advantages_reference,
    last_active,
    token_rewards,
    value_loss,
)
from labs_lib.kernels.reductions import answer_mean

BOTH = [generalised_advantages, generalised_advantages_reference]
NAN = torch.nan


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


def flags(rows):
    return torch.tensor(rows, dtype=torch.bool)


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@st.composite
def trajectories(draw, rectangular=False):
    """(rewards, values, mask) of 1..4 answers; padding holds NaN. Masks may have holes, or none at all."""
    answers, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    mask = torch.rand(answers, tokens, generator=generator) < draw(st.sampled_from([0.2, 0.6, 2.0]))
    lengths = torch.randint(1, tokens + 1, (answers, 1), generator=generator)
    if rectangular:
        mask = torch.arange(tokens) < lengths
    mask[~mask.any(dim=1), draw(st.integers(0, tokens - 1))] = True
    rewards, values = torch.randn(2, answers, tokens, generator=generator, dtype=torch.float64)
    return rewards.masked_fill(~mask, NAN), values.masked_fill(~mask, NAN), mask


# --- The worked example: gamma = 1, lambda = 0.95, by hand from the last token back ---------------------
#
#   t   r_t    V_t    delta_t                     A_t                            return_t = A_t + V_t
#   2   1.0    0.8     1.0       - 0.8 =  0.2      0.2                            1.0
#   1   0.2    0.4     0.2 + 0.8 - 0.4 =  0.6      0.6 + 0.95 * 0.2  = 0.79       1.19
#   0  -0.1    0.5    -0.1 + 0.4 - 0.5 = -0.2     -0.2 + 0.95 * 0.79 = 0.5505     1.0505

REWARDS, VALUES = [-0.1, 0.2, 1.0], [0.5, 0.4, 0.8]
DELTAS, ADVANTAGES, RETURNS = [-0.2, 0.6, 0.2], [0.5505, 0.79, 0.2], [1.0505, 1.19, 1.0]


def check_worked_example(gae, padding=(-7.0, 3.0)):
    """Alone and with a critic's values under the padding: the answer's own numbers do not move."""
    alone = gae(double([REWARDS]), double([VALUES]), flags([[1, 1, 1]]), 1.0, 0.95)
    rewards, values = double([[*REWARDS, *padding]]), double([[*VALUES, *padding]])
    padded = gae(rewards, values, flags([[1, 1, 1, 0, 0]]), 1.0, 0.95)
    for name, expected in (("deltas", DELTAS), ("advantages", ADVANTAGES), ("returns", RETURNS)):
        close(getattr(alone, name), double([expected]))
        close(getattr(padded, name), double([[*expected, 0.0, 0.0]]))


@pytest.mark.parametrize("gae", BOTH)
@pytest.mark.parametrize("padding", [(-7.0, 3.0), (NAN, NAN), (torch.inf, -torch.inf)])
def test_three_tokens_by_hand(gae, padding):
    check_worked_example(gae, padding)


def mutant(next_value_of, keep_outside=False, whiten=False):
    """GAE with one believable bug; ``next_value_of(values, mask, t)`` is what stands for V_{t+1}."""

    def gae(rewards, values, mask, gamma, gae_lambda):
        used = torch.ones_like(mask) if keep_outside else mask
        deltas, advantages = torch.zeros_like(values), torch.zeros_like(values)
        following = torch.zeros_like(values[:, 0])
        for t in reversed(range(values.shape[1])):
            delta = rewards[:, t] + gamma * next_value_of(values, mask, t) - values[:, t]
            advantage = delta + gamma * gae_lambda * following
            deltas[:, t] = torch.where(used[:, t], delta, 0.0)
            advantages[:, t] = following = torch.where(used[:, t], advantage, 0.0)
        if whiten:
            active = advantages[mask]
            advantages = torch.where(mask, (advantages - active.mean()) / (active.std() + 1e-8), 0.0)
        returns = torch.where(used, advantages + values, 0.0)
        parts = (torch.where(mask, part, 0.0) for part in (advantages, returns, deltas))
        return type(generalised_advantages_reference(rewards, values, mask, gamma, gae_lambda))(*parts)

    return gae


def done_at_the_end(values, mask, t):
    """Right for a mask without holes: V of the next token, 0 when there is none."""
    inside = mask[:, t + 1] if t + 1 < mask.shape[1] else torch.zeros_like(mask[:, t])
    return torch.where(inside, values[:, min(t + 1, mask.shape[1] - 1)], 0.0)


def critic_of_the_padding(values, mask, t):
    return values[:, t + 1] if t + 1 < mask.shape[1] else torch.zeros_like(values[:, 0])


MUTANTS = {
    "bootstraps past the end": mutant(critic_of_the_padding),
    "masked tokens enter": mutant(critic_of_the_padding, keep_outside=True),
    "whitens, then adds the values": mutant(done_at_the_end, whiten=True),
    "bootstraps the last token by itself": mutant(lambda v, m, t: v[:, min(t + 1, v.shape[1] - 1)]),
    "no next value at all": mutant(lambda v, m, t: torch.zeros_like(v[:, t])),
}


def test_the_mutants_are_right_but_for_their_bug():
    check_worked_example(mutant(done_at_the_end))


@pytest.mark.parametrize("bug", MUTANTS)
def test_the_worked_example_rejects(bug):
    with pytest.raises(AssertionError):
        check_worked_example(MUTANTS[bug])


@settings(max_examples=150, deadline=None)
@given(trajectories(), st.floats(0, 1), st.floats(0, 1))
def test_the_recursion_is_the_sum_of_equation_16(case, gamma, gae_lambda):
    fast = generalised_advantages(*case, gamma, gae_lambda)
    for part, expected in zip(fast, generalised_advantages_reference(*case, gamma, gae_lambda), strict=True):
        close(part, expected)
        assert part.dtype == torch.float64 and (part[~case[2]] == 0).all()


@settings(max_examples=60, deadline=None)
@given(trajectories(), st.integers(0, 4), st.floats(0, 1), st.floats(0, 1))
def test_rows_do_not_mix_and_masked_positions_are_as_if_absent(case, extra, gamma, gae_lambda):
    rewards, values, mask = case
    pads = torch.full((len(mask), extra), 1e6, dtype=torch.float64)
    wider = [torch.cat([pads, part, pads], dim=1) for part in (rewards, values)]
    whole = generalised_advantages(*wider, torch.cat([pads < 0, mask, pads < 0], dim=1), gamma, gae_lambda)
    for row, active in enumerate(mask):
        r, v = rewards[row, active][None], values[row, active][None]
        alone = generalised_advantages(r, v, torch.ones_like(r, dtype=torch.bool), gamma, gae_lambda)
        for part, expected in zip(whole, alone, strict=True):
            assert torch.equal(part[row, extra : extra + len(active)][active], expected[0])


def check_reward_to_go(gae, case):
    """gamma = lambda = 1: everything that the values say cancels, and the return is what was earned."""
    rewards, values, mask = case
    result = gae(*case, 1.0, 1.0)
    earned = torch.where(mask, rewards, 0.0).flip(1).cumsum(1).flip(1)
    close(result.returns, torch.where(mask, earned, 0.0))
    close(result.advantages, torch.where(mask, earned - values, 0.0))


@settings(max_examples=60, deadline=None)
@given(trajectories())
def test_gamma_and_lambda_one_give_the_reward_to_go(case):
    for gae in BOTH:
        check_reward_to_go(gae, case)


@pytest.mark.parametrize("bug", MUTANTS)
def test_the_reward_to_go_rejects(bug):
    # The padding has a reward too: with 0 there a masked token would telescope away at gamma = lambda = 1.
    case = double([[*REWARDS, 0.4]]), double([[*VALUES, 3.0]]), flags([[1, 1, 1, 0]])
    check_reward_to_go(mutant(done_at_the_end), case)
    with pytest.raises(AssertionError):
        check_reward_to_go(MUTANTS[bug], case)


@settings(max_examples=60, deadline=None)
@given(trajectories(rectangular=True), st.floats(0, 1))
def test_lambda_zero_looks_one_step_ahead(case, gamma):
    rewards, values, mask = case
    rewards, values = (torch.where(mask, part, 0.0) for part in (rewards, values))
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    result = generalised_advantages(*case, gamma, 0.0)
    close(result.advantages, torch.where(mask, rewards + gamma * following - values, 0.0))
    close(result.returns, torch.where(mask, rewards + gamma * following, 0.0))
    assert torch.equal(result.advantages, result.deltas)


def test_gamma_zero_knows_no_future():
    result = generalised_advantages(double([REWARDS]), double([VALUES]), flags([[1, 1, 1]]), 0.0, 0.95)
    close(result.returns, double([REWARDS]))


# --- EOS against truncation -----------------------------------------------------------------------------


def two_endings():
    """The same three tokens twice: the first answer ends with EOS, the second is cut at the limit."""
    old, reference = double([[-1.0, -2.0, -0.5]] * 2), double([[-1.5, -1.0, -0.5]] * 2)
    return old, reference, double([0.7, 0.7]), flags([0, 1]), flags([[1, 1, 1]] * 2)


def check_endings(gae):
    """The cut answer differs by its penalty and by nothing else: A moves by -1 * lambda^distance."""
    rewards = token_rewards(*two_endings(), kl_weight=0.02, truncation_penalty=1.0)
    result = gae(rewards, double([VALUES] * 2), flags([[1, 1, 1]] * 2), 1.0, 0.95)
    ended, cut = result.advantages
    close(cut - ended, double([-(0.95**2), -0.95, -1.0]))
    close(result.deltas[:, -1], rewards[:, -1] - VALUES[-1])


@pytest.mark.parametrize("gae", BOTH)
def test_eos_and_truncation_differ_by_the_penalty_alone(gae):
    check_endings(gae)


def test_done_only_at_eos_is_rejected():
    """Mutant: a cut answer goes on in the critic's eyes, so its last value is bootstrapped."""

    def next_value(values, mask, t):
        truncated = two_endings()[3]
        return torch.where(truncated & (t == 2), values[:, 2], done_at_the_end(values, mask, t))

    with pytest.raises(AssertionError):
        check_endings(mutant(next_value))


# --- Token rewards --------------------------------------------------------------------------------------


def check_rewards(rewards_of):
    """KL -0.02 * [0.5, -1, 0] by hand; the score 0.7 and the penalty on the last active token."""
    pad = [[NAN], [NAN]]
    old, reference, scores, truncated, mask = two_endings()
    expected = double([[-0.01, 0.02, 0.7], [-0.01, 0.02, -0.3]])
    close(rewards_of(old, reference, scores, truncated, mask, 0.02, 1.0), expected)
    old, reference = (torch.cat([part, double(pad)], dim=1) for part in (old, reference))
    mask = flags([[1, 1, 1, 0], [1, 0, 0, 0]])
    expected = double([[-0.01, 0.02, 0.7, 0.0], [-0.01 - 0.3, 0.0, 0.0, 0.0]])
    close(rewards_of(old, reference, scores, truncated, mask, 0.02, 1.0), expected)


def rewards_at(place, sign=-1.0, penalty_place=None):
    """Token rewards whose score lands where ``place(mask)`` says."""

    def rewards_of(old, reference, scores, truncated, mask, kl_weight, penalty):
        rewards = torch.where(mask, sign * kl_weight * (old - reference), 0.0)
        rows = torch.arange(len(mask))
        rewards[rows, place(mask)] += scores
        rewards[rows, (penalty_place or place)(mask)] -= penalty * truncated.double()
        return rewards

    return rewards_of


def first_pad(mask):
    return (last_active(mask) + 1).clamp(max=mask.shape[1] - 1)


def last_index(mask):
    return torch.full((len(mask),), mask.shape[1] - 1)


def test_rewards_of_three_tokens_by_hand():
    check_rewards(token_rewards)
    check_rewards(rewards_at(last_active))


@pytest.mark.parametrize(
    "bug",
    [
        rewards_at(first_pad),
        rewards_at(last_index),
        rewards_at(last_active, penalty_place=first_pad),
        rewards_at(last_active, sign=1.0),
        lambda *a: token_rewards(*a[:3], torch.zeros_like(a[3]), *a[4:]),  # the truncation is not seen
        lambda *a: token_rewards(*a[:3], torch.ones_like(a[3]), *a[4:]),  # EOS is punished too
        lambda *a: token_rewards(*a) + torch.where(a[4], a[2][:, None], 0.0),  # the score on every token
    ],
)
def test_rewards_elsewhere_are_rejected(bug):
    with pytest.raises(AssertionError):
        check_rewards(bug)


@settings(max_examples=80, deadline=None)
@given(trajectories(), st.floats(0, 1), st.floats(0, 2), st.data())
def test_rewards_add_up_and_stay_on_the_mask(case, kl_weight, penalty, data):
    old, reference, mask = case
    scores = double(data.draw(st.lists(st.floats(-3, 3), min_size=len(mask), max_size=len(mask))))
    truncated = flags(data.draw(st.lists(st.booleans(), min_size=len(mask), max_size=len(mask))))
    rewards = token_rewards(old, reference, scores, truncated, mask, kl_weight, penalty)
    log_ratio = torch.where(mask, old - reference, 0.0)
    close(rewards.sum(1), scores - penalty * truncated.double() - kl_weight * log_ratio.sum(1))
    last = last_active(mask)[:, None]
    others = mask.scatter(1, last, False)
    close(rewards[others], -kl_weight * log_ratio[others])
    assert (rewards[~mask] == 0).all()


def test_a_likely_token_of_the_reference_earns_and_equal_models_cost_nothing():
    """The sampled log-ratio has both signs, unlike the exact KL: neither clamped nor squared."""
    old, reference, scores, truncated, mask = two_endings()
    rewards = token_rewards(old, reference, scores, truncated, mask, 0.5, 0.0)
    assert rewards[0, 1] > 0 > rewards[0, 0]
    same = token_rewards(old, old, scores, truncated, mask, 0.5, 0.0)
    close(same, double([[0.0, 0.0, 0.7]] * 2))


# --- The last active token ------------------------------------------------------------------------------

PAD = EOS = 0  # the usual tokenizer setting that makes ids useless for finding the end
IDS = torch.tensor([[5, 6, EOS, PAD], [5, PAD, 7, 8], [EOS, PAD, PAD, PAD]])
IDS_MASK = flags([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])


def test_the_last_active_token_is_found_by_position():
    assert last_active(IDS_MASK).tolist() == [2, 3, 0] and last_active(IDS_MASK).dtype == torch.int64
    assert last_active(flags([[0, 1, 0, 1, 0]])).tolist() == [3]


@pytest.mark.parametrize(
    "bug",
    [
        lambda ids, mask: last_active(ids.ne(PAD) | (torch.arange(4) == 0)),  # the last id that is not pad
        lambda ids, mask: last_index(mask),
        lambda ids, mask: first_pad(mask),
        lambda ids, mask: ids.eq(PAD).int().argmax(1) - 1,  # before the first pad id
    ],
)
def test_other_ways_to_the_last_token_are_rejected(bug):
    assert bug(IDS, IDS_MASK).tolist() != [2, 3, 0]


# --- The value loss -------------------------------------------------------------------------------------


def check_value_loss(loss_of):
    """V = 3, return = 1: 0.5 * 2^2 = 2 and the gradient V - return = 2, far from any clip range."""
    values = double([[3.0, 0.5]]).requires_grad_()
    loss = loss_of(values, double([[1.0, 1.0]]))
    close(loss.detach(), double([[2.0, 0.125]]))
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    close(gradient, double([[2.0, -0.5]]))


def test_the_value_loss_has_one_half():
    check_value_loss(value_loss)


def clipped_values(values, returns, limit=0.2):
    old = values.detach() + 0.5
    near = old + (values - old).clamp(-limit, limit)
    return torch.maximum(value_loss(values, returns), value_loss(near, returns))


@pytest.mark.parametrize(
    "bug",
    [
        lambda v, r: 0.5 * value_loss(v, r),  # the second hidden half
        lambda v, r: (v - r).square(),  # none
        lambda v, r: value_loss(v, r).mean() + torch.zeros_like(v),
        clipped_values,
        lambda v, r: value_loss(v, v.detach()),
    ],
)
def test_another_value_loss_is_rejected(bug):
    with pytest.raises(AssertionError):
        check_value_loss(bug)


@settings(max_examples=40, deadline=None)
@given(trajectories())
def test_gradient_of_the_value_loss(case):
    returns, values, mask = case
    values, returns = (torch.where(mask, part, 0.0) for part in (values, returns))
    leaf = values.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: value_loss(v, returns), leaf)
    assert torch.autograd.gradcheck(lambda v: value_loss(v, returns, mask), leaf)
    assert torch.autograd.gradcheck(lambda v: answer_mean(value_loss(v, returns), mask).mean(), leaf)


def test_padding_reaches_neither_the_value_loss_nor_its_gradient():
    values = double([[3.0, NAN, 9.0]]).requires_grad_()
    mask = flags([[1, 0, 0]])
    loss = value_loss(values, double([[1.0, NAN, NAN]]), mask)
    loss.sum().backward()
    assert loss.tolist() == [[2.0, 0.0, 0.0]] and values.grad.tolist() == [[2.0, 0.0, 0.0]]


def test_masking_only_the_value_loss_itself_is_rejected():
    values = double([[3.0, NAN]]).requires_grad_()
    torch.where(flags([[1, 0]]), 0.5 * (values - 1.0).square(), 0.0).sum().backward()
    assert values.grad.isnan().any()


# --- Constants, dtypes, errors --------------------------------------------------------------------------


@pytest.mark.parametrize("gae", BOTH)
def test_advantages_and_returns_are_constants(gae):
    rewards, values = (double([part]).requires_grad_() for part in (REWARDS, VALUES))
    assert not any(part.requires_grad for part in gae(rewards, values, flags([[1, 1, 1]]), 1.0, 0.95))
    live = two_endings()[0].requires_grad_()
    assert not token_rewards(live, *two_endings()[1:], 0.02, 1.0).requires_grad


def test_inputs_stay_as_they_are():
    case = double([REWARDS]), double([VALUES]), flags([[1, 1, 0]])
    copies = [part.clone() for part in case]
    generalised_advantages(*case, 1.0, 0.95)
    endings = two_endings()
    token_rewards(*endings, 0.02, 1.0)
    assert all(torch.equal(a, b) for a, b in zip([*case, *endings], [*copies, *two_endings()], strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precisions_are_summed_in_fp32(dtype):
    rewards, values, mask = torch.randn(3, 64).to(dtype), torch.randn(3, 64).to(dtype), torch.ones(3, 64).bool()
    exact = generalised_advantages_reference(rewards, values, mask, 1.0, 0.95)
    for part, expected in zip(generalised_advantages(rewards, values, mask, 1.0, 0.95), exact, strict=True):
        assert part.dtype == torch.float32
        close(part.double(), expected, 1e-5)
    ended = torch.zeros(3).bool()
    assert token_rewards(rewards, values, torch.zeros(3), ended, mask, 0.02, 1.0).dtype == torch.float32
    assert value_loss(values, rewards).dtype == torch.float32


@pytest.mark.parametrize("gae", BOTH)
def test_an_active_value_that_is_not_finite_is_refused_with_its_place(gae):
    for name in ("rewards", "values"):
        case = {"rewards": torch.zeros(2, 3), "values": torch.zeros(2, 3)}
        case[name][1, 2] = NAN
        with pytest.raises(LabError, match=f"{name} that is not finite at prompt/answer row 1, position 2"):
            gae(**case, mask=torch.ones(2, 3).bool(), gamma=1.0, gae_lambda=0.95)


@pytest.mark.parametrize("gae", BOTH)
def test_wrong_trajectories_are_refused(gae):
    zeros, mask = torch.zeros(2, 3), torch.ones(2, 3).bool()
    with pytest.raises(LabError, match="rewards has shape"):
        gae(torch.zeros(2, 1), zeros, mask, 1.0, 0.95)
    with pytest.raises(LabError, match="values has shape"):
        gae(zeros, torch.zeros(2, 4), mask, 1.0, 0.95)
    with pytest.raises(LabError, match="mask has dtype"):
        gae(zeros, zeros, mask.float(), 1.0, 0.95)
    with pytest.raises(LabError, match="mask has shape"):
        gae(zeros[0], zeros[0], mask[0], 1.0, 0.95)
    with pytest.raises(LabError, match="without active token at row 1"):
        gae(zeros, zeros, mask & flags([[1], [0]]), 1.0, 0.95)
    with pytest.raises(LabError, match="gamma is 1.01"):
        gae(zeros, zeros, mask, 1.01, 0.95)
    with pytest.raises(LabError, match="gae_lambda is nan"):
        gae(zeros, zeros, mask, 1.0, NAN)


def test_wrong_rewards_are_refused():
    good = dict(zip(("old_logprobs", "reference_logprobs", "scores", "truncated", "mask"), two_endings(), strict=True))
    good |= {"kl_weight": 0.02, "truncation_penalty": 1.0}
    for change, sentence in [
        ({"scores": double([[0.7], [0.7]])}, "scores has shape"),
        ({"scores": double([0.7, NAN])}, "score that is not finite at row 1"),
        ({"truncated": double([0.0, 1.0])}, "truncated has dtype"),
        ({"truncated": flags([1])}, "truncated has shape"),
        ({"reference_logprobs": double([[0.0]])}, "reference_logprobs has shape"),
        ({"old_logprobs": double([[0.0, -torch.inf, 0.0]] * 2)}, "old_logprobs that is not finite at prompt/answer"),
        ({"mask": flags([[1, 1, 1], [0, 0, 0]])}, "without active token at row 1"),
        ({"kl_weight": -0.02}, "kl_weight is -0.02"),
        ({"truncation_penalty": -1.0}, "truncation_penalty is -1.0"),
        ({"truncation_penalty": torch.inf}, "truncation_penalty is inf"),
    ]:
        with pytest.raises(LabError, match=sentence):
            token_rewards(**(good | change))


def test_wrong_value_losses_are_refused():
    values = torch.zeros(2, 3)
    with pytest.raises(LabError, match="returns requires grad"):
        value_loss(values, torch.zeros(2, 3, requires_grad=True))
    with pytest.raises(LabError, match="returns has shape"):
        value_loss(values, torch.zeros(2))
    with pytest.raises(LabError, match="mask has dtype"):
        value_loss(values, values, torch.ones(2, 3))
    with pytest.raises(LabError, match="values that is not finite at prompt/answer row 0, position 1"):
        value_loss(torch.tensor([[0.0, NAN]]), torch.zeros(1, 2))
