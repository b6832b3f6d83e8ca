import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.kernels.advantages import constant_groups, group_advantages


def naive_advantages(rewards, epsilon=1e-8):
    """Mutant: the formula as written, without a look at whether the group is constant."""
    deviation = rewards - rewards.mean(1, keepdim=True)
    return deviation / (rewards.std(1, correction=0, keepdim=True) + epsilon)


def batch_advantages(rewards, epsilon=1e-8):
    """Mutant: mean and standard deviation over the batch instead of the group."""
    return (rewards - rewards.mean()) / (rewards.std(correction=0) + epsilon)


def test_one_winner_of_four_uses_the_population_std():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1.7320508, -0.5773503, -0.5773503, -0.5773503]], dtype=torch.float64)
    torch.testing.assert_close(group_advantages(rewards), expected, rtol=0, atol=1e-7)
    sample = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)
    torch.testing.assert_close(sample, torch.tensor([[1.5, -0.5, -0.5, -0.5]], dtype=torch.float64))
    assert not torch.allclose(sample, expected, atol=1e-2)


def test_a_balanced_group_is_one_only_up_to_epsilon():
    advantages = group_advantages(torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64))
    assert (advantages.abs() != 1).all() and (advantages.abs() - 1).abs().max() < 1e-7


def test_eight_times_a_tenth_is_exactly_zero_in_fp32_but_not_naively():
    rewards = torch.full((1, 8), 0.1, dtype=torch.float32)
    assert (group_advantages(rewards) == 0).all()
    assert naive_advantages(rewards).abs().max() > 0.1


@settings(max_examples=100, deadline=None)
@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 16), st.sampled_from([torch.float32, torch.float64]))
def test_identical_rewards_give_exactly_zero(reward, size, dtype):
    rewards = torch.full((2, size), reward, dtype=dtype)
    assert (group_advantages(rewards) == 0).all() and constant_groups(rewards).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.integers(2, 8), st.integers(0, 10_000))
def test_groups_are_centred_scaled_and_independent(prompts, size, seed):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 2, (prompts, size), generator=generator).double()
    advantages = group_advantages(rewards)
    assert advantages.mean(1).abs().max() < 1e-12
    for row, constant, group in zip(advantages, constant_groups(rewards), rewards, strict=True):
        assert abs(row.std(correction=0).item() - (0.0 if constant else 1.0)) < 1e-6
        torch.testing.assert_close(group_advantages(group[None])[0], row, rtol=0, atol=1e-12)


def test_normalising_over_the_batch_is_rejected():
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    assert (group_advantages(rewards)[1] == 0).all()
    assert (batch_advantages(rewards)[1] != 0).any()


def test_constant_groups_and_integer_or_boolean_rewards():
    rewards = torch.tensor([[0, 0, 0], [1, 0, 1], [1, 1, 1]])
    assert constant_groups(rewards).tolist() == [True, False, True]
    for given_rewards in (rewards, rewards.bool()):
        advantages = group_advantages(given_rewards)
        assert advantages.dtype == torch.float32
        torch.testing.assert_close(advantages, group_advantages(rewards.float()))
    # A difference of one unit in the last place is a difference: no tolerance decides who won.
    almost = torch.tensor([[0.1, torch.nextafter(torch.tensor(0.1), torch.tensor(1.0))]])
    assert not constant_groups(almost).any()


@pytest.mark.parametrize(
    "rewards, message",
    [
        (torch.zeros(3, 1), "group_size is 1"),
        (torch.zeros(4), "rewards has shape"),
        (torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]), "not finite at prompt/answer row 1, position 0"),
        (torch.tensor([[0.0, torch.inf]]), "not finite at prompt/answer row 0, position 1"),
    ],
)
@pytest.mark.parametrize("function", [group_advantages, constant_groups])
def test_unusable_rewards_are_refused(function, rewards, message):
    with pytest.raises(LabError, match=message):
        function(rewards)


def test_a_negative_epsilon_is_refused():
    with pytest.raises(LabError, match="epsilon is -1"):
        group_advantages(torch.zeros(1, 2), epsilon=-1)
