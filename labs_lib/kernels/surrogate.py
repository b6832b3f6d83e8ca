"""The clipped policy-gradient objective per token, and an audit of what the clip did."""

from typing import NamedTuple

import torch

from labs_lib.errors import LabError
from labs_lib.kernels.checks import refuse_where, require_mask, require_shape


class ClippedSurrogate(NamedTuple):
    """Per token, each (A, T). ``outside`` says where the ratio is, ``clip_active`` where the gradient is 0."""

    loss: torch.Tensor
    ratio: torch.Tensor
    clip_active: torch.Tensor
    outside: torch.Tensor


class SurrogateAudit(NamedTuple):
    """Over the active tokens: their number, two shares in 0..1 and the largest |ratio - 1|."""

    tokens: int
    active_clip_share: float
    outside_share: float
    max_ratio_deviation: float


def clipped_surrogate(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    mask: torch.Tensor | None = None,
) -> ClippedSurrogate:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), to minimise; ratio = e^(now - old).

    Schulman et al. (2017), "Proximal Policy Optimization Algorithms", arXiv:1707.06347, equation 7.
    logprobs and old_logprobs (A, T) in nats; advantages (A,), one per answer, or (A, T), one per token.
    The clip is one-sided: it removes the gradient only where moving on would *improve* the objective, that
    is A > 0 above 1 + clip_high or A < 0 below 1 - clip_low (``clip_active``); ``outside`` counts both sides.
    With ``mask`` (A, T) bool, padding may hold anything, NaN included: there the ratio is 1, the loss and its
    gradient 0, both flags False. Raises LabError for old log-probs or advantages that require grad, shapes
    that differ, a clip out of range, and an active ratio or loss that is not finite, naming its place.
    """
    _require_constant(old_logprobs, "old_logprobs", "pass the log-probs captured while sampling")
    _require_constant(advantages, "advantages", "detach them, they only weigh the gradient")
    _require_clip(clip_low, clip_high)
    mask = torch.ones_like(logprobs, dtype=torch.bool) if mask is None else mask
    require_mask(mask, logprobs.shape)
    require_shape(old_logprobs, logprobs.shape, "old_logprobs", "that of logprobs")
    advantages = _per_token(advantages, logprobs.shape)
    # Masked before the exponential: a mask on the result alone gives 0 * inf = NaN in the backward.
    ratio = torch.where(mask, logprobs - old_logprobs, 0.0).exp()
    advantages = torch.where(mask, advantages, 0.0)
    lowest, highest = 1.0 - clip_low, 1.0 + clip_high
    loss = -torch.minimum(ratio * advantages, ratio.clamp(lowest, highest) * advantages)
    usable = ratio.detach().isfinite() & loss.detach().isfinite()
    refuse_where(~usable, "A ratio or surrogate that is not finite", "check the log-probs and the advantages")
    above, below = ratio.detach() > highest, ratio.detach() < lowest
    clip_active = (above & (advantages > 0)) | (below & (advantages < 0))
    return ClippedSurrogate(loss=loss, ratio=ratio, clip_active=clip_active, outside=above | below)


def surrogate_audit(surrogate: ClippedSurrogate, mask: torch.Tensor) -> SurrogateAudit:
    """What the clip did over the active tokens of ``mask`` (A, T) bool.

    Before the first update of a rollout max_ratio_deviation is rounding; before the second it must be larger.
    Exactly 0 there means that the "old" log-probs are recomputed, and no clip will ever act.
    Raises LabError for a mask of another shape or dtype, or without active token.
    """
    require_mask(mask, surrogate.ratio.shape)
    tokens = int(mask.sum())
    if tokens == 0:
        raise LabError("mask has no active token: audit a batch with at least one answer token.")
    return SurrogateAudit(
        tokens=tokens,
        active_clip_share=int(surrogate.clip_active[mask].sum()) / tokens,
        outside_share=int(surrogate.outside[mask].sum()) / tokens,
        max_ratio_deviation=float((surrogate.ratio.detach()[mask] - 1.0).abs().max()),
    )


def _per_token(advantages: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """(A,) -> (A, 1), which broadcasts over tokens; (A, T) as it is; anything else is an error."""
    if advantages.ndim == 1:
        require_shape(advantages, shape[:1], "advantages", "one per answer")
        return advantages.unsqueeze(1)
    require_shape(advantages, shape, "advantages", "one per answer or one per token")
    return advantages


def _require_constant(tensor: torch.Tensor, name: str, remedy: str) -> None:
    if tensor.requires_grad:
        raise LabError(f"{name} requires grad, but it is a constant of the objective: {remedy}.")


def _require_clip(clip_low: float, clip_high: float) -> None:
    if not (0 <= clip_low < 1 and clip_high >= 0):
        raise LabError(f"clip range [1 - {clip_low}, 1 + {clip_high}]: use 0 <= clip_low < 1 and clip_high >= 0.")
