from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs_lib.errors import LabError
from labs_lib.kernels.reductions import (
    answer_mean,
    answer_sum_over,
    constant_length_mean,
    grpo_mean,
    token_mean,
    token_sum_over,
)

EVERY = [
    answer_mean,
    token_mean,
    lambda values, mask: grpo_mean(values, mask, 1),
    lambda values, mask: constant_length_mean(values, mask, 4),
    lambda values, mask: token_sum_over(values, mask, 4),
    lambda values, mask: answer_sum_over(values, mask, 2),
]


def one_and_three():
    """Lengths 1 and 3, token losses 1 and 2; the padding holds what must not count."""
    values = torch.tensor([[1.0, torch.nan, 9.0], [2.0, 2.0, 2.0]], dtype=torch.float64)
    return values, torch.tensor([[True, False, False], [True, True, True]])


def test_the_three_means_of_lengths_one_and_three():
    values, mask = one_and_three()
    assert answer_mean(values, mask).tolist() == [1.0, 2.0]
    assert grpo_mean(values, mask, group_size=2).item() == 1.5
    assert token_mean(values, mask).item() == 1.75
    assert constant_length_mean(values, mask, length=4).item() == 7 / 8


def test_grpo_mean_of_whole_groups_is_the_mean_over_answers():
    """Groups of one size: prompts count as their answers do, which answer_sum_over relies on."""
    values = torch.tensor([[1.0, 3.0], [3.0, 0.0], [10.0, 0.0], [20.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False], [True, False], [True, False]])
    assert grpo_mean(values, mask, 2).item() == (2.5 + 15.0) / 2
    assert grpo_mean(values, mask, 2) == grpo_mean(values, mask, 4) == answer_sum_over(values, mask, 4)
    with pytest.raises(LabError, match="4 answers do not form groups of 3"):
        grpo_mean(values, mask, 3)


@pytest.mark.parametrize("reduce", EVERY)
def test_padding_reaches_neither_value_nor_gradient(reduce):
    values, mask = one_and_three()
    leaf = values.clone().requires_grad_()
    reduce(leaf, mask).sum().backward()
    clean = reduce(torch.where(mask, values, 0.0), mask)
    assert torch.equal(reduce(values, mask), clean)
    assert (leaf.grad[~mask] == 0).all() and (leaf.grad[mask] > 0).all()


def test_multiplying_by_the_mask_is_rejected():
    """Mutant: values * mask, which keeps a NaN of the padding."""
    values, mask = one_and_three()
    assert (values * mask).sum().isnan() and token_mean(values, mask).isfinite()


@pytest.mark.parametrize("reduce", EVERY)
def test_an_empty_answer_is_refused_by_row(reduce):
    values, mask = one_and_three()
    with pytest.raises(LabError, match="without active token at row 0"):
        reduce(values, mask & torch.tensor([[False], [True]]))


@pytest.mark.parametrize("reduce", EVERY)
def test_masks_are_bool_of_the_same_shape(reduce):
    values, mask = one_and_three()
    with pytest.raises(LabError, match="mask has dtype"):
        reduce(values, mask.float())
    with pytest.raises(LabError, match="mask has shape"):
        reduce(values, mask[:, :2])


def test_a_filtered_answer_leaves_numerator_and_denominator():
    values, mask = one_and_three()
    keep = torch.tensor([False, True])
    filtered = grpo_mean(values[keep], mask[keep], 1)
    assert filtered.item() == 2.0
    mutant = torch.where(keep, answer_mean(values, mask), 0.0).mean()  # still divides by both answers
    assert mutant.item() == 1.0


def batch(answers, seed):
    """A small linear scorer on padded answers of different lengths -> (parameters, loss per token, mask)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (answers, 1), generator=generator)
    features = torch.randn(answers, 6, 3, generator=generator, dtype=torch.float64)
    return features, torch.arange(6) < lengths


def gradient_over(features, mask, sizes, share):
    """Accumulate share(token losses, mask) over consecutive micro-batches of these sizes."""
    weights = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    for part, part_mask in zip(features.split(sizes), mask.split(sizes), strict=True):
        share((part @ weights).square(), part_mask).backward()
    return weights.grad


def split_sizes(answers, cuts):
    edges = [0, *sorted({cut % answers for cut in cuts} - {0}), answers]
    return [high - low for low, high in pairwise(edges)]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.lists(st.integers(0, 7), max_size=5), st.integers(0, 1000))
def test_any_micro_batch_split_gives_the_same_gradient(answers, cuts, seed):
    features, mask = batch(answers, seed)
    sizes, tokens = split_sizes(answers, cuts), int(mask.sum())
    whole = gradient_over(features, mask, [answers], token_mean)
    split = gradient_over(features, mask, sizes, lambda v, m: token_sum_over(v, m, tokens))
    torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-12)
    whole = gradient_over(features, mask, [answers], lambda v, m: grpo_mean(v, m, answers))
    split = gradient_over(features, mask, sizes, lambda v, m: answer_sum_over(v, m, answers))
    torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-12)


def test_a_mean_of_micro_batch_means_is_rejected():
    features, mask = batch(6, seed=4)
    whole = gradient_over(features, mask, [6], token_mean)
    split = gradient_over(features, mask, [1, 5], lambda v, m: token_mean(v, m) / 2)
    assert (whole - split).abs().max() > 1e-2
    whole = gradient_over(features, mask, [6], lambda v, m: grpo_mean(v, m, 2))
    split = gradient_over(features, mask, [2, 4], lambda v, m: grpo_mean(v, m, 2) / 2)
    assert (whole - split).abs().max() > 1e-2


@pytest.mark.parametrize("number", [0, -1, 2.5])
def test_denominators_are_counts(number):
    values, mask = one_and_three()
    for function in (token_sum_over, answer_sum_over, constant_length_mean):
        with pytest.raises(LabError, match="pass a whole number"):
            function(values, mask, number)
