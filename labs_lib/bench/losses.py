"""One loss for all variants: GRPO's, with each debated term a field that a variant sets otherwise."""

from dataclasses import dataclass, replace

import torch

from labs_lib.kernels.advantages import constant_groups, group_advantages
from labs_lib.kernels.reductions import answer_mean, answer_sum
from labs_lib.kernels.surrogate import ClippedSurrogate, clipped_surrogate
from labs_lib.tasks.padded_bits.environment import MAX_TOKENS


@dataclass(frozen=True)
class Variant:
    """What an objective divides by, how far it lets ratios go, and which answers it leaves out.

    Attributes:
        length: what sums over an answer's tokens are divided by: "answer" (its length), "batch" (all tokens of the
            batch, DAPO) or a number of tokens (Dr. GRPO).
        std: whether advantages are divided by the group's population standard deviation.
        clip_low, clip_high: the ratio's bounds are 1 - clip_low and 1 + clip_high.
        ratio: "token", or "sequence" for the geometric mean over the answer (GSPO).
        overlong: what an answer without stop does: "counts" like any other, is "masked" (leaves the numerator), or
            "dropped" (leaves numerator and denominator).
        entropy_bonus: weight of the policy's mean entropy over the states that the batch visits.
    """

    length: str | float = "answer"
    std: bool = True
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio: str = "token"
    overlong: str = "counts"
    entropy_bonus: float = 0.0


GRPO = Variant()  # Shao et al. 2024
VARIANTS = {
    "grpo": GRPO,
    "no_std": replace(GRPO, std=False),
    "constant": replace(GRPO, length=MAX_TOKENS),
    "dr_grpo": replace(GRPO, std=False, length=MAX_TOKENS),  # Liu et al. 2025
    "token_mean": replace(GRPO, length="batch"),  # Yu et al. 2025, DAPO, equation 8
    "clip_higher": replace(GRPO, clip_high=0.28),  # DAPO, section 3.1
    "gspo": replace(GRPO, ratio="sequence"),  # Zheng et al. 2025
}


def advantages_of(rewards: torch.Tensor, variant: Variant) -> torch.Tensor:
    """(M, P, G) rewards -> (M, P, G) advantages, zero in constant groups."""
    groups = rewards.flatten(0, 1)
    if variant.std:
        return group_advantages(groups).view_as(rewards)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return torch.where(constant_groups(groups).unsqueeze(1), 0.0, centred).view_as(rewards)


def answer_weights(lengths: torch.Tensor, stopped: torch.Tensor, variant: Variant) -> torch.Tensor:
    """What each answer's sum over tokens is multiplied by: the normalisation is this and nothing else.

    Args:
        lengths: tokens of each answer of each of M models, (M, A); stopped: which have a stop, (M, A) bool.

    Returns:
        (M, A) float64, 0 for answers that are left out.
    """
    used = torch.ones_like(stopped) if variant.overlong == "counts" else stopped
    counted = used if variant.overlong == "dropped" else torch.ones_like(stopped)
    answers = counted.sum(dim=1, keepdim=True).clamp(min=1).double()
    if variant.length == "answer":
        divisor = answers * lengths
    elif variant.length == "batch":
        divisor = (lengths * counted).sum(dim=1, keepdim=True).clamp(min=1)
    else:
        divisor = answers * variant.length
    return used.double() / divisor  # not FP32, as a quotient of whole numbers would be


def bench_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor,
    variant: Variant,
) -> tuple[torch.Tensor, ClippedSurrogate]:
    """The part (A,) of each answer in the loss, to minimise their sum, and the surrogate per token.

    Answers of several models may stand one after the other: their parts have nothing to do with each other.

    Args:
        logprobs, old_logprobs, mask: (A, T); advantages: (A,); weights: (A,) from `answer_weights`.
    """
    if variant.ratio == "sequence":
        logprobs = old_logprobs + answer_mean(logprobs - old_logprobs, mask).unsqueeze(-1)
    surrogate = clipped_surrogate(logprobs, old_logprobs, advantages, variant.clip_low, variant.clip_high, mask)
    return weights * answer_sum(surrogate.loss, mask), surrogate
