"""Learning from pairs: the judge (Bradley-Terry) and DPO, on the same examples and in the same epochs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from labs_lib.config import Dpo, Optimizer
from labs_lib.kernels.preference import DpoLoss, bradley_terry_loss, dpo_loss
from labs_lib.models.roles import Scalar
from labs_lib.rollout import require_sampling_mode
from labs_lib.scoring import answer_logprobs, answer_scores
from labs_lib.training.epochs import EpochTrainer
from labs_lib.training.supervised import pad_targets

PAIRS_AT_ONCE = 30  # in validation, without autograd


@dataclass(frozen=True)
class PreferenceExample:
    """One pair as ids; both answers end with EOS."""

    name: str
    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


def pair_scores(judge: Scalar, pairs: Sequence[PreferenceExample], pad_id: int) -> torch.Tensor:
    """The judge's scores (N, 2) FP32: chosen beside rejected, which share their prompt."""
    ids, mask, prompts = _both_answers(pairs, pad_id, judge.head.weight.device)
    return answer_scores(judge, prompts, ids, mask, pad_id).view(-1, 2)


def pair_logprobs(policy: PreTrainedModel, pairs: Sequence[PreferenceExample], pad_id: int) -> torch.Tensor:
    """Log-probabilities (N, 2) in nats of whole answers, summed over their tokens: chosen beside rejected."""
    ids, mask, prompts = _both_answers(pairs, pad_id, policy.device)
    return answer_logprobs(policy, prompts, ids, mask, pad_id).sum(dim=1).view(-1, 2)


def _both_answers(pairs: Sequence[PreferenceExample], pad_id: int, device: torch.device):
    answers = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
    ids, mask = pad_targets(answers, pad_id)
    return ids.to(device), mask.to(device), [pair.prompt for pair in pairs]


@torch.no_grad()
def score_pairs(judge: Scalar, pairs: Sequence[PreferenceExample], pad_id: int) -> torch.Tensor:
    """`pair_scores` of many pairs, in parts: (N, 2) on the CPU."""
    return _in_parts(lambda part: pair_scores(judge, part, pad_id), pairs)


def _in_parts(measure, pairs: Sequence[PreferenceExample]) -> torch.Tensor:
    parts = (pairs[start : start + PAIRS_AT_ONCE] for start in range(0, len(pairs), PAIRS_AT_ONCE))
    return torch.cat([measure(part).cpu() for part in parts])


class JudgeTrainer(EpochTrainer):
    """A reward model: -log sigmoid(r_chosen - r_rejected), averaged over the pairs of a batch.

    Stiennon et al. (2020), "Learning to summarize from human feedback", section 3.4.
    """

    role = "judge"

    def accumulate(self, batch: Sequence[PreferenceExample]) -> dict[str, Any]:
        require_sampling_mode(self.model)
        total, right = 0.0, 0
        for part in _micro_batches(batch, self.settings.micro_batch_size):
            scores = pair_scores(self.model, part, self.pad_id)
            loss = bradley_terry_loss(scores[:, 0], scores[:, 1]).sum() / len(batch)
            loss.backward()
            total, right = total + loss.item(), right + int((scores[:, 0] > scores[:, 1]).sum())
        return {"loss": total, "accuracy": right / len(batch)}

    def validate(self) -> dict[str, float]:
        scores = score_pairs(self.model, self.validation_examples, self.pad_id)
        loss = bradley_terry_loss(scores[:, 0].double(), scores[:, 1].double()).mean().item()
        return {"loss": loss, "accuracy": (scores[:, 0] > scores[:, 1]).double().mean().item()}


class DpoTrainer(EpochTrainer):
    """Direct preference optimisation: no judge, no critic, no sampling; the reference is scored once.

    Rafailov et al. (2023), "Direct Preference Optimization", equation 7.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        reference: PreTrainedModel,
        examples: Sequence[PreferenceExample],
        validation: Sequence[PreferenceExample],
        settings: Dpo,
        optimizer: Optimizer,
        seed: int,
        name: str,
        pad_id: int,
    ):
        super().__init__(policy, examples, validation, settings, optimizer, seed, name, pad_id)
        pairs = [*examples, *validation]
        with torch.no_grad():
            scored = _in_parts(lambda part: pair_logprobs(reference, part, pad_id), pairs)
        self.reference_logprobs = dict(zip((pair.name for pair in pairs), scored.unbind(), strict=True))

    def accumulate(self, batch: Sequence[PreferenceExample]) -> dict[str, Any]:
        require_sampling_mode(self.model)
        total, ahead = 0.0, 0
        for part in _micro_batches(batch, self.settings.micro_batch_size):
            compared = self.compare(part, pair_logprobs(self.model, part, self.pad_id))
            loss = compared.loss.sum() / len(batch)
            loss.backward()
            total, ahead = total + loss.item(), ahead + int((compared.margin > 0).sum())
        return {"loss": total, "accuracy": ahead / len(batch)}

    def compare(self, pairs: Sequence[PreferenceExample], logprobs: torch.Tensor) -> DpoLoss:
        """Loss and margin of pairs whose answers now have `logprobs` (N, 2)."""
        reference = torch.stack([self.reference_logprobs[pair.name] for pair in pairs]).to(logprobs.device)
        return dpo_loss(logprobs[:, 0], logprobs[:, 1], reference[:, 0], reference[:, 1], self.settings.beta)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        pairs = self.validation_examples
        logprobs = _in_parts(lambda part: pair_logprobs(self.model, part, self.pad_id), pairs)
        compared = self.compare(pairs, logprobs)
        return {
            "loss": compared.loss.double().mean().item(),
            "accuracy": (compared.margin > 0).double().mean().item(),
        }


def _micro_batches(batch: Sequence[PreferenceExample], size: int) -> list[Sequence[PreferenceExample]]:
    return [batch[start : start + size] for start in range(0, len(batch), size)]
