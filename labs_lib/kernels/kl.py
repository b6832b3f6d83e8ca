"""Kullback-Leibler divergence KL(policy || reference) per prefix: exact over the vocabulary, and sampled.

The exact value sums over every token of the vocabulary, so it does not depend on which token was sampled.
"One pass" means that no block of logits is looked at twice in the forward: a running maximum is kept and
old sums are rescaled whenever it grows (Milakov and Gimelshein 2018, "Online normalizer calculation for
softmax", arXiv:1805.02867, section 3), here extended to the KL and the entropy.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch.autograd.function import once_differentiable

from labs_lib.errors import LabError
from labs_lib.kernels.checks import accumulation_dtype, require_ids, require_shape
from labs_lib.kernels.logprobs import require_usable_normaliser

Block = tuple[int, torch.Tensor, torch.Tensor]  # first token id, policy logits, reference logits


class PrefixStatistics(NamedTuple):
    """For every prefix, shape (...): log-probability of the id, exact KL and entropy, in nats."""

    logprobs: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor


class KLEstimates(NamedTuple):
    """The three sampled estimators of KL(policy || reference), each of the shape of the log-probs."""

    k1: torch.Tensor
    k2: torch.Tensor
    k3: torch.Tensor


def exact_kl_reference(policy_logits: torch.Tensor, reference_logits: torch.Tensor) -> torch.Tensor:
    """KL = sum_v p (log p - log q), the dense formula: two (..., V) logits -> (...), in nats.

    p = 0 contributes 0 (0 log 0 = 0); p > 0 where q = 0 makes the KL +inf. Keeps several (..., V) tensors:
    it is the formula to read and to test against, best in FP64. Differentiable in both arguments.
    """
    logp = torch.log_softmax(policy_logits, dim=-1)
    logq = torch.log_softmax(reference_logits, dim=-1)
    gap = (logp - logq).masked_fill(logp == -torch.inf, 0.0)
    unsupported = (logq == -torch.inf) & (logp > -torch.inf)
    return torch.where(unsupported, torch.inf, logp.exp() * gap).sum(dim=-1)


def prefix_statistics(
    policy_logits: torch.Tensor,
    reference_logits: torch.Tensor,
    ids: torch.Tensor,
    block: int,
    use_triton: bool | None = None,
) -> PrefixStatistics:
    """Log-prob of ``ids``, exact KL(policy || reference) and entropy in one pass over blocks of V.

    Logits (..., V) float, ids (...) int64; ``block`` >= 1 need not divide V. Returns three (...) tensors in
    FP32 (FP64 for FP64 logits). Gradients flow to the policy logits only; the reference is a constant, and a
    second derivative is refused. p = 0 contributes 0; p > 0 where q = 0 makes the KL +inf (its gradient is
    then not finite). Raises LabError for NaN, +inf, a row of only -inf, mismatched shapes, ids out of range.
    ``use_triton`` forces ``kernels/triton_kl.py`` (whose blocks are its own) or torch; None: Triton on CUDA.
    """
    require_shape(reference_logits, policy_logits.shape, "reference_logits", "that of policy_logits")
    _require_block(block)
    require_ids(ids, policy_logits.shape[:-1], policy_logits.shape[-1])
    if _chooses_triton(policy_logits, use_triton):
        from labs_lib.kernels.triton_kl import FromLogits

        return PrefixStatistics(*FromLogits.apply(policy_logits, reference_logits, ids))
    return PrefixStatistics(*_FromLogits.apply(policy_logits, reference_logits, ids, block))


def prefix_statistics_from_hidden(
    hidden: torch.Tensor,
    unembedding: torch.Tensor,
    reference_hidden: torch.Tensor,
    reference_unembedding: torch.Tensor,
    ids: torch.Tensor,
    block: int,
    use_triton: bool | None = None,
) -> PrefixStatistics:
    """``prefix_statistics`` of logits = hidden @ unembedding.T, of which one block at a time exists.

    hidden and reference_hidden (..., H), unembeddings (V, H), ids (...) int64: the last hidden states (after
    the final norm) at the positions that predict ids. The two models may differ in H, not in V.
    Gradients flow to ``hidden`` and ``unembedding``, summed in FP32 (FP64 for FP64 hidden states) and returned
    in the dtype of each; BF16 inputs are BF16 operands with FP32 sums. Errors as in ``prefix_statistics``.
    """
    require_shape(reference_hidden[..., 0], hidden.shape[:-1], "reference_hidden", "the rows of hidden")
    _require_unembedding(unembedding, hidden, "unembedding", len(unembedding))
    _require_unembedding(reference_unembedding, reference_hidden, "reference_unembedding", len(unembedding))
    _require_block(block)
    require_ids(ids, hidden.shape[:-1], len(unembedding))
    inputs = (hidden, unembedding, reference_hidden, reference_unembedding, ids, block)
    if _chooses_triton(hidden, use_triton):
        from labs_lib.kernels.triton_kl import FromHidden

        return PrefixStatistics(*FromHidden.apply(*inputs))
    return PrefixStatistics(*_FromHidden.apply(*inputs))


def sampled_kl_estimators(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> KLEstimates:
    """Schulman (2020), "Approximating KL Divergence": what one sampled token says about KL(policy || ref).

    Both arguments (...) are log-probs of a token *drawn from the policy*. With d = logprobs - reference:
    k1 = d (unbiased, any sign), k2 = d^2/2 (biased, >= 0), k3 = exp(-d) - 1 + d (unbiased, >= 0).
    Differentiable, and there they part from their values: for tokens drawn from the current policy the mean
    gradient of k1 is 0, of k2 the exact gradient of KL(policy || ref), of k3 that of KL(ref || policy).
    Raises LabError when the shapes differ.
    """
    require_shape(reference_logprobs, logprobs.shape, "reference_logprobs", "that of logprobs")
    d = logprobs - reference_logprobs
    return KLEstimates(k1=d, k2=d.square() / 2, k3=torch.expm1(-d) + d)


@cache
def _triton_compiles() -> bool:
    """Whether Triton is installed and compiles: interpreted, as in the tests, it is slower than torch."""
    try:
        from triton import knobs
    except ImportError:
        return False
    return not knobs.runtime.interpret


def _chooses_triton(tensor: torch.Tensor, forced: bool | None) -> bool:
    if forced is not None:
        return forced
    return tensor.is_cuda and tensor.dtype != torch.float64 and _triton_compiles()


def _require_block(block: int) -> None:
    if not isinstance(block, int) or block < 1:
        raise LabError(f"block is {block!r}: give the number of tokens per vocabulary block, 1 or more.")


def _require_unembedding(matrix: torch.Tensor, hidden: torch.Tensor, name: str, vocabulary: int) -> None:
    require_shape(matrix, torch.Size((vocabulary, hidden.shape[-1])), name, "vocabulary x hidden size")


class _Running(NamedTuple):
    """What one pass remembers per row, each (...). z: policy logits, m: their maximum; y, n: the reference's.

    Centring t by both maxima, where the textbook sum has z - y, costs nothing and keeps a KL near 0 precise
    in FP32 when the logits are large.
    """

    m: torch.Tensor
    n: torch.Tensor
    s: torch.Tensor  # sum of e^(z-m)
    r: torch.Tensor  # sum of e^(y-n)
    t: torch.Tensor  # sum of e^(z-m) * ((z-m) - (y-n))
    u: torch.Tensor  # sum of e^(z-m) * (z-m)
    chosen: torch.Tensor  # z[id] once its block has been seen


class _Normalisers(NamedTuple):
    """What the backward needs per row to turn a recomputed block of logits into log-probabilities."""

    m: torch.Tensor
    log_s: torch.Tensor
    n: torch.Tensor
    log_r: torch.Tensor


def _logit_blocks(policy: torch.Tensor, reference: torch.Tensor, block: int) -> Iterator[Block]:
    dtype = accumulation_dtype(policy)
    for start in range(0, policy.shape[-1], block):
        stop = start + block
        yield start, policy[..., start:stop].to(dtype), reference[..., start:stop].to(dtype)


def _hidden_blocks(hidden, unembedding, reference_hidden, reference_unembedding, block) -> Iterator[Block]:
    dtype = accumulation_dtype(hidden)
    hidden, reference_hidden = hidden.to(dtype), reference_hidden.to(dtype)
    for start in range(0, len(unembedding), block):
        rows = slice(start, start + block)
        policy = hidden @ unembedding[rows].to(dtype).T
        yield start, policy, reference_hidden @ reference_unembedding[rows].to(dtype).T


def _locate(ids: torch.Tensor, start: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Index of each id within the block, as (..., 1) clamped into it, and whether it really lies there."""
    local = ids - start
    index = local.clamp(0, width - 1)
    return index.unsqueeze(-1), index == local


def _absorb(run: _Running, start: int, z: torch.Tensor, y: torch.Tensor, ids: torch.Tensor) -> _Running:
    """Add one block: bring the old sums to the new maxima, then add the block's own terms."""
    index, inside = _locate(ids, start, z.shape[-1])
    chosen = torch.where(inside, z.gather(-1, index).squeeze(-1), run.chosen)
    impossible = z == -torch.inf
    m, n = torch.maximum(run.m, z.amax(dim=-1)), torch.maximum(run.n, y.amax(dim=-1))
    # From here on in place wherever the values allow it: fresh memory for every term costs more than the term.
    z, y = z - m.unsqueeze(-1), y - n.unsqueeze(-1)
    weight = z.exp()
    gap = (z - y).masked_fill_(impossible, 0.0)  # 0 log 0 = 0, also where the reference is 0
    z.masked_fill_(impossible, 0.0)
    m_step, n_step = run.m - m, run.n - n
    shrink = m_step.exp()
    return _Running(
        m=m,
        n=n,
        s=shrink * run.s + weight.sum(dim=-1),
        r=n_step.exp() * run.r + y.exp_().sum(dim=-1),
        t=shrink * (run.t + run.s * (m_step - n_step)) + gap.mul_(weight).sum(dim=-1),
        u=shrink * (run.u + run.s * m_step) + z.mul_(weight).sum(dim=-1),
        chosen=chosen,
    )


def _one_pass(blocks: Iterable[Block], ids: torch.Tensor, like: torch.Tensor):
    """Walk the blocks once -> (PrefixStatistics, _Normalisers); rows without a distribution are refused."""
    dtype = accumulation_dtype(like)
    zero = torch.zeros(ids.shape, dtype=dtype, device=like.device)
    # A finite start, since -inf - (-inf) is NaN should the first block hold only -inf.
    lowest = torch.full_like(zero, torch.finfo(dtype).min)
    run = _Running(lowest, lowest, zero, zero, zero, zero, zero)
    for start, z, y in blocks:
        run = _absorb(run, start, z, y, ids)
    log_s, log_r = run.s.log(), run.r.log()
    require_usable_normaliser(run.m + log_s, "policy logits")
    require_usable_normaliser(run.n + log_r, "reference logits")
    kl = run.t / run.s - log_s + log_r
    # With usable rows NaN has one source, 0 * inf: underflowed policy mass where the reference has none.
    kl = kl.masked_fill(kl.isnan(), torch.inf)
    statistics = PrefixStatistics(run.chosen - run.m - log_s, kl, log_s - run.u / run.s)
    return statistics, _Normalisers(run.m, log_s, run.n, log_r)


def _block_gradient(start, z, y, ids, normalisers, statistics, upstream) -> torch.Tensor:
    """Gradient (..., block) of the three statistics by the policy logits of one recomputed block.

    d logprob = onehot - p,  d KL = p (log p - log q - KL),  d entropy = -p (log p + entropy).
    """
    m, log_s, n, log_r = (row.unsqueeze(-1) for row in normalisers)
    by_logprob, by_kl, by_entropy = upstream
    logp = (z - m).sub_(log_s)
    p = logp.exp()
    gap = (y - n).sub_(log_r)
    torch.sub(logp, gap, out=gap)
    # Entries with p = 0 have no gradient: their infinite logarithms must not turn 0 * inf into NaN.
    logp.nan_to_num_(nan=torch.nan, neginf=0.0)
    gap.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    # A masked token (no upstream gradient) stays without gradient even where its KL is infinite.
    kl_term = torch.where(by_kl == 0, 0.0, by_kl * statistics.kl)
    constant = by_logprob + kl_term + by_entropy * statistics.entropy
    slope = gap.mul_(by_kl.unsqueeze(-1)).sub_(logp.mul_(by_entropy.unsqueeze(-1))).sub_(constant.unsqueeze(-1))
    index, inside = _locate(ids, start, z.shape[-1])
    onehot_part = torch.where(inside, by_logprob, 0.0).unsqueeze(-1)
    return p.mul_(slope).scatter_add_(-1, index, onehot_part)


class _FromLogits(torch.autograd.Function):
    """One pass forward; the backward walks the blocks again and keeps nothing (..., V) but the gradient."""

    @staticmethod
    def forward(ctx, policy, reference, ids, block):
        statistics, normalisers = _one_pass(_logit_blocks(policy, reference, block), ids, policy)
        ctx.save_for_backward(policy, reference, ids, *normalisers, *statistics)
        ctx.block = block
        return tuple(statistics)

    @staticmethod
    @once_differentiable
    def backward(ctx, *upstream):
        policy, reference, ids, *rows = ctx.saved_tensors
        known = _Normalisers(*rows[:4]), PrefixStatistics(*rows[4:])
        gradient = torch.empty_like(policy)
        for start, z, y in _logit_blocks(policy, reference, ctx.block):
            gradient[..., start : start + ctx.block] = _block_gradient(start, z, y, ids, *known, upstream)
        return gradient, None, None, None


class _FromHidden(torch.autograd.Function):
    """The same from hidden states: logits and their gradient exist for one block at a time."""

    @staticmethod
    def forward(ctx, hidden, unembedding, reference_hidden, reference_unembedding, ids, block):
        sources = hidden, unembedding, reference_hidden, reference_unembedding
        statistics, normalisers = _one_pass(_hidden_blocks(*sources, block), ids, hidden)
        ctx.save_for_backward(*sources, ids, *normalisers, *statistics)
        ctx.block = block
        return tuple(statistics)

    @staticmethod
    @once_differentiable
    def backward(ctx, *upstream):
        *sources, ids = ctx.saved_tensors[:5]
        known = _Normalisers(*ctx.saved_tensors[5:9]), PrefixStatistics(*ctx.saved_tensors[9:])
        hidden, unembedding = sources[:2]
        dtype = accumulation_dtype(hidden)
        rows = hidden.reshape(-1, hidden.shape[-1]).to(dtype)
        hidden_gradient = torch.zeros_like(rows)
        # Every block owns its rows of the unembedding, so each of them is written exactly once.
        matrix_gradient = torch.empty_like(unembedding, dtype=dtype) if ctx.needs_input_grad[1] else None
        for start, z, y in _hidden_blocks(*sources, ctx.block):
            dz = _block_gradient(start, z, y, ids, *known, upstream).reshape(len(rows), -1)
            part = slice(start, start + ctx.block)
            hidden_gradient.addmm_(dz, unembedding[part].to(dtype))
            if matrix_gradient is not None:
                matrix_gradient[part] = dz.T @ rows
        if matrix_gradient is not None:
            matrix_gradient = matrix_gradient.to(unembedding.dtype)
        return hidden_gradient.view(hidden.shape).to(hidden.dtype), matrix_gradient, None, None, None, None
