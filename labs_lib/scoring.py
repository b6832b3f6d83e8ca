"""Scoring given answers: the hidden states from which every answer token's probability follows.

Answers to one prompt share it: each prompt is read once, with autograd, and only the answers run beside it: P(prompt)
+ P G (answer) tokens instead of P G (prompt + answer). On the pinned profile the prompt's key-value cache is expanded
over the group; elsewhere a prompt and its answers are one row, in which no answer sees another. The mathematics is that
of the plain full-sequence forward, `answer_hidden_plain`, against which both are tested.
"""

from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from labs_lib.errors import VerificationError
from labs_lib.kernels.gae import last_active
from labs_lib.kernels.kl import PrefixStatistics, prefix_statistics_from_hidden
from labs_lib.kernels.logprobs import selected_logprobs
from labs_lib.models.attention import groups_query_rows
from labs_lib.models.roles import Scalar
from labs_lib.models.unembedding import logits_of, unembedding
from labs_lib.rollout import answer_place, left_pad


def answer_hidden(
    policy: PreTrainedModel, prompts: Sequence[Sequence[int]], ids: torch.Tensor, pad_id: int
) -> torch.Tensor:
    """Final hidden states (A, T, H) that predict each answer token.

    The state at answer position t has read the prompt and the answer's tokens before t; what follows an answer's
    end is padding, which no earlier position can see.

    Args:
        prompts: P lists of ids; A must be a multiple of P, answers in prompt-major order.
        ids: (A, T) int64, padded on the right.
    """
    if groups_query_rows(policy):
        return _one_row_per_prompt(policy, prompts, ids, pad_id)
    group_size = len(ids) // len(prompts)
    prompt_ids, attention, positions = left_pad(prompts, pad_id, ids.device)
    cache = DynamicCache(config=policy.config)
    read = policy.model(
        input_ids=prompt_ids, attention_mask=attention, position_ids=positions, cache=cache
    ).last_hidden_state[:, -1:]
    first = read.repeat_interleave(group_size, dim=0)  # (A, 1, H)
    if ids.shape[1] == 1:
        return first
    cache.batch_repeat_interleave(group_size)
    steps = torch.arange(1, ids.shape[1], device=ids.device)
    attention = attention.repeat_interleave(group_size, dim=0)
    later = policy.model(
        input_ids=ids[:, :-1],
        attention_mask=torch.nn.functional.pad(attention, (0, len(steps)), value=1),
        position_ids=positions[:, -1:].repeat_interleave(group_size, dim=0) + steps,
        cache=cache,
    ).last_hidden_state
    return torch.cat([first, later], dim=1)


def _one_row_per_prompt(
    policy: PreTrainedModel, prompts: Sequence[Sequence[int]], ids: torch.Tensor, pad_id: int
) -> torch.Tensor:
    """`answer_hidden` in one pass over rows of a prompt and, side by side, its answers: no weight is read twice."""
    group_size, steps = len(ids) // len(prompts), ids.shape[1] - 1
    prompt_ids, attention, positions = left_pad(prompts, pad_id, ids.device)
    later = positions[:, -1:] + torch.arange(1, steps + 1, device=ids.device)
    hidden = policy.model(
        input_ids=torch.cat([prompt_ids, ids[:, :-1].reshape(len(prompts), group_size * steps)], dim=1),
        attention_mask=_visible(attention, group_size, steps, policy.dtype),
        position_ids=torch.cat([positions, later.repeat(1, group_size)], dim=1),
    ).last_hidden_state
    width = prompt_ids.shape[1]
    first = hidden[:, width - 1 : width].repeat_interleave(group_size, dim=0)  # (A, 1, H)
    return torch.cat([first, hidden[:, width:].reshape(len(ids), steps, hidden.shape[-1])], dim=1)


def _visible(attention: torch.Tensor, group_size: int, steps: int, dtype: torch.dtype) -> torch.Tensor:
    """What each token of a prompt (P, S) and of its answers may see: 0, else the lowest number, (P, 1, N, N)."""
    width, device = attention.shape[1], attention.device
    answer = torch.arange(group_size, device=device).repeat_interleave(steps)
    # A prompt token belongs to no answer, and every answer sees it.
    answer = torch.cat([torch.full((width,), -1, device=device), answer])
    shared = (answer[None] == -1) | (answer[None] == answer[:, None])
    real = torch.nn.functional.pad(attention.bool(), (0, group_size * steps), value=True)
    seen = shared.tril() & real[:, None]  # (P, N, N)
    return torch.where(seen[:, None], 0.0, torch.finfo(dtype).min).to(dtype)


def answer_hidden_plain(
    policy: PreTrainedModel, prompts: Sequence[Sequence[int]], ids: torch.Tensor, pad_id: int
) -> torch.Tensor:
    """The same as `answer_hidden`, from one full sequence per answer: the reference for tests and for lab 02."""
    group_size = len(ids) // len(prompts)
    sequences = [[*prompts[row // group_size], *answer[:-1]] for row, answer in enumerate(ids.tolist())]
    sequence_ids, attention, positions = left_pad(sequences, pad_id, ids.device)
    hidden = policy.model(input_ids=sequence_ids, attention_mask=attention, position_ids=positions)
    return hidden.last_hidden_state[:, -ids.shape[1] :]


def active_hidden(
    policy: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    ids: torch.Tensor,
    mask: torch.Tensor,
    pad_id: int,
) -> torch.Tensor:
    """Hidden states (N, H) that predict the N active tokens of `mask` (A, T), row by row.

    Raises:
        VerificationError: NaN or infinite states; names prompt, answer and position of the first.
    """
    hidden = answer_hidden(policy, prompts, ids, pad_id)
    _require_finite(hidden, mask, len(ids) // len(prompts))
    return hidden[mask]


def _require_finite(hidden: torch.Tensor, mask: torch.Tensor, group_size: int) -> None:
    unusable = mask & ~hidden.detach().isfinite().all(dim=-1)
    if unusable.any():
        row, position = unusable.nonzero()[0].tolist()
        place = answer_place(row, group_size, position)
        raise VerificationError(f"NaN or infinite hidden states at {place}: the model diverged or was loaded wrongly.")


@torch.no_grad()
def masked_hidden(
    policy: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    ids: torch.Tensor,
    mask: torch.Tensor,
    pad_id: int,
) -> torch.Tensor:
    """Constant hidden states (N, H) of the N active tokens: what a frozen reference contributes, computed once."""
    return active_hidden(policy, prompts, ids, mask, pad_id)


def answer_logprobs(
    policy: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    ids: torch.Tensor,
    mask: torch.Tensor,
    pad_id: int,
    hidden: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-probabilities (A, T) in nats of given answers under `policy`, 0 off the mask; gradients flow.

    Args:
        hidden: (N, H) from `active_hidden` of the same policy and answers, when they are there already.
    """
    if hidden is None:
        hidden = active_hidden(policy, prompts, ids, mask, pad_id)
    scored = selected_logprobs(logits_of(policy, hidden), ids[mask])
    return scored.new_zeros(mask.shape).masked_scatter(mask, scored)


def answer_values(
    critic: Scalar,
    prompts: Sequence[Sequence[int]],
    ids: torch.Tensor,
    mask: torch.Tensor,
    pad_id: int,
) -> torch.Tensor:
    """The critic's values (A, T) FP32 *before* each answer token, 0 off the mask; gradients flow."""
    values = critic(active_hidden(critic.backbone, prompts, ids, mask, pad_id))
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def answer_scores(
    judge: Scalar,
    prompts: Sequence[Sequence[int]],
    ids: torch.Tensor,
    mask: torch.Tensor,
    pad_id: int,
) -> torch.Tensor:
    """The judge's score (A,) FP32, read off the last *active* token of each answer (EOS included), by the mask.

    Not the last index of the padded batch, which is padding for all but the longest answer, and not the last id
    that is not PAD, which an answer may contain. Ids after the end change no bit. Gradients flow.

    Raises:
        VerificationError: NaN or infinite states; names prompt, answer and position of the first.
    """
    # One more column, so that the last token of the longest answer is read too.
    longer = torch.nn.functional.pad(ids, (0, 1), value=pad_id)
    read = answer_hidden(judge.backbone, prompts, longer, pad_id)[:, 1:]  # (A, T, H): after each token
    _require_finite(read, mask, len(ids) // len(prompts))
    return judge(read[torch.arange(len(ids), device=ids.device), last_active(mask)])


def score_against_reference(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    reference_hidden: torch.Tensor,
    prompts: Sequence[Sequence[int]],
    ids: torch.Tensor,
    mask: torch.Tensor,
    pad_id: int,
    block: int,
    hidden: torch.Tensor | None = None,
) -> PrefixStatistics:
    """Log-prob, exact KL to the reference and entropy of every answer token, (A, T) each, 0 off the mask.

    Only active positions are unembedded, block by block, so neither policy's logits ever exist as a whole.

    Args:
        reference_hidden: (N, H) from `masked_hidden` on the same answers.
        block: vocabulary entries at a time.
        hidden: (N, H) from `active_hidden` of the policy on the same answers, when they are there already.
    """
    if hidden is None:
        hidden = active_hidden(policy, prompts, ids, mask, pad_id)
    statistics = prefix_statistics_from_hidden(
        hidden, unembedding(policy), reference_hidden, unembedding(reference).detach(), ids[mask], block
    )
    return PrefixStatistics(*(value.new_zeros(mask.shape).masked_scatter(mask, value) for value in statistics))


def active_rows(values: torch.Tensor, mask: torch.Tensor) -> list[list[float]]:
    """(A, T) as one list per answer, active tokens only: how evidence keeps them."""
    return [row[kept].tolist() for row, kept in zip(values.detach().cpu(), mask.cpu(), strict=True)]
