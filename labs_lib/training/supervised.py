"""Supervised fine-tuning on answer tokens and EOS, for the warm start and for further SFT."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from labs_lib.kernels.reductions import token_sum_over
from labs_lib.rollout import require_sampling_mode
from labs_lib.scoring import answer_logprobs
from labs_lib.training.epochs import EpochTrainer


@dataclass(frozen=True)
class SupervisedExample:
    """A prompt and its target as ids; the target ends with EOS."""

    name: str
    prompt: list[int]
    target: list[int]


def pad_targets(targets: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids (A, T) int64 and mask (A, T) bool, made by position: a PAD id inside a target stays."""
    width = max(map(len, targets))
    ids = torch.full((len(targets), width), pad_id)
    mask = torch.zeros(len(targets), width, dtype=torch.bool)
    for row, target in enumerate(targets):
        ids[row, : len(target)] = torch.tensor(target)
        mask[row, : len(target)] = True
    return ids, mask


def target_logprobs(
    policy: PreTrainedModel, examples: Sequence[SupervisedExample], pad_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities in nats (A, T), 0 off the mask, and the mask (A, T)."""
    ids, mask = (t.to(policy.device) for t in pad_targets([example.target for example in examples], pad_id))
    return answer_logprobs(policy, [example.prompt for example in examples], ids, mask, pad_id), mask


def accumulate_gradient(
    policy: PreTrainedModel, batch: Sequence[SupervisedExample], micro_batch_size: int, pad_id: int
) -> float:
    """Add the gradient of the batch's cross-entropy; returns it in nats per token.

    Divided by all active tokens of the whole batch, so that any micro-batch split gives the same gradient; a
    mean of micro-batch means would weigh short micro-batches too much.

    Raises:
        VerificationError: the policy is in train() mode, where dropout may act.
    """
    require_sampling_mode(policy)
    active = sum(len(example.target) for example in batch)
    total = 0.0
    for start in range(0, len(batch), micro_batch_size):
        logprobs, mask = target_logprobs(policy, batch[start : start + micro_batch_size], pad_id)
        loss = token_sum_over(-logprobs, mask, active)
        loss.backward()
        total += loss.item()
    return total


@torch.no_grad()
def mean_nll(
    policy: PreTrainedModel, examples: Sequence[SupervisedExample], pad_id: int, batch_size: int = 50
) -> float:
    """Negative log-likelihood of the targets in nats per token, over all tokens of all examples."""
    total, tokens = 0.0, 0
    for start in range(0, len(examples), batch_size):
        logprobs, mask = target_logprobs(policy, examples[start : start + batch_size], pad_id)
        total -= logprobs.double().sum().item()
        tokens += int(mask.sum())
    return total / tokens


class SupervisedTrainer(EpochTrainer):
    """Cross-entropy on answer tokens and EOS; the validation NLL follows each epoch."""

    validation_key = "validation_nll"

    def accumulate(self, batch: Sequence[SupervisedExample]) -> dict[str, Any]:
        return {"nll": accumulate_gradient(self.model, batch, self.settings.micro_batch_size, self.pad_id)}

    def validate(self) -> float:
        return mean_nll(self.model, self.validation_examples, self.pad_id)
