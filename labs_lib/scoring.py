"""Scoring given answers: the hidden states from which every answer token's probability follows.

Answers to one prompt share it: each prompt is read once, with autograd, its key-value cache is expanded over the
group, and only the answers run: P(prompt) + P G (answer) tokens instead of P G (prompt + answer). The mathematics
is that of the plain full-sequence forward, `answer_hidden_plain`, against which it is tested.
"""

from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from labs_lib.errors import VerificationError
from labs_lib.kernels.kl import PrefixStatistics, prefix_statistics_from_hidden
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


def answer_hidden_plain(
    policy: PreTrainedModel, prompts: Sequence[Sequence[int]], ids: torch.Tensor, pad_id: int
) -> torch.Tensor:
    """The same as `answer_hidden`, from one full sequence per answer: the reference for tests and for lab 02."""
    group_size = len(ids) // len(prompts)
    sequences = [[*prompts[row // group_size], *answer[:-1]] for row, answer in enumerate(ids.tolist())]
    sequence_ids, attention, positions = left_pad(sequences, pad_id, ids.device)
    hidden = policy.model(input_ids=sequence_ids, attention_mask=attention, position_ids=positions)
    return hidden.last_hidden_state[:, -ids.shape[1] :]


def unembedding(policy: PreTrainedModel) -> torch.Tensor:
    """The (V, H) matrix that turns hidden states into logits; tied to the embedding."""
    return policy.get_output_embeddings().weight


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
    unusable = mask & ~hidden.detach().isfinite().all(dim=-1)
    if unusable.any():
        row, position = unusable.nonzero()[0].tolist()
        place = answer_place(row, len(ids) // len(prompts), position)
        raise VerificationError(f"NaN or infinite hidden states at {place}: the policy diverged or was loaded wrongly.")
    return hidden[mask]


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


def score_against_reference(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    reference_hidden: torch.Tensor,
    prompts: Sequence[Sequence[int]],
    ids: torch.Tensor,
    mask: torch.Tensor,
    pad_id: int,
    block: int,
) -> PrefixStatistics:
    """Log-prob, exact KL to the reference and entropy of every answer token, (A, T) each, 0 off the mask.

    Only active positions are unembedded, block by block, so neither policy's logits ever exist as a whole.

    Args:
        reference_hidden: (N, H) from `masked_hidden` on the same answers.
        block: vocabulary entries at a time.
    """
    hidden = active_hidden(policy, prompts, ids, mask, pad_id)
    statistics = prefix_statistics_from_hidden(
        hidden, unembedding(policy), reference_hidden, unembedding(reference).detach(), ids[mask], block
    )
    return PrefixStatistics(*(hidden.new_zeros(mask.shape).masked_scatter(mask, value) for value in statistics))
