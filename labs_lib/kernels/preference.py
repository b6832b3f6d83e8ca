"""Losses on pairs, chosen against rejected: Bradley-Terry for a judge, DPO for a policy.

N pairs; every argument (N,) float, row by row the two sides of one pair. Reduce with a mean over the pairs.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

from labs_lib.errors import LabError
from labs_lib.kernels.checks import accumulation_dtype, refuse_where, require_shape


class DpoLoss(NamedTuple):
    """Per pair, each (N,). ``margin`` is the argument of the sigmoid, beta included: > 0 where chosen is ahead."""

    loss: torch.Tensor
    margin: torch.Tensor


def bradley_terry_loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """-log sigmoid(chosen - rejected), the negative log-probability of the observed preference: (N,).

    Bradley and Terry (1952), "Rank Analysis of Incomplete Block Designs I", Biometrika 39; as a reward model's
    loss in Stiennon et al. (2020), arXiv:2009.01325, section 3.4. Scores (N,) have no unit and no zero: only
    their difference d enters. Gradient by chosen -(1 - sigmoid(d)), by rejected its opposite; no overflow for
    any finite d. FP32 (FP64 for FP64 scores). Raises LabError for other shapes and scores that are not finite.
    """
    _require_pairs(chosen=chosen, rejected=rejected)
    dtype = accumulation_dtype(chosen)
    return -logsigmoid(chosen.to(dtype) - rejected.to(dtype))


def dpo_loss(
    chosen_logprob: torch.Tensor,
    rejected_logprob: torch.Tensor,
    reference_chosen: torch.Tensor,
    reference_rejected: torch.Tensor,
    beta: float,
) -> DpoLoss:
    """-log sigmoid(beta * [(chosen - its reference) - (rejected - its reference)]): (N,).

    Rafailov et al. (2023), "Direct Preference Optimization", arXiv:2305.18290, equation 7: Bradley-Terry on the
    implicit rewards beta * log(policy / reference). Each argument (N,) is the log-probability, in nats, of a
    whole answer: the *sum* over its tokens and EOS. Gradient by chosen_logprob -beta * (1 - sigmoid(margin)),
    by rejected_logprob its opposite; policy = reference gives log 2. FP32 (FP64 for FP64 log-probs).
    Raises LabError for references that require grad, other shapes, a value that is not finite, beta not > 0.
    """
    for name, reference in (("reference_chosen", reference_chosen), ("reference_rejected", reference_rejected)):
        if reference.requires_grad:
            raise LabError(f"{name} requires grad, but the reference is frozen: score it without autograd.")
    if not 0 < beta < float("inf"):
        raise LabError(f"beta is {beta!r}: it weighs the distance to the reference, give a finite number > 0.")
    _require_pairs(
        chosen_logprob=chosen_logprob,
        rejected_logprob=rejected_logprob,
        reference_chosen=reference_chosen,
        reference_rejected=reference_rejected,
    )
    dtype = accumulation_dtype(chosen_logprob)
    chosen = beta * (chosen_logprob.to(dtype) - reference_chosen.to(dtype))
    rejected = beta * (rejected_logprob.to(dtype) - reference_rejected.to(dtype))
    margin = chosen - rejected
    return DpoLoss(loss=-logsigmoid(margin), margin=margin)


def _require_pairs(**sides: torch.Tensor) -> None:
    pairs = torch.Size((next(iter(sides.values())).numel(),))
    for name, tensor in sides.items():
        require_shape(tensor, pairs, name, "one per pair")
        refuse_where(~tensor.isfinite(), f"A value of {name} that is not finite", "check the model it comes from")
