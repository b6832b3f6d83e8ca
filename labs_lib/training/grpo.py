"""GRPO, the pedagogical variant with exact prefix KL (after Shao et al. 2024, "DeepSeekMath", section 4).

Three policies, not interchangeable: the *current* one gets the gradients; the *old* one is the state that
produced the answers, present only as the log-probabilities captured while sampling; the *reference* is a frozen
copy of the start. There is no value network.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from labs_lib.checkpoint import Checkpoint
from labs_lib.config import Grpo, Optimizer
from labs_lib.errors import VerificationError
from labs_lib.kernels.advantages import group_advantages
from labs_lib.kernels.kl import PrefixStatistics
from labs_lib.kernels.reductions import grpo_mean
from labs_lib.kernels.surrogate import ClippedSurrogate, clipped_surrogate, surrogate_audit
from labs_lib.models.chat import decode_answer, ids_known, pad_id
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.models.roles import learned_tensors, load_learned
from labs_lib.models.unembedding import logits_of
from labs_lib.rollout import Rollout, answer_draws, generate
from labs_lib.scoring import (
    active_hidden,
    active_rows,
    answer_hidden,
    answer_logprobs,
    masked_hidden,
    score_against_reference,
)
from labs_lib.seeding import generator_state, named_generator, restore_generator
from labs_lib.tasks.stock_arithmetic.problem import Problem
from labs_lib.tasks.stock_arithmetic.verifier import Verdict, verify
from labs_lib.training.optimizer import ScheduledAdamW
from labs_lib.training.prompts import PromptStream
from labs_lib.training.states import role_tensors, tensors_of_role

PROBED_ITERATIONS = 3  # these and the last one keep whole first-prefix distributions, for the audit
STREAMS = ("draws", "shuffle")


@dataclass(frozen=True)
class RolloutPrompt:
    """A prompt as ids, and the structured problem that only the verifier sees."""

    name: str
    ids: list[int]
    problem: Problem


@dataclass(frozen=True)
class GrpoSettings:
    """What a GRPO run is made of; `shuffle_rewards` is the negative control."""

    grpo: Grpo
    optimizer: Optimizer
    kl_block: int
    answer_tokens: int
    seed: int
    name: str
    shuffle_rewards: bool = False


@dataclass(frozen=True)
class Batch:
    """One iteration's answers with everything that stays fixed while they are reused."""

    prompts: list[RolloutPrompt]
    rollout: Rollout
    verdicts: list[Verdict]
    texts: list[str]
    rewards: torch.Tensor  # (P, G), as paid (shuffled in the control)
    advantages: torch.Tensor  # (A,)
    # (N, H), the sampling policy's states before the N active tokens, with their graph: good for one update.
    hidden: torch.Tensor | None = None

    @property
    def prompt_ids(self) -> list[list[int]]:
        return [prompt.ids for prompt in self.prompts]


@torch.no_grad()
def answers_score(policy: PreTrainedModel, batch: Batch, pad: int) -> torch.Tensor:
    """Log-probabilities (A, T) of the sampled answers under `policy` now, 0 off the mask; no gradient."""
    return answer_logprobs(policy, batch.prompt_ids, batch.rollout.ids, batch.rollout.mask, pad, batch.hidden)


class GrpoTrainer:
    """One step is one iteration: sample, verify, compare with the captured log-probs, update `updates` times."""

    def __init__(
        self,
        policy: PreTrainedModel,
        reference: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[RolloutPrompt],
        settings: GrpoSettings,
    ):
        self.policy, self.reference = policy, reference.requires_grad_(False)
        self.tokenizer, self.settings = tokenizer, settings
        self.pad = pad_id(tokenizer)
        self.total_steps = settings.grpo.iterations
        updates = settings.grpo.iterations * settings.grpo.updates_per_iteration
        self.optimizer = ScheduledAdamW(policy, settings.optimizer, updates, settings.grpo.learning_rate)
        # Named by stream, not by branch: runs of other group sizes see the same prompts in the same order.
        self.stream = PromptStream(prompts, named_generator(settings.seed, "grpo/prompts"))
        self.generators = {stream: named_generator(settings.seed, f"grpo/{stream}") for stream in STREAMS}
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.seconds: list[dict[str, float]] = []

    def advance(self) -> None:
        """One iteration of the algorithm, start to end."""
        began = time.perf_counter()
        fingerprint = policy_fingerprint(self.policy)
        batch = self.sample()
        generated = time.perf_counter()
        read = self.read(batch)
        check = self.check_captured(read)
        checked = time.perf_counter()
        reference_hidden = masked_hidden(
            self.reference, batch.prompt_ids, batch.rollout.ids, batch.rollout.mask, self.pad
        )
        updates = [self.update(read, reference_hidden)]  # of the policy as it sampled: nothing is read twice
        for _ in range(1, self.settings.grpo.updates_per_iteration):
            updates.append(self.update(batch, reference_hidden))
        ended = time.perf_counter()
        self.step += 1
        self.history.append(self._evidence(batch, fingerprint, check, updates))
        self.seconds.append(
            {
                "generation": generated - began,
                "score_check": checked - generated,
                "optimisation": ended - checked,
            }
        )

    def sample(self) -> Batch:
        """Answers from the current policy, verified, with their group advantages."""
        prompts = self.stream.next(self.settings.grpo.prompts_per_iteration)
        group_size = self.settings.grpo.group_size
        tokens = self.settings.answer_tokens
        draws = answer_draws(self.generators["draws"], len(prompts) * group_size, tokens)
        rollout = generate(
            self.policy,
            [prompt.ids for prompt in prompts],
            group_size,
            tokens,
            self.tokenizer.eos_token_id,
            self.pad,
            draws,
        )
        answers = [rollout.answer_ids(row) for row in range(len(draws))]
        texts = [decode_answer(self.tokenizer, ids) for ids in answers]
        verdicts = [
            verify(text, reason, prompts[row // group_size].problem, ids_known(self.tokenizer, ids))
            for row, (text, reason, ids) in enumerate(zip(texts, rollout.finish_reasons, answers, strict=True))
        ]
        rewards = torch.tensor([float(verdict.reward) for verdict in verdicts])
        if self.settings.shuffle_rewards:
            rewards = rewards[torch.randperm(len(rewards), generator=self.generators["shuffle"])]
        rewards = rewards.view(len(prompts), group_size).to(self.policy.device)
        advantages = group_advantages(rewards, self.settings.grpo.advantage_epsilon).flatten()
        return Batch(prompts, rollout, verdicts, texts, rewards, advantages)

    def read(self, batch: Batch) -> Batch:
        """The batch with the policy's `hidden`, for the check and the first update; as it is with micro-batches."""
        if len(self._micro_batches(batch)) > 1:
            return batch  # whose graphs must not exist all at once
        rollout = batch.rollout
        return replace(batch, hidden=active_hidden(self.policy, batch.prompt_ids, rollout.ids, rollout.mask, self.pad))

    def check_captured(self, batch: Batch) -> float:
        """Largest |recomputed - captured| log-probability in nats, before the first update.

        Raises:
            VerificationError: above the profile's tolerance: the policy that is about to be trained is not the
                one that produced the answers.
        """
        rescored = answers_score(self.policy, batch, self.pad)
        largest = (rescored - batch.rollout.logprobs).abs().max().item()
        if not largest <= self.settings.grpo.logprob_tolerance:
            raise VerificationError(
                f"Recomputed log-probabilities differ from the captured ones by {largest:.2e} nats, over "
                f"{self.settings.grpo.logprob_tolerance:.0e}: dropout, another policy or other ids are being scored."
            )
        return largest

    def update(self, batch: Batch, reference_hidden: torch.Tensor) -> dict[str, Any]:
        """One update on the whole batch; returns what it used, with the log-probs *before* the step."""
        rollout = batch.rollout
        parts = [self._accumulate(batch, reference_hidden, rows) for rows in self._micro_batches(batch)]
        losses, scores, surrogates = zip(*parts, strict=True)
        scores = PrefixStatistics(*map(torch.cat, zip(*scores, strict=True)))
        audit = surrogate_audit(ClippedSurrogate(*map(torch.cat, zip(*surrogates, strict=True))), rollout.mask)
        return {
            "loss": sum(losses),
            "kl_mean": scores.kl[rollout.mask].mean().item(),
            "entropy_mean": scores.entropy[rollout.mask].mean().item(),
            "active_clip_share": audit.active_clip_share,
            "outside_share": audit.outside_share,
            "max_ratio_deviation": audit.max_ratio_deviation,
            "logprobs": active_rows(scores.logprobs, rollout.mask),
            "kl": active_rows(scores.kl, rollout.mask),
            **self.optimizer.step(),
        }

    def _micro_batches(self, batch: Batch) -> list[slice]:
        """Rows of whole groups: a group never leaves its prompt."""
        rows = self.settings.grpo.micro_batch_prompts * self.settings.grpo.group_size
        return [slice(start, start + rows) for start in range(0, len(batch.verdicts), rows)]

    def _accumulate(self, batch: Batch, reference_hidden: torch.Tensor, rows: slice):
        """Add the gradient of some groups, weighted by their share of the prompts."""
        grpo, rollout = self.settings.grpo, batch.rollout
        prompts = batch.prompt_ids[rows.start // grpo.group_size : rows.stop // grpo.group_size]
        mask, before = rollout.mask[rows], int(rollout.mask[: rows.start].sum())
        scores = score_against_reference(
            self.policy,
            self.reference,
            reference_hidden[before : before + int(mask.sum())],
            prompts,
            rollout.ids[rows],
            mask,
            self.pad,
            self.settings.kl_block,
            batch.hidden,
        )
        surrogate = clipped_surrogate(
            scores.logprobs,
            rollout.logprobs[rows],
            batch.advantages[rows],
            grpo.clip_low,
            grpo.clip_high,
            mask,
        )
        loss = grpo_mean(surrogate.loss + grpo.kl_weight * scores.kl, mask, grpo.group_size)
        loss = loss * (len(prompts) / len(batch.prompts))
        loss.backward()
        detached = [[tensor.detach() for tensor in group] for group in (scores, surrogate)]
        return loss.item(), *detached

    def _evidence(self, batch: Batch, fingerprint: str, check: float, updates: list[dict]) -> dict[str, Any]:
        rollout, group_size = batch.rollout, self.settings.grpo.group_size
        captured = active_rows(rollout.logprobs, rollout.mask)
        paid = batch.rewards.flatten().tolist()
        answers = [
            {
                "rollout_id": f"{self.settings.name}/{self.step:04}/{row // group_size}/{row % group_size}",
                "prompt": batch.prompts[row // group_size].name,
                "ids": rollout.answer_ids(row),
                "logprobs": captured[row],
                "finish_reason": rollout.finish_reasons[row],
                "text": batch.texts[row],
                "reason": verdict.reason,
                "reward": verdict.reward,
                "paid": paid[row],
                "advantage": batch.advantages[row].item(),
            }
            for row, verdict in enumerate(batch.verdicts)
        ]
        evidence = {
            "iteration": self.step,
            "policy_fingerprint": fingerprint,
            "score_check": check,
            "answers": answers,
            "updates": updates,
        }
        probed = self.step <= PROBED_ITERATIONS or self.step == self.total_steps
        return evidence | ({"probe": self._probe(batch)} if probed else {})

    @torch.no_grad()
    def _probe(self, batch: Batch) -> dict[str, Any]:
        """Whole first-prefix log-distributions of the first prompt: sampling policy, policy now, reference."""
        prompt, ids = batch.prompt_ids[:1], batch.rollout.ids[:1, :1]
        now, reference = (
            logits_of(model, answer_hidden(model, prompt, ids, self.pad)[0, 0])
            for model in (self.policy, self.reference)
        )
        named = {"sampled": batch.rollout.first_logits[0], "now": now, "reference": reference}
        return {name: logits.double().log_softmax(-1).tolist() for name, logits in named.items()}

    def tensors(self) -> dict[str, torch.Tensor]:
        states = {f"generator.{name}": generator_state(g) for name, g in self.generators.items()}
        weights = role_tensors("policy", learned_tensors(self.policy))
        return weights | self.optimizer.tensors() | self.stream.tensors() | states

    def record(self) -> dict[str, Any]:
        return {
            "iterations": self.step,
            "updates": self.optimizer.updates,
            **self.stream.record(),
            "history": self.history,
        }

    def durations(self) -> dict[str, Any]:
        return {"iterations": self.seconds}

    def restore(self, checkpoint: Checkpoint) -> None:
        record, tensors = checkpoint.record, checkpoint.tensors
        load_learned(self.policy, tensors_of_role(tensors, "policy"))
        self.optimizer.restore(tensors, record["updates"])
        self.generators = {name: restore_generator(tensors[f"generator.{name}"]) for name in self.generators}
        self.stream.restore(tensors, record)
        self.step, self.history = record["iterations"], record["history"]
        self.seconds = checkpoint.durations["iterations"]
