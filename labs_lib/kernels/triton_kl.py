"""The Triton version of ``kernels/kl.py``: log-probability, exact KL and entropy in one pass over the vocabulary.

Chosen on CUDA by ``kl.prefix_statistics`` and ``kl.prefix_statistics_from_hidden``, whose definitions, refusals and
conventions hold here too: -inf logits, KL = +inf, no gradient from a masked row. FP32 and 16-bit floats, FP32 sums.

A row's vocabulary may be shared out over several programs, "splits", so that few rows fill a GPU. Each split walks its
part once and leaves a state per row (Milakov and Gimelshein 2018, arXiv:1805.02867, section 3, extended to the KL and
the entropy); a second, small kernel combines the states in a fixed order. No atomics, and sizes that depend on shapes
alone: the same call gives the same bits. `autotune` would choose them by time, and with them the order of the sums.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from labs_lib.errors import LabError
from labs_lib.kernels.logprobs import require_usable_normaliser

LOWEST = tl.constexpr(torch.finfo(torch.float32).min)  # a finite start: -inf - (-inf) is NaN
STATE = tl.constexpr(7)  # numbers per row and split: m, n, s, r, t, u and the chosen logit
MERGED_ROWS = 32


class Tile(NamedTuple):
    """What one program holds at a time: rows x columns of logits; ``depth`` of the hidden size for each product."""

    rows: int
    columns: int
    depth: int
    warps: int


# Rows as long as a vocabulary are read at the memory's speed by one program each, 16 logits per thread.
FROM_LOGITS = Tile(rows=1, columns=4096, depth=0, warps=8)
# Two products are held at a time, policy's and reference's. FP32 ones run outside of the tensor cores (no TF32).
FROM_HIDDEN_HALF = Tile(rows=64, columns=128, depth=64, warps=8)
FROM_HIDDEN_SINGLE = Tile(rows=64, columns=64, depth=32, warps=8)
PROGRAMS = 1024  # enough to keep any of today's GPUs busy; fixed, so that results do not depend on the GPU


@triton.jit
def _block_state(z, y):
    """m, n, s, r, t, u of one tile, (rows, columns) -> six (rows,): see ``_Running`` in ``kernels/kl.py``."""
    m = tl.maximum(tl.max(z, axis=1), LOWEST)
    n = tl.maximum(tl.max(y, axis=1), LOWEST)
    impossible = z == float("-inf")
    z = z - m[:, None]
    y = y - n[:, None]
    weight = tl.exp(z)
    gap = tl.where(impossible, 0.0, z - y)  # 0 log 0 = 0, also where the reference is 0
    z = tl.where(impossible, 0.0, z)
    s = tl.sum(weight, axis=1)
    r = tl.sum(tl.exp(y), axis=1)
    return m, n, s, r, tl.sum(weight * gap, axis=1), tl.sum(weight * z, axis=1)


@triton.jit
def _combine(m, n, s, r, t, u, other_m, other_n, other_s, other_r, other_t, other_u):
    """The state of two parts of the vocabulary together: both brought to the larger maxima, then added."""
    top, reference_top = tl.maximum(m, other_m), tl.maximum(n, other_n)
    step, other_step = m - top, other_m - top
    reference_step, other_reference_step = n - reference_top, other_n - reference_top
    shrink, other_shrink = tl.exp(step), tl.exp(other_step)
    t = shrink * (t + s * (step - reference_step))
    t += other_shrink * (other_t + other_s * (other_step - other_reference_step))
    u = shrink * (u + s * step) + other_shrink * (other_u + other_s * other_step)
    s = shrink * s + other_shrink * other_s
    r = tl.exp(reference_step) * r + tl.exp(other_reference_step) * other_r
    return top, reference_top, s, r, t, u


@triton.jit
def _nothing_seen(ROWS: tl.constexpr):
    lowest = tl.full((ROWS,), LOWEST, tl.float32)
    zero = tl.zeros((ROWS,), tl.float32)
    return lowest, lowest, zero, zero, zero, zero


@triton.jit
def _store_state(states, split, row, rows, m, n, s, r, t, u, chosen):
    place = states + split.to(tl.int64) * STATE * rows + row
    inside = row < rows
    tl.store(place, m, mask=inside)
    tl.store(place + rows, n, mask=inside)
    tl.store(place + 2 * rows, s, mask=inside)
    tl.store(place + 3 * rows, r, mask=inside)
    tl.store(place + 4 * rows, t, mask=inside)
    tl.store(place + 5 * rows, u, mask=inside)
    tl.store(place + 6 * rows, chosen, mask=inside)


@triton.jit
def _row_pointers(base, row, inner, outer_stride, inner_stride):
    """Where the rows of an (outer, inner, columns) tensor start; it need not be contiguous."""
    row = row.to(tl.int64)
    return base + (row // inner) * outer_stride + (row % inner) * inner_stride


@triton.jit
def _logits_kernel(
    policy, reference, ids, states, rows, columns, width, inner,
    policy_outer, policy_inner, policy_step, reference_outer, reference_inner, reference_step,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One split of ROWS rows: walks ``width`` columns and stores the state; grid (row tiles, splits)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    policy_rows = _row_pointers(policy, row, inner, policy_outer, policy_inner)
    reference_rows = _row_pointers(reference, row, inner, reference_outer, reference_inner)
    first = split * width
    last = tl.minimum(first + width, columns)
    m, n, s, r, t, u = _nothing_seen(ROWS)
    for start in range(first, last, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < last)[None, :]
        z = tl.load(policy_rows[:, None] + column[None, :] * policy_step, mask=inside, other=float("-inf"))
        y = tl.load(reference_rows[:, None] + column[None, :] * reference_step, mask=inside, other=float("-inf"))
        bm, bn, bs, br, bt, bu = _block_state(z.to(tl.float32), y.to(tl.float32))
        m, n, s, r, t, u = _combine(m, n, s, r, t, u, bm, bn, bs, br, bt, bu)
    token = tl.load(ids + row, mask=row < rows, other=-1)
    chosen = tl.load(policy_rows + token * policy_step, mask=(token >= first) & (token < last), other=0.0)
    _store_state(states, split, row, rows, m, n, s, r, t, u, chosen.to(tl.float32))


@triton.jit
def _tile_of_logits(
    hidden_rows, matrix_rows, row_inside, column_inside, depth, hidden_step, matrix_step,
    UPCAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """hidden @ unembedding.T of one tile, FP32 sums; columns beyond the vocabulary are impossible tokens."""
    z = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        in_rows = row_inside[:, None] & (k < depth)[None, :]
        in_matrix = (k < depth)[:, None] & column_inside[None, :]
        h = tl.load(hidden_rows[:, None] + k[None, :] * hidden_step, mask=in_rows, other=0.0)
        w = tl.load(matrix_rows[None, :] + k[:, None] * matrix_step, mask=in_matrix, other=0.0)
        if UPCAST:
            h, w = h.to(tl.float32), w.to(tl.float32)
        z = tl.dot(h, w, z, input_precision="ieee")
    return tl.where(column_inside[None, :], z, float("-inf"))


@triton.jit
def _hidden_kernel(
    hidden, matrix, reference_hidden, reference_matrix, ids, states, rows, columns, width, depth, reference_depth,
    hidden_row, hidden_step, matrix_row, matrix_step,
    reference_row, reference_step, reference_matrix_row, reference_matrix_step,
    UPCAST: tl.constexpr, REFERENCE_UPCAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """As ``_logits_kernel``, but the logits of a tile are products that exist in registers only.

    Row tiles are the fast axis of the grid: the programs that run together read the same rows of the unembeddings.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    here = row < rows
    hidden_rows = hidden + row.to(tl.int64) * hidden_row
    reference_rows = reference_hidden + row.to(tl.int64) * reference_row
    token = tl.load(ids + row, mask=here, other=-1)
    first = split * width
    last = tl.minimum(first + width, columns)
    m, n, s, r, t, u = _nothing_seen(ROWS)
    chosen = tl.zeros((ROWS,), tl.float32)
    for start in range(first, last, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        known = column < last
        matrix_rows = matrix + column.to(tl.int64) * matrix_row
        z = _tile_of_logits(
            hidden_rows, matrix_rows, here, known, depth, hidden_step, matrix_step, UPCAST, ROWS, COLUMNS, DEPTH
        )
        matrix_rows = reference_matrix + column.to(tl.int64) * reference_matrix_row
        y = _tile_of_logits(
            reference_rows, matrix_rows, here, known, reference_depth, reference_step, reference_matrix_step,
            REFERENCE_UPCAST, ROWS, COLUMNS, DEPTH,
        )  # fmt: skip
        chosen += tl.sum(tl.where(column[None, :] == token[:, None], z, 0.0), axis=1)
        bm, bn, bs, br, bt, bu = _block_state(z, y)
        m, n, s, r, t, u = _combine(m, n, s, r, t, u, bm, bn, bs, br, bt, bu)
    _store_state(states, split, row, rows, m, n, s, r, t, u, chosen)


@triton.jit
def _merge_kernel(states, splits, rows, logprobs, kl, entropy, normalisers, ROWS: tl.constexpr):
    """States of all splits -> the three statistics, and m, log s, n, log r for the backward."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    m, n, s, r, t, u = _nothing_seen(ROWS)
    chosen = tl.zeros((ROWS,), tl.float32)
    place = states + row
    for _ in range(0, splits):
        m, n, s, r, t, u = _combine(
            m, n, s, r, t, u,
            tl.load(place, mask=inside, other=0.0),
            tl.load(place + rows, mask=inside, other=0.0),
            tl.load(place + 2 * rows, mask=inside, other=0.0),
            tl.load(place + 3 * rows, mask=inside, other=0.0),
            tl.load(place + 4 * rows, mask=inside, other=0.0),
            tl.load(place + 5 * rows, mask=inside, other=0.0),
        )  # fmt: skip
        chosen += tl.load(place + 6 * rows, mask=inside, other=0.0)
        place += STATE * rows
    log_s, log_r = tl.log(s), tl.log(r)
    divergence = t / s - log_s + log_r
    # With usable rows NaN has one source, 0 * inf: underflowed policy mass where the reference has none.
    tl.store(kl + row, tl.where(divergence != divergence, float("inf"), divergence), mask=inside)
    tl.store(logprobs + row, chosen - m - log_s, mask=inside)
    tl.store(entropy + row, log_s - u / s, mask=inside)
    tl.store(normalisers + row, m, mask=inside)
    tl.store(normalisers + rows + row, log_s, mask=inside)
    tl.store(normalisers + 2 * rows + row, n, mask=inside)
    tl.store(normalisers + 3 * rows + row, log_r, mask=inside)


@triton.jit
def _slopes(row, inside, rows, upstream, kl, entropy):
    """Per row: by log-prob, by KL, by entropy, and the constant that is subtracted from every token's slope."""
    by_logprob = tl.load(upstream + row, mask=inside, other=0.0)
    by_kl = tl.load(upstream + rows + row, mask=inside, other=0.0)
    by_entropy = tl.load(upstream + 2 * rows + row, mask=inside, other=0.0)
    # A masked token (no upstream gradient) stays without gradient even where its KL is infinite.
    kl_part = tl.where(by_kl == 0, 0.0, by_kl * tl.load(kl + row, mask=inside, other=0.0))
    constant = by_logprob + kl_part + by_entropy * tl.load(entropy + row, mask=inside, other=0.0)
    return by_logprob, by_kl, by_entropy, constant


@triton.jit
def _gradient_kernel(
    gradient, policy, reference, ids, upstream, kl, entropy, normalisers, rows, columns, first, inner,
    gradient_outer, gradient_inner, gradient_step, policy_outer, policy_inner, policy_step,
    reference_outer, reference_inner, reference_step, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradient of one tile of policy logits, whose columns are the tokens from ``first`` on; may overwrite them.

    d logprob = onehot - p,  d KL = p (log p - log q - KL),  d entropy = -p (log p + entropy).
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = row < rows
    inside = here[:, None] & (column < columns)[None, :]
    policy_rows = _row_pointers(policy, row, inner, policy_outer, policy_inner)
    reference_rows = _row_pointers(reference, row, inner, reference_outer, reference_inner)
    z = tl.load(policy_rows[:, None] + column[None, :] * policy_step, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(reference_rows[:, None] + column[None, :] * reference_step, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(normalisers + row, mask=here, other=0.0)
    log_s = tl.load(normalisers + rows + row, mask=here, other=0.0)
    n = tl.load(normalisers + 2 * rows + row, mask=here, other=0.0)
    log_r = tl.load(normalisers + 3 * rows + row, mask=here, other=0.0)
    logp = z - m[:, None] - log_s[:, None]
    p = tl.exp(logp)
    gap = logp - (y - n[:, None] - log_r[:, None])
    # Entries with p = 0 have no gradient: their infinite logarithms must not turn 0 * inf into NaN.
    logp = tl.where(logp == float("-inf"), 0.0, logp)
    gap = tl.where(tl.abs(gap) < float("inf"), gap, 0.0)
    by_logprob, by_kl, by_entropy, constant = _slopes(row, here, rows, upstream, kl, entropy)
    slope = by_kl[:, None] * gap - by_entropy[:, None] * logp - constant[:, None]
    token = tl.load(ids + row, mask=here, other=-1)
    onehot = (first + column)[None, :] == token[:, None]
    value = p * slope + tl.where(onehot, by_logprob[:, None], 0.0)
    gradient_rows = _row_pointers(gradient, row, inner, gradient_outer, gradient_inner)
    place = gradient_rows[:, None] + column[None, :] * gradient_step
    tl.store(place, value.to(gradient.dtype.element_ty), mask=inside)


# --- Launching --------------------------------------------------------------------------------------------------


class _PerRow(NamedTuple):
    """Results of the one pass: three statistics (N,), and (4, N) normalisers m, log s, n, log r; all FP32."""

    logprobs: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor
    normalisers: torch.Tensor


def require_triton(tensor: torch.Tensor) -> None:
    """Raise LabError where these kernels cannot run: FP64, or a CPU tensor outside of Triton's interpreter."""
    if tensor.dtype == torch.float64:
        raise LabError("The Triton kernels sum in FP32: pass FP32 or BF16 tensors, or use_triton=False for FP64.")
    if not (tensor.is_cuda or triton.knobs.runtime.interpret):
        raise LabError(
            "The Triton kernels need CUDA tensors: move them to a GPU, use use_triton=False, or set "
            "TRITON_INTERPRET=1 before Python starts to interpret the kernels on the CPU."
        )


def _by_rows(tensor: torch.Tensor) -> torch.Tensor:
    """(..., V) -> (outer, inner, V); up to three dimensions of any strides are not copied."""
    if tensor.ndim > 3:
        return tensor.reshape(-1, *tensor.shape[-2:])
    return tensor[(None,) * (3 - tensor.ndim)]


def _share_out(rows: int, columns: int, tile: Tile) -> tuple[tuple[int, int], int]:
    """Grid (row tiles, splits of the vocabulary) and the width of a split, a multiple of the tile's."""
    row_tiles, column_tiles = triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns)
    tiles_per_split = triton.cdiv(column_tiles, max(1, PROGRAMS // row_tiles))
    return (row_tiles, triton.cdiv(column_tiles, tiles_per_split)), tiles_per_split * tile.columns


def _merge(states: torch.Tensor) -> _PerRow:
    """(splits, 7, N) states -> what they amount to."""
    splits, _, rows = states.shape
    result = _PerRow(*(states.new_empty(rows) for _ in range(3)), states.new_empty(4, rows))
    _merge_kernel[(triton.cdiv(rows, MERGED_ROWS),)](states, splits, rows, *result, MERGED_ROWS)
    return result


def _no_rows(like: torch.Tensor) -> _PerRow:
    empty = like.new_empty(4, 0, dtype=torch.float32)
    return _PerRow(empty[0].clone(), empty[0].clone(), empty[0].clone(), empty)


def _pass_over_logits(policy: torch.Tensor, reference: torch.Tensor, ids: torch.Tensor) -> _PerRow:
    """policy and reference (outer, inner, V), ids (N,) -> statistics of the N = outer * inner rows."""
    rows, columns, tile = len(ids), policy.shape[-1], FROM_LOGITS
    if not rows:
        return _no_rows(policy)
    grid, width = _share_out(rows, columns, tile)
    states = torch.empty(grid[1], STATE.value, rows, device=policy.device)
    _logits_kernel[grid](
        policy, reference, ids, states, rows, columns, width, policy.shape[1],
        *policy.stride(), *reference.stride(), tile.rows, tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    return _merge(states)


def _needs_upcast(hidden: torch.Tensor, matrix: torch.Tensor) -> bool:
    """Unlike operands meet in FP32. The interpreter holds BF16 as bits, which it cannot multiply."""
    half = hidden.dtype == matrix.dtype != torch.float32
    return not half or triton.knobs.runtime.interpret


def _pass_over_hidden(hidden, matrix, reference_hidden, reference_matrix, ids: torch.Tensor) -> _PerRow:
    """hidden states (N, H), unembeddings (V, H), ids (N,) -> statistics of N rows; no logits in memory."""
    rows, columns = len(ids), len(matrix)
    if not rows:
        return _no_rows(hidden)
    upcasts = _needs_upcast(hidden, matrix), _needs_upcast(reference_hidden, reference_matrix)
    tile = FROM_HIDDEN_SINGLE if any(upcasts) else FROM_HIDDEN_HALF
    grid, width = _share_out(rows, columns, tile)
    states = torch.empty(grid[1], STATE.value, rows, device=hidden.device)
    _hidden_kernel[grid](
        hidden, matrix, reference_hidden, reference_matrix, ids, states, rows, columns, width,
        hidden.shape[1], reference_hidden.shape[1], *hidden.stride(), *matrix.stride(),
        *reference_hidden.stride(), *reference_matrix.stride(), *upcasts, *tile[:3], num_warps=tile.warps,
    )  # fmt: skip
    return _merge(states)


def _gradient_of_logits(gradient, policy, reference, ids, upstream, found: _PerRow, first: int) -> None:
    """Write the gradient of (outer, inner, columns) logits, whose first column is token ``first``; rows as in ids.

    ``gradient`` may be ``policy`` itself. upstream (3, N) FP32: by log-prob, by KL, by entropy.
    """
    rows, columns, tile = len(ids), policy.shape[-1], FROM_LOGITS
    if not rows:
        return
    grid = triton.cdiv(rows, tile.rows), triton.cdiv(columns, tile.columns)
    _gradient_kernel[grid](
        gradient, policy, reference, ids, upstream, found.kl, found.entropy, found.normalisers,
        rows, columns, first, policy.shape[1], *gradient.stride(), *policy.stride(), *reference.stride(),
        tile.rows, tile.columns, num_warps=tile.warps,
    )  # fmt: skip


def _require_usable(found: _PerRow, shape: torch.Size) -> None:
    """One look at the device where all is well; the row, its side and its fault are named otherwise."""
    m, log_s, n, log_r = found.normalisers
    if not found.normalisers.isfinite().all():
        require_usable_normaliser((m + log_s).view(shape), "policy logits")
        require_usable_normaliser((n + log_r).view(shape), "reference logits")


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in FP32; operands of one 16-bit dtype stay what they are on CUDA, and their sums are never rounded."""
    if a.is_cuda and a.dtype == b.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _finish(ctx, found: _PerRow, ids: torch.Tensor, *sources: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Refuse unusable rows, keep what the backward needs, and give the statistics the shape of ``ids``."""
    _require_usable(found, ids.shape)
    ctx.save_for_backward(*sources, ids.contiguous().view(-1), found.kl, found.entropy, found.normalisers)
    return tuple(values.view(ids.shape) for values in found[:3])


def _saved(ctx, upstream) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor, _PerRow]:
    """What `_finish` kept: sources, ids, and the gradients of the statistics as (3, N)."""
    *sources, ids, kl, entropy, normalisers = ctx.saved_tensors
    found = _PerRow(kl, kl, entropy, normalisers)
    return sources, ids, torch.stack([gradient.reshape(-1) for gradient in upstream]), found


class FromLogits(torch.autograd.Function):
    """As ``kl._FromLogits``: (policy, reference, ids) -> log-probs, KL, entropy; gradients reach the policy."""

    @staticmethod
    def forward(ctx, policy, reference, ids):
        require_triton(policy)
        with torch.cuda.device_of(policy):
            found = _pass_over_logits(_by_rows(policy), _by_rows(reference), ids.contiguous().view(-1))
        return _finish(ctx, found, ids, policy, reference)

    @staticmethod
    @once_differentiable
    def backward(ctx, *upstream):
        (policy, reference), ids, upstream, found = _saved(ctx, upstream)
        gradient = torch.empty_like(policy, memory_format=torch.contiguous_format)
        with torch.cuda.device_of(policy):
            tensors = (_by_rows(tensor) for tensor in (gradient, policy, reference))
            _gradient_of_logits(*tensors, ids, upstream, found, first=0)
        return gradient, None, None


class FromHidden(torch.autograd.Function):
    """As ``kl._FromHidden``: (hidden, unembedding, both of the reference, ids, block) -> the three statistics.

    Forward: one kernel, products and sums together. Backward: cuBLAS makes ``block`` columns of logits at a time,
    the gradient kernel overwrites them, and cuBLAS multiplies them out, with FP32 sums. The gradient needs two more
    products of the same size per block, so that reading and writing a block (from the L2 cache, for the default of
    4,096 columns) is a small part of the time; a fused kernel would either need atomics or repeat the products.
    """

    @staticmethod
    def forward(ctx, hidden, matrix, reference_hidden, reference_matrix, ids, block):
        require_triton(hidden)
        rows, reference_rows = (states.reshape(-1, states.shape[-1]) for states in (hidden, reference_hidden))
        with torch.cuda.device_of(hidden):
            found = _pass_over_hidden(rows, matrix, reference_rows, reference_matrix, ids.contiguous().view(-1))
        ctx.block = block
        return _finish(ctx, found, ids, hidden, matrix, reference_rows, reference_matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx, *upstream):
        (hidden, matrix, reference_rows, reference_matrix), ids, upstream, found = _saved(ctx, upstream)
        rows = hidden.reshape(-1, hidden.shape[-1])
        by_hidden = torch.zeros_like(rows, dtype=torch.float32)
        # Every block owns its rows of the unembedding, so each of them is written, and rounded, exactly once.
        by_matrix = torch.empty_like(matrix) if ctx.needs_input_grad[1] else None
        with torch.cuda.device_of(hidden):
            for start in range(0, len(matrix), ctx.block):
                part = slice(start, start + ctx.block)
                dz = _product(rows, matrix[part].T)
                y = _product(reference_rows, reference_matrix[part].T)
                _gradient_of_logits(dz[None], dz[None], y[None], ids, upstream, found, first=start)
                dz = dz.to(matrix.dtype)
                by_hidden += _product(dz, matrix[part])
                if by_matrix is not None:
                    by_matrix[part] = _product(dz.T, rows)
        return by_hidden.view(hidden.shape).to(hidden.dtype), by_matrix, None, None, None, None
