"""Supervised fine-tuning on answer tokens and EOS, for the warm start and for further SFT."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from labs_lib.checkpoint import Checkpoint, load_untied, untied_state_dict
from labs_lib.config import Optimizer, Supervised
from labs_lib.errors import LabError
from labs_lib.kernels.logprobs import selected_logprobs
from labs_lib.kernels.reductions import token_sum_over
from labs_lib.rollout import require_sampling_mode
from labs_lib.scoring import active_hidden, unembedding
from labs_lib.seeding import generator_state, named_generator, restore_generator
from labs_lib.training.optimizer import ScheduledAdamW


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
    hidden = active_hidden(policy, [example.prompt for example in examples], ids, mask, pad_id)
    scored = selected_logprobs(hidden @ unembedding(policy).T, ids[mask])
    return scored.new_zeros(mask.shape).masked_scatter(mask, scored), mask


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


class SupervisedTrainer:
    """AdamW on shuffled epochs. One step is one update; validation NLL follows each epoch and selects nothing."""

    def __init__(
        self,
        policy: PreTrainedModel,
        examples: Sequence[SupervisedExample],
        validation: Sequence[SupervisedExample],
        settings: Supervised,
        optimizer: Optimizer,
        seed: int,
        name: str,
        pad_id: int,
    ):
        if len(examples) != settings.examples:
            raise LabError(f"{name} needs {settings.examples} examples and got {len(examples)}: correct the profile.")
        self.policy, self.examples, self.validation = policy, examples, validation
        self.settings, self.pad_id = settings, pad_id
        self.total_steps = settings.updates
        self.optimizer = ScheduledAdamW(policy, optimizer, self.total_steps, settings.learning_rate)
        self.generator = named_generator(seed, f"{name}/permutation")
        self.order: list[int] = []
        self.cursor = 0
        self.history: list[dict[str, Any]] = []
        self.validation_nll: list[float] = []
        self.seconds: list[float] = []

    @property
    def step(self) -> int:
        return self.optimizer.updates

    def advance(self) -> None:
        """One update on the next `batch_size` examples of the epoch's permutation."""
        began = time.perf_counter()
        if self.cursor >= len(self.order):
            self.order = torch.randperm(len(self.examples), generator=self.generator).tolist()
            self.cursor = 0
        chosen = self.order[self.cursor : self.cursor + self.settings.batch_size]
        batch = [self.examples[index] for index in chosen]
        nll = accumulate_gradient(self.policy, batch, self.settings.micro_batch_size, self.pad_id)
        used = self.optimizer.step()
        self.cursor += len(batch)
        names = [example.name for example in batch]
        self.history.append({"update": self.step, "examples": names, "nll": nll, **used})
        self.seconds.append(time.perf_counter() - began)
        if self.cursor >= len(self.order):
            self.validation_nll.append(mean_nll(self.policy, self.validation, self.pad_id))

    def tensors(self) -> dict[str, torch.Tensor]:
        weights = {f"policy.{name}": tensor for name, tensor in untied_state_dict(self.policy).items()}
        return weights | self.optimizer.tensors() | {"generator.permutation": generator_state(self.generator)}

    def record(self) -> dict[str, Any]:
        return {
            "updates": self.step,
            "order": self.order,
            "cursor": self.cursor,
            "history": self.history,
            "validation_nll": self.validation_nll,
        }

    def durations(self) -> dict[str, Any]:
        return {"optimisation": self.seconds}

    def restore(self, checkpoint: Checkpoint) -> None:
        record, tensors = checkpoint.record, checkpoint.tensors
        load_untied(self.policy, policy_tensors(tensors))
        self.optimizer.restore(tensors, record["updates"])
        self.generator = restore_generator(tensors["generator.permutation"])
        self.order, self.cursor = record["order"], record["cursor"]
        self.history, self.validation_nll = record["history"], record["validation_nll"]
        self.seconds = checkpoint.durations["optimisation"]


def policy_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The policy's weights out of a state's tensors, by their names in the model."""
    return {name.removeprefix("policy."): tensor for name, tensor in tensors.items() if name.startswith("policy.")}
