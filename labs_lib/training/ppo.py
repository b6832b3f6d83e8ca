"""PPO on short answers with a learned judge (Schulman et al. 2017; Ouyang et al. 2022, section 3.5).

Four roles: the *actor* learns and samples; the *reference* is a frozen copy of its start; the *judge* (or another
reward) scores whole answers; the *critic* learns the value of every prefix. What was captured while sampling (log-
probs, values) and everything computed from it (rewards, advantages, returns) stays fixed while it is reused.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from labs_lib.checkpoint import Checkpoint
from labs_lib.config import Optimizer, Ppo
from labs_lib.errors import VerificationError
from labs_lib.kernels.gae import GaeResult, generalised_advantages, token_rewards, value_loss
from labs_lib.kernels.kl import PrefixStatistics
from labs_lib.kernels.reductions import answer_mean
from labs_lib.kernels.surrogate import clipped_surrogate, surrogate_audit
from labs_lib.models.chat import decode_answer, pad_id
from labs_lib.models.roles import (
    Scalar,
    backbone_fingerprint,
    learned_fingerprint,
    learned_tensors,
    load_learned,
    require_frozen_backbone,
    require_separate,
)
from labs_lib.rollout import LENGTH, Rollout, answer_draws, generate
from labs_lib.scoring import (
    active_hidden,
    active_rows,
    answer_logprobs,
    answer_values,
    masked_hidden,
    score_against_reference,
)
from labs_lib.seeding import generator_state, named_generator, restore_generator
from labs_lib.training.optimizer import ScheduledAdamW
from labs_lib.training.prompts import PromptStream
from labs_lib.training.states import role_tensors, tensors_of_role


@dataclass(frozen=True)
class PpoPrompt:
    """A prompt as ids. What is right about an answer to it is nothing that PPO can see."""

    name: str
    ids: list[int]


class Reward(Protocol):
    """What pays for answers. `roles` are its frozen models by name: part of the state, never trained."""

    roles: Mapping[str, torch.nn.Module]

    def __call__(self, prompts: Sequence[PpoPrompt], rollout: Rollout, texts: Sequence[str]) -> torch.Tensor:
        """Scores (A,) FP32, one for each answer."""


@dataclass(frozen=True)
class PpoSettings:
    """What a PPO run is made of, beside its roles and prompts."""

    ppo: Ppo
    optimizer: Optimizer
    kl_block: int
    answer_tokens: int
    seed: int
    name: str


@dataclass(frozen=True)
class Reading:
    """What the two networks that learn say of given answers, with their graphs: good for one update."""

    hidden: torch.Tensor  # (N, H), the actor's states before the N active tokens
    logprobs: torch.Tensor  # (A, T), the actor's
    values: torch.Tensor  # (A, T), the critic's


@dataclass(frozen=True)
class Experience:
    """One iteration's answers and everything about them that stays fixed: (A, T) each but `scores` (A,)."""

    prompts: list[PpoPrompt]
    rollout: Rollout
    texts: list[str]
    reference_logprobs: torch.Tensor
    values: torch.Tensor
    scores: torch.Tensor
    rewards: torch.Tensor
    gae: GaeResult
    at_sampling: PrefixStatistics  # full-sequence log-probs, exact KL to the reference, entropy

    @property
    def score_check(self) -> float:
        """Largest |full-sequence - captured| log-prob in nats: rounding, larger in BF16 than in FP32."""
        return (self.at_sampling.logprobs - self.rollout.logprobs).abs().max().item()


class PpoTrainer:
    """One step is one iteration: sample, score, estimate advantages, then update actor and critic some times."""

    def __init__(
        self,
        actor: PreTrainedModel,
        critic: Scalar,
        reference: PreTrainedModel,
        reward: Reward,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[PpoPrompt],
        settings: PpoSettings,
    ):
        self.actor, self.critic, self.reference = actor, critic, reference.requires_grad_(False)
        self.reward, self.tokenizer, self.settings = reward, tokenizer, settings
        self.roles = {"actor": actor, "critic": critic, "reference": reference, **reward.roles}
        require_separate(self.roles)
        for role in self.roles.values():
            require_frozen_backbone(role, actor.dtype)
        self.pad = pad_id(tokenizer)
        ppo = settings.ppo
        self.total_steps, updates = ppo.iterations, ppo.iterations * ppo.updates_per_iteration
        self.optimizers = {
            "actor": ScheduledAdamW(actor, settings.optimizer, updates, ppo.actor_learning_rate),
            "critic": ScheduledAdamW(critic, settings.optimizer, updates, ppo.critic_learning_rate),
        }
        self.stream = PromptStream(prompts, named_generator(settings.seed, "ppo/prompts"))
        self.draws = named_generator(settings.seed, "ppo/draws")
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.seconds: list[dict[str, float]] = []

    def advance(self) -> None:
        """One iteration of the algorithm, start to end."""
        began = time.perf_counter()
        fingerprint = learned_fingerprint(self.actor)
        prompts, rollout = self.sample()
        generated = time.perf_counter()
        reading = self.read(prompts, rollout)
        experience = self.evaluate(prompts, rollout, reading)
        scored = time.perf_counter()
        updates = [self.update(experience, reading)]  # of the networks as they sampled: nothing is read twice
        for _ in range(1, self.settings.ppo.updates_per_iteration):
            updates.append(self.update(experience, self.read(prompts, rollout)))
        ended = time.perf_counter()
        self.step += 1
        self.history.append(self._evidence(experience, fingerprint, updates))
        self.seconds.append(
            {"generation": generated - began, "score_check": scored - generated, "optimisation": ended - scored}
        )

    def sample(self) -> tuple[list[PpoPrompt], Rollout]:
        """The next prompts and one sampled answer to each, with its log-probs as the actor gave them."""
        prompts, tokens = self.stream.next(self.settings.ppo.prompts_per_iteration), self.settings.answer_tokens
        draws = answer_draws(self.draws, len(prompts), tokens)
        ids = [prompt.ids for prompt in prompts]
        return prompts, generate(self.actor, ids, 1, tokens, self.tokenizer.eos_token_id, self.pad, draws)

    def read(self, prompts: list[PpoPrompt], rollout: Rollout) -> Reading:
        """The actor's log-probs and the critic's values of these answers, as both networks are now."""
        answers = [prompt.ids for prompt in prompts], rollout.ids, rollout.mask, self.pad
        hidden = active_hidden(self.actor, *answers)
        return Reading(hidden, answer_logprobs(self.actor, *answers, hidden), answer_values(self.critic, *answers))

    @torch.no_grad()
    def evaluate(self, prompts: list[PpoPrompt], rollout: Rollout, reading: Reading) -> Experience:
        """Reference, scores, token rewards and advantages of fresh answers: all constants from here on."""
        ppo, mask, values = self.settings.ppo, rollout.mask, reading.values.detach()
        answers = [prompt.ids for prompt in prompts], rollout.ids, mask, self.pad
        texts = [decode_answer(self.tokenizer, rollout.answer_ids(row)) for row in range(len(prompts))]
        hidden, block = masked_hidden(self.reference, *answers), self.settings.kl_block
        reference = answer_logprobs(self.reference, *answers, hidden)
        at_sampling = score_against_reference(self.actor, self.reference, hidden, *answers, block, reading.hidden)
        scores = self.reward(prompts, rollout, texts)
        truncated = torch.tensor([reason == LENGTH for reason in rollout.finish_reasons], device=mask.device)
        rewards = token_rewards(
            rollout.logprobs, reference, scores, truncated, mask, ppo.kl_weight, ppo.truncation_penalty
        )
        gae = generalised_advantages(rewards, values, mask, ppo.gamma, ppo.gae_lambda)
        return Experience(prompts, rollout, texts, reference, values, scores, rewards, gae, at_sampling)

    def update(self, experience: Experience, reading: Reading) -> dict[str, Any]:
        """One update of each network on the whole batch; returns what was used, *before* the step."""
        rollout, ppo = experience.rollout, self.settings.ppo
        surrogate = clipped_surrogate(
            reading.logprobs, rollout.logprobs, experience.gae.advantages, ppo.clip_low, ppo.clip_high, rollout.mask
        )
        losses = {
            "actor": answer_mean(surrogate.loss, rollout.mask).mean(),
            "critic": answer_mean(
                value_loss(reading.values, experience.gae.returns, rollout.mask), rollout.mask
            ).mean(),
        }
        used = {}
        for role, loss in losses.items():
            loss.backward()
            used[role] = {"loss": loss.item(), **self.optimizers[role].step()}
        return {
            **used,
            **surrogate_audit(surrogate, rollout.mask)._asdict(),
            "logprobs": active_rows(reading.logprobs, rollout.mask),
            "values": active_rows(reading.values, rollout.mask),
        }

    def _evidence(self, experience: Experience, fingerprint: str, updates: list[dict[str, Any]]) -> dict[str, Any]:
        rollout, mask = experience.rollout, experience.rollout.mask
        per_token = {
            "logprobs": rollout.logprobs,
            "reference_logprobs": experience.reference_logprobs,
            "kl": experience.at_sampling.kl,
            "values": experience.values,
            "rewards": experience.rewards,
            "advantages": experience.gae.advantages,
            "returns": experience.gae.returns,
        }
        columns = {name: active_rows(tensor, mask) for name, tensor in per_token.items()}
        answers = [
            {
                "rollout_id": f"{self.settings.name}/{self.step:04}/{row}",
                "prompt": prompt.name,
                "ids": rollout.answer_ids(row),
                "text": experience.texts[row],
                "finish_reason": rollout.finish_reasons[row],
                "score": experience.scores[row].item(),
                **{name: rows[row] for name, rows in columns.items()},
            }
            for row, prompt in enumerate(experience.prompts)
        ]
        return {
            "iteration": self.step,
            "actor_fingerprint": fingerprint,
            "score_check": experience.score_check,
            "kl_mean": experience.at_sampling.kl[mask].mean().item(),
            "entropy_mean": experience.at_sampling.entropy[mask].mean().item(),
            "answers": answers,
            "updates": updates,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        state = {"generator.draws": generator_state(self.draws)} | self.stream.tensors()
        for role, model in self.roles.items():
            state |= role_tensors(role, learned_tensors(model))
        for role, optimizer in self.optimizers.items():
            state |= role_tensors(f"optimizer.{role}", optimizer.tensors())
        return state

    def record(self) -> dict[str, Any]:
        return {
            "iterations": self.step,
            "updates": self.step * self.settings.ppo.updates_per_iteration,
            **self.stream.record(),
            "backbones": {role: backbone_fingerprint(model) for role, model in self.roles.items()},
            "history": self.history,
        }

    def durations(self) -> dict[str, Any]:
        return {"iterations": self.seconds}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint.

        Raises VerificationError when the saved run had other roles, or another frozen one; names it.
        """
        record, tensors = checkpoint.record, checkpoint.tensors
        if other := sorted(self.roles.keys() ^ record["backbones"].keys()):
            raise VerificationError(
                f"{checkpoint.path} and this run differ in roles: {', '.join(other)}. Use the reward it was paid by."
            )
        for role, model in self.roles.items():
            saved = tensors_of_role(tensors, role)
            if backbone_fingerprint(model) != record["backbones"][role]:
                raise VerificationError(f"The {role}'s backbone is not that of {checkpoint.path}: load the same base.")
            if role in self.optimizers:
                load_learned(model, saved)
            elif any(not torch.equal(tensor.cpu(), saved[name]) for name, tensor in learned_tensors(model).items()):
                raise VerificationError(f"The frozen {role} is not that of {checkpoint.path}: load the same one.")
        for role, optimizer in self.optimizers.items():
            optimizer.restore(tensors_of_role(tensors, f"optimizer.{role}"), record["updates"])
        self.draws = restore_generator(tensors["generator.draws"])
        self.stream.restore(tensors, record)
        self.step, self.history = record["iterations"], record["history"]
        self.seconds = checkpoint.durations["iterations"]
