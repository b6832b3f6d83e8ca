"""From per-token values to one number: which mean is taken decides how much a long answer counts.

Every function takes values (A, T) float and mask (A, T) bool, True for answer tokens and EOS; values under a
False may be anything, NaN included, and reach neither the result nor the gradient by ``values``. An answer
without an active token is an error: a filtered answer must leave the batch (numerator and denominator) as a
row, before the reduction, never by emptying its mask.
"""

import torch

from labs_lib.errors import LabError
from labs_lib.kernels.checks import refuse_where, require_mask


def answer_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum over the active tokens of each answer: (A, T) -> (A,)."""
    require_mask(mask, values.shape)
    refuse_where(~mask.any(dim=-1), "An answer without active token", "drop the row instead of emptying its mask")
    # where, not a product: padding may hold NaN, and NaN * 0 is NaN.
    return torch.where(mask, values, 0.0).sum(dim=-1)


def answer_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the active tokens of each answer: (A, T) -> (A,)."""
    return answer_sum(values, mask) / mask.sum(dim=-1)


def grpo_mean(values: torch.Tensor, mask: torch.Tensor, group_size: int) -> torch.Tensor:
    """Tokens -> answers -> prompts: mean of means, a scalar. A is a multiple of group_size, prompt-major.

    Shao et al. (2024), "DeepSeekMath", arXiv:2402.03300, equation 3: every answer counts the same, so a
    token of a long answer counts less.
    """
    if group_size < 1 or len(values) % group_size:
        raise LabError(f"{len(values)} answers do not form groups of {group_size}: pass whole groups.")
    return answer_mean(values, mask).view(-1, group_size).mean(dim=1).mean()


def token_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over all active tokens, a scalar: every token counts the same, so a long answer counts more."""
    return answer_sum(values, mask).sum() / mask.sum()


def constant_length_mean(values: torch.Tensor, mask: torch.Tensor, length: int) -> torch.Tensor:
    """Sum over tokens / ``length``, then mean over answers, a scalar: no answer's own length enters.

    Liu et al. (2025), "Understanding R1-Zero-Like Training" (Dr. GRPO), arXiv:2503.20783, section 3.
    ``length`` is a constant of the run, usually the answer budget, never the longest answer of a batch.
    """
    _require_denominator(length, "length")
    return answer_sum(values, mask).mean() / length


def token_sum_over(values: torch.Tensor, mask: torch.Tensor, denominator: int) -> torch.Tensor:
    """A micro-batch's share of ``token_mean``: sum of active tokens / denominator, a scalar.

    Pass the number of active tokens of the *whole* accumulated batch: the shares of any split then add up to
    the same loss and gradient, which a mean of per-micro-batch means does not.
    """
    _require_denominator(denominator, "denominator")
    return answer_sum(values, mask).sum() / denominator


def answer_sum_over(values: torch.Tensor, mask: torch.Tensor, denominator: int) -> torch.Tensor:
    """A micro-batch's share of ``grpo_mean``: sum of answer means / denominator, a scalar.

    Pass the number of answers of the *whole* accumulated batch. Groups of one size make the mean over
    prompts of means over answers equal to the mean over answers, so a split may even cut through a group.
    """
    _require_denominator(denominator, "denominator")
    return answer_mean(values, mask).sum() / denominator


def _require_denominator(number: int, name: str) -> None:
    if not isinstance(number, int) or number < 1:
        raise LabError(f"{name} is {number!r}: pass a whole number, 1 or more, counted over the whole batch.")
