"""Group-relative advantages: each answer is compared with the other answers to the same prompt."""

import torch

from labs_lib.errors import LabError
from labs_lib.kernels.checks import refuse_where


def constant_groups(rewards: torch.Tensor) -> torch.Tensor:
    """Which groups carry no signal, (P, G) -> (P,) bool: True where all G rewards are identical.

    Compared value by value: a standard deviation computed in floating point need not be 0 there.
    Raises LabError unless rewards is (P, G) with G >= 2 and finite.
    """
    _require_rewards(rewards)
    return (rewards == rewards[:, :1]).all(dim=1)


def group_advantages(rewards: torch.Tensor, epsilon: float = 1e-8) -> torch.Tensor:
    """A = (r - mean) / (std + epsilon) within each group, (P, G) -> (P, G); std is the population's.

    Shao et al. (2024), "DeepSeekMath", arXiv:2402.03300, section 4.1.2 (outcome supervision). Population
    std divides by G: [1, 0, 0, 0] gives 1.7320508 and -0.5773503 (the sample std would give 1.5 and -0.5).
    Identical rewards give exactly 0. FP32 and FP64 keep their dtype; bool and integer rewards become FP32.
    Raises LabError unless rewards is (P, G) with G >= 2 and finite, and epsilon >= 0.
    """
    if not epsilon >= 0:
        raise LabError(f"epsilon is {epsilon!r}: it stabilises a division, give a number >= 0.")
    constant = constant_groups(rewards)
    if not rewards.is_floating_point():
        rewards = rewards.to(torch.float32)
    deviation = rewards - rewards.mean(dim=1, keepdim=True)
    scaled = deviation / (rewards.std(dim=1, correction=0, keepdim=True) + epsilon)
    # The mean of eight FP32 values 0.1 is not 0.1: without this line pure rounding, divided by epsilon,
    # becomes an advantage of about -0.4 for answers that are all alike.
    return torch.where(constant.unsqueeze(1), 0.0, scaled)


def _require_rewards(rewards: torch.Tensor) -> None:
    if rewards.ndim != 2:
        raise LabError(f"rewards has shape {tuple(rewards.shape)}: give (prompts, group_size).")
    if rewards.shape[1] < 2:
        raise LabError(
            f"group_size is {rewards.shape[1]}: an answer is compared with its group, use at least 2 answers."
        )
    refuse_where(~rewards.isfinite(), "A reward that is not finite", "have the verifier return a finite number")
