"""Per-token rewards, generalised advantages and the value loss of PPO on bounded answers.

All (A, T); mask (A, T) bool, True for answer tokens and EOS. Values under a False may be anything, NaN
included: they enter no result, which is 0 there. EOS and truncation both end the episode at the last active
token: nothing is bootstrapped past it, and only the reward tells them apart.
"""

from typing import NamedTuple

import torch

from labs_lib.errors import LabError
from labs_lib.kernels.checks import accumulation_dtype, refuse_where, require_mask, require_shape


class GaeResult(NamedTuple):
    """Per token, each (A, T), constants, 0 off the mask: A_t, A_t + V_t and delta_t."""

    advantages: torch.Tensor
    returns: torch.Tensor
    deltas: torch.Tensor


def last_active(mask: torch.Tensor) -> torch.Tensor:
    """Position of the last True of each row: (A, T) bool -> (A,) int64, in 0..T-1.

    By the mask, neither the last index (often padding) nor "the last id that is not pad" (an answer may
    contain the pad id). Raises LabError for a mask that is not (A, T) bool and for a row without True.
    """
    if mask.ndim != 2:
        raise LabError(f"mask has shape {tuple(mask.shape)}: give (answers, tokens).")
    require_mask(mask, mask.shape)
    refuse_where(~mask.any(dim=1), "An answer without active token", "drop the row instead of emptying its mask")
    return torch.where(mask, torch.arange(mask.shape[1], device=mask.device), -1).amax(dim=1)


@torch.no_grad()
def token_rewards(
    old_logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    scores: torch.Tensor,
    truncated: torch.Tensor,
    mask: torch.Tensor,
    kl_weight: float,
    truncation_penalty: float,
) -> torch.Tensor:
    """-kl_weight * (old - reference) on active tokens; the score, less the penalty if cut, on the last: (A, T).

    Ouyang et al. (2022), "Training language models to follow instructions", arXiv:2203.02155, section 3.5.
    Log-probs (A, T) in nats, of the sampled tokens, under the sampling actor and the reference; scores (A,)
    the judge's; truncated (A,) bool, True where the answer hit the limit without EOS. The sampled log-ratio
    may be negative: it is not the exact KL. FP32 (FP64 for FP64 log-probs), a constant, 0 off the mask.
    Raises LabError for other shapes or dtypes, an active value or score that is not finite, a negative weight.
    """
    last = last_active(mask)
    for name, tensor in (("old_logprobs", old_logprobs), ("reference_logprobs", reference_logprobs)):
        _require_tokens(tensor, mask, name)
    _require_per_answer(scores, truncated, len(mask))
    _require_weight(kl_weight, "kl_weight")
    _require_weight(truncation_penalty, "truncation_penalty")
    dtype = accumulation_dtype(old_logprobs)
    log_ratio = old_logprobs.to(dtype) - reference_logprobs.to(dtype)
    rewards = torch.where(mask, -kl_weight * log_ratio, 0.0)
    rows = torch.arange(len(mask), device=mask.device)
    rewards[rows, last] += scores.to(dtype) - truncation_penalty * truncated.to(dtype)
    return rewards


@torch.no_grad()
def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, gae_lambda: float
) -> GaeResult:
    """delta_t = r_t + gamma V_next - V_t; A_t = delta_t + gamma lambda A_next; return_t = A_t + V_t.

    Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    arXiv:1506.02438, equation 16, summed backwards. rewards and values (A, T), values captured *before* each
    token; "next" is the next active token, and after the last one V and A are 0, for EOS and truncation alike.
    No whitening: the returns need the advantages in the units of the values.
    FP32 (FP64 for FP64 values), constants whatever requires grad, 0 off the mask. Raises LabError for other
    shapes or dtypes, a row without active token, an active value that is not finite, gamma or lambda not in 0..1.
    """
    _require_trajectories(rewards, values, mask, gamma, gae_lambda)
    dtype = accumulation_dtype(values)
    rewards, values = torch.where(mask, rewards, 0.0).to(dtype), torch.where(mask, values, 0.0).to(dtype)
    deltas, advantages = torch.zeros_like(values), torch.zeros_like(values)
    # Starting from 0 is what "done" at the last active token means; a masked position changes neither.
    next_value, next_advantage = values.new_zeros(len(values)), values.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        active = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        deltas[:, t], advantages[:, t] = torch.where(active, delta, 0.0), torch.where(active, advantage, 0.0)
        next_value = torch.where(active, values[:, t], next_value)
        next_advantage = torch.where(active, advantage, next_advantage)
    return GaeResult(advantages=advantages, returns=advantages + values, deltas=deltas)


@torch.no_grad()
def generalised_advantages_reference(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, gae_lambda: float
) -> GaeResult:
    """Equation 16 as it stands, A_t = sum_l (gamma lambda)^l delta_{t+l}, in FP64: the formula to read.

    Arguments, errors and result as in ``generalised_advantages``; always FP64, a double loop for each answer.
    """
    _require_trajectories(rewards, values, mask, gamma, gae_lambda)
    advantages, returns, deltas = (torch.zeros(mask.shape, dtype=torch.float64) for _ in range(3))
    for row in range(len(mask)):
        active = mask[row].nonzero().flatten().tolist()
        r, v = rewards[row, active].tolist(), values[row, active].tolist()
        v_next = [*v[1:], 0.0]
        delta = [r[t] + gamma * v_next[t] - v[t] for t in range(len(active))]
        for t, position in enumerate(active):
            total = sum((gamma * gae_lambda) ** k * delta[t + k] for k in range(len(active) - t))
            deltas[row, position], advantages[row, position] = delta[t], total
            returns[row, position] = total + v[t]
    return GaeResult(*(part.to(mask.device) for part in (advantages, returns, deltas)))


def value_loss(values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """0.5 * (V - return)^2 per token: two (A, T) -> (A, T), to average and minimise; its gradient is V - return.

    The one half stands here and nowhere else, and nothing is clipped. With ``mask`` (A, T) bool padding may
    hold anything, NaN included: there the loss and its gradient are 0. FP32 (FP64 for FP64 values).
    Raises LabError for returns that require grad, shapes that differ, an active value that is not finite.
    """
    if returns.requires_grad:
        raise LabError("returns requires grad, but it is the constant target: pass those computed at the rollout.")
    mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask
    require_mask(mask, values.shape)
    _require_tokens(values, mask, "values")
    _require_tokens(returns, mask, "returns")
    dtype = accumulation_dtype(values)
    # Masked before the square: a mask on the result alone gives 0 * NaN = NaN in the backward.
    return 0.5 * torch.where(mask, values.to(dtype) - returns.to(dtype), 0.0).square()


def _require_trajectories(rewards, values, mask, gamma: float, gae_lambda: float) -> None:
    last_active(mask)
    _require_tokens(rewards, mask, "rewards")
    _require_tokens(values, mask, "values")
    for name, number in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not 0 <= number <= 1:
            raise LabError(f"{name} is {number!r}: it discounts the future, give a number from 0 to 1.")


def _require_tokens(tensor: torch.Tensor, mask: torch.Tensor, name: str) -> None:
    require_shape(tensor, mask.shape, name, "that of mask")
    refuse_where(mask & ~tensor.isfinite(), f"A value of {name} that is not finite", "check the model it comes from")


def _require_per_answer(scores: torch.Tensor, truncated: torch.Tensor, answers: int) -> None:
    require_shape(scores, torch.Size((answers,)), "scores", "one per answer")
    require_shape(truncated, torch.Size((answers,)), "truncated", "one per answer")
    if truncated.dtype != torch.bool:
        raise LabError(f"truncated has dtype {truncated.dtype}: make it bool, True for an answer cut without EOS.")
    refuse_where(~scores.isfinite(), "A score that is not finite", "check the judge")


def _require_weight(number: float, name: str) -> None:
    if not 0 <= number < float("inf"):
        raise LabError(f"{name} is {number!r}: it is subtracted from the reward, give a finite number >= 0.")
