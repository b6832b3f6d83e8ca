"""Log-probabilities of chosen tokens and the entropy of a categorical distribution given by logits."""

import torch

from labs_lib.kernels.checks import accumulation_dtype, refuse_where, require_ids

REMEDY = "the model diverged or was loaded wrongly, reload the last good checkpoint or lower the learning rate"


def require_usable_normaliser(log_normaliser: torch.Tensor, name: str) -> None:
    """Refuse rows without a distribution, judged by their log-normaliser alone: O(rows), not O(rows * V).

    NaN or +inf anywhere in a row makes it NaN or +inf, and only a row of -inf makes it -inf.
    """
    refuse_where(log_normaliser.isnan() | (log_normaliser == torch.inf), f"NaN or +inf in the {name}", REMEDY)
    refuse_where(log_normaliser == -torch.inf, f"A row of only -inf in the {name}", REMEDY)


def selected_logprobs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Natural log-probability of each id: z[id] - logsumexp(z), no (..., V) log-softmax is kept.

    logits (..., V) float, ids (...) int64 in 0..V-1; returns (...) in FP32 (FP64 for FP64 logits).
    logits[t] must be those that *predict* ids[t], that is the model's output one position earlier.
    An id whose logit is -inf has log-probability -inf. Rounding is about 1e-7 * max|logit| in FP32.
    Raises LabError for NaN or +inf logits, a row of only -inf, ids of a wrong shape, dtype or range.
    """
    require_ids(ids, logits.shape[:-1], logits.shape[-1])
    logits = logits.to(accumulation_dtype(logits))
    log_normaliser = torch.logsumexp(logits, dim=-1)
    require_usable_normaliser(log_normaliser.detach(), "logits")
    return logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - log_normaliser


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy -sum_v p log p, in nats, of softmax(logits): (..., V) float -> (...) FP32 (FP64 for FP64).

    A token of probability 0 (logit -inf) contributes 0. Raises LabError for NaN or +inf logits and for a
    row of only -inf. Plain and dense; ``kl.prefix_statistics`` gives the same blockwise.
    """
    logits = logits.to(accumulation_dtype(logits))
    require_usable_normaliser(logits.detach().logsumexp(dim=-1), "logits")
    logp = torch.log_softmax(logits, dim=-1)
    # 0 * -inf is NaN in floating point, but its limit p log p -> 0 is what entropy means.
    return -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(dim=-1)
