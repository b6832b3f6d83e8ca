"""One fixed batch of answers through our loss and through TRL's own methods: where they agree, and by how much not.

Nothing of TRL is written again here. Its trainer gets our answers in place of its sampling (`rollout_func`), makes
rewards, advantages, old and reference log-probabilities of them, and computes its loss on a policy that has moved on.
"""

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from labs_lib.branches import PolicySource, prompt_ids
from labs_lib.config import Profile
from labs_lib.kernels.advantages import group_advantages
from labs_lib.models.base import LoadedBase
from labs_lib.models.chat import decode_answer, encode_prompt, encode_target, pad_id
from labs_lib.rollout import EOS, Rollout, answer_draws, generate
from labs_lib.scale.engine import require_engine
from labs_lib.scale.settings import grpo_config
from labs_lib.scale.start import export_policy
from labs_lib.scale.task import Row, VerifierReward, as_dataset, dataset_row, judge_ids, training_examples
from labs_lib.scoring import answer_logprobs, masked_hidden
from labs_lib.seeding import named_generator
from labs_lib.tasks.stock_arithmetic.gallery import WORKED_ANSWERS, WORKED_PROBLEM
from labs_lib.tasks.stock_arithmetic.statements import INSTRUCTION, statement
from labs_lib.training.grpo import Batch, GrpoSettings, GrpoTrainer, RolloutPrompt
from labs_lib.training.supervised import pad_targets

MOST_SEARCHED = 64  # training problems looked through for mixed groups


@dataclass(frozen=True)
class Loss:
    """A loss and its gradient by the parameters, one vector; shares and log-probs where they were read."""

    value: float
    gradient: torch.Tensor


@dataclass(frozen=True)
class FixedBatch:
    """A batch of ours, and the rows of a dataset with the same prompts, one a prompt."""

    batch: Batch
    rows: list[Row]


# --- The batch -------------------------------------------------------------------------------------


def fixed_batch(profile: Profile, start: LoadedBase, groups: int = 3) -> FixedBatch:
    """The four hand-made answers to the worked problem, and `groups` groups that `start` samples, the first mixed ones.

    Mixed groups are chosen, since a constant one has no advantage to compare. Old log-probabilities are those captured
    while sampling; for the hand-made answers, which nobody sampled, those that `start` gives them. A start that is
    hardly ever right gives fewer groups, or none.
    """
    worked = _worked(profile, start)
    sampled = _sampled(profile, start, groups)
    parts = [worked, *sampled]
    batch = _joined(profile, start, [(prompt, rollout) for prompt, rollout, _ in parts])
    return FixedBatch(batch, [row for _, _, row in parts])


def _worked(profile: Profile, start: LoadedBase) -> tuple[RolloutPrompt, Rollout, Row]:
    question = statement(WORKED_PROBLEM, 0)
    ids = encode_prompt(start.tokenizer, INSTRUCTION, question, profile.budget, "the worked problem")
    answers = [encode_target(start.tokenizer, text, ids, profile.budget, "a worked answer") for text in WORKED_ANSWERS]
    padded, mask = pad_targets(answers, pad_id(start.tokenizer))
    with torch.no_grad():
        old = answer_logprobs(start.model, [ids], padded, mask, pad_id(start.tokenizer))
    rollout = Rollout(padded, mask, old, (EOS,) * len(answers), torch.zeros(1, 0))
    prompt = RolloutPrompt("worked", ids, WORKED_PROBLEM)
    return prompt, rollout, dataset_row("worked", question, WORKED_PROBLEM)


def _sampled(profile: Profile, start: LoadedBase, groups: int) -> list[tuple[RolloutPrompt, Rollout, Row]]:
    size, tokens, tokenizer = profile.grpo.group_size, profile.budget.answer_tokens, start.tokenizer
    uniforms, found = named_generator(profile.seed, "lab07/parity"), []
    for example in training_examples()[: MOST_SEARCHED if groups else 0]:
        prompt = RolloutPrompt(example.id, prompt_ids(profile, tokenizer, example), example.problem)
        draws = answer_draws(uniforms, size, tokens)
        eos, pad = tokenizer.eos_token_id, pad_id(tokenizer)
        rollout = generate(start.model, [prompt.ids], size, tokens, eos, pad, draws)
        rewards = {judge_ids(tokenizer, rollout.answer_ids(row), example.problem).reward for row in range(size)}
        if len(rewards) == 2:
            found.append((prompt, rollout, dataset_row(example.id, example.statement, example.problem)))
        if len(found) == groups:
            break
    return found


def _joined(profile: Profile, start: LoadedBase, parts: list[tuple[RolloutPrompt, Rollout]]) -> Batch:
    """Groups of one answer width each as one batch."""
    prompts, rollouts = [prompt for prompt, _ in parts], [rollout for _, rollout in parts]
    answers = [rollout.answer_ids(row) for rollout in rollouts for row in range(len(rollout.ids))]
    ids, mask = pad_targets(answers, pad_id(start.tokenizer))
    captured = torch.cat([rollout.logprobs[rollout.mask] for rollout in rollouts])
    logprobs = torch.zeros(mask.shape).masked_scatter(mask, captured)
    reasons = tuple(reason for rollout in rollouts for reason in rollout.finish_reasons)
    size = len(answers) // len(prompts)
    verdicts = [judge_ids(start.tokenizer, ids, prompts[row // size].problem) for row, ids in enumerate(answers)]
    rewards = torch.tensor([float(verdict.reward) for verdict in verdicts]).view(len(prompts), size)
    advantages = group_advantages(rewards, profile.grpo.advantage_epsilon).flatten()
    texts = [decode_answer(start.tokenizer, answer) for answer in answers]
    rollout = Rollout(ids, mask, logprobs, reasons, torch.zeros(1, 0))
    return Batch(prompts, rollout, verdicts, texts, rewards, advantages)


# --- Ours ------------------------------------------------------------------------------------------


def our_loss(profile: Profile, policy: PreTrainedModel, reference: LoadedBase, batch: Batch, kl_weight: float) -> Loss:
    """Value and gradient of the loss that lab 03's trainer minimises, with `kl_weight` for the exact KL."""
    trainer = our_trainer(profile, policy, reference, kl_weight)
    trainer.optimizer = _Keeping()
    hidden = masked_hidden(
        reference.model, batch.prompt_ids, batch.rollout.ids, batch.rollout.mask, pad_id(reference.tokenizer)
    )
    report = trainer.update(batch, hidden)
    return Loss(report["loss"], _taken(policy))


def our_trainer(
    profile: Profile, policy: PreTrainedModel, reference: LoadedBase, kl_weight: float | None = None
) -> GrpoTrainer:
    """The labs' trainer with a whole batch in one micro-batch, at the profile's peak rate."""
    weight = profile.grpo.kl_weight if kl_weight is None else kl_weight
    grpo = replace(profile.grpo, iterations=1, kl_weight=weight, micro_batch_prompts=MOST_SEARCHED)
    tokens = profile.budget.answer_tokens
    settings = GrpoSettings(grpo, profile.optimizer, profile.kl_block, tokens, profile.seed, "lab07")
    return GrpoTrainer(policy, reference.model, reference.tokenizer, [], settings)


class _Keeping:
    """An optimiser that leaves gradient and parameters as they are."""

    def step(self) -> dict[str, float]:
        return {}


def _taken(model: torch.nn.Module) -> torch.Tensor:
    """All gradients as one vector in FP64, in the order of the names; cleared afterwards."""
    named = sorted(model.named_parameters())
    flat = torch.cat([parameter.grad.double().flatten() for _, parameter in named])
    model.zero_grad()
    return flat


def moved_policy(profile: Profile, source: PolicySource, batch: Batch) -> PreTrainedModel:
    """The start after one update of ours on the batch: the ratios of the next one are not 1."""
    policy, reference = source.load().model, source.load()
    trainer = our_trainer(profile, policy, reference)
    hidden = masked_hidden(
        reference.model, batch.prompt_ids, batch.rollout.ids, batch.rollout.mask, pad_id(reference.tokenizer)
    )
    trainer.update(batch, hidden)
    return policy


# --- Theirs ----------------------------------------------------------------------------------------


class Engine:
    """TRL's trainer on the start's folder, with a fixed batch in place of its sampling; use it in a `with`.

    Attributes:
        inputs: what TRL's `_generate_and_score_completions` made of the batch, under the start.
    """

    def __init__(self, profile: Profile, source: PolicySource, fixed: FixedBatch, **changes: Any) -> None:
        require_engine()
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental, which it says each time
        from trl import GRPOTrainer

        self._folder = tempfile.TemporaryDirectory()
        self.size = profile.grpo.group_size
        start, run = Path(self._folder.name) / "start", Path(self._folder.name) / "run"
        export_policy(profile, source, start)
        answers = len(fixed.batch.verdicts)
        whole = {"per_device_train_batch_size": answers, "gradient_accumulation_steps": 1}  # the batch is not cut
        config = grpo_config(profile, 1, str(run), **whole, **changes)
        tokenizer = source.load().tokenizer
        self.trainer = GRPOTrainer(
            str(start),
            VerifierReward(tokenizer),
            config,
            as_dataset(fixed.rows),
            processing_class=tokenizer,
            rollout_func=lambda prompts, trainer: _played(fixed.batch, len(prompts)),
        )
        self.trainer.current_gradient_accumulation_steps = 1  # what its training loop sets
        self.trainer.model.train()  # else it takes the batch for an evaluation
        rows = [row for row in fixed.rows for _ in range(self.size)]
        self.inputs = self.trainer._generate_and_score_completions(rows)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def loss(self, policy: PreTrainedModel, advantages: torch.Tensor | None = None) -> Loss:
        """TRL's loss of the batch for the weights of `policy`; `advantages` (A,) take the place of TRL's own."""
        model = self.trainer.model
        model.load_state_dict(policy.state_dict())
        inputs = self.inputs if advantages is None else self.inputs | {"advantages": advantages}
        value = self.trainer._compute_loss(model, inputs)
        value.backward()
        return Loss(value.item(), _taken(model))

    def logprobs(self, policy: PreTrainedModel) -> torch.Tensor:
        """TRL's log-probabilities (A, T) of the answers under the weights of `policy`, right-padded."""
        self.trainer.model.load_state_dict(policy.state_dict())
        asked, given = self.inputs["prompt_ids"], self.inputs["completion_ids"]
        masks = self.inputs["prompt_mask"], self.inputs["completion_mask"]
        with torch.no_grad():
            return self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model, torch.cat([asked, given], dim=1), torch.cat(masks, dim=1), given.shape[1]
            )[0]

    def metric(self, name: str) -> float:
        """The last value of one of TRL's own metrics, such as "kl" or "clip_ratio/region_mean"."""
        return self.trainer._metrics["train"][name][-1]


def _played(batch: Batch, answers: int) -> dict[str, Any]:
    """The batch's answers as what a `rollout_func` returns."""
    size = len(batch.verdicts) // len(batch.prompts)
    rows = range(answers)
    return {
        "prompt_ids": [batch.prompt_ids[row // size] for row in rows],
        "completion_ids": [batch.rollout.answer_ids(row) for row in rows],
        "logprobs": [batch.rollout.logprobs[row, batch.rollout.mask[row]].tolist() for row in rows],
    }


# --- Side by side ----------------------------------------------------------------------------------


def relative_gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Length of the difference of two vectors, as a share of the expected one's."""
    return float((found - expected).norm() / expected.norm())


def cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    """Cosine of the angle between two vectors: what an optimiser that rescales gradients makes of them."""
    return float(torch.nn.functional.cosine_similarity(first, second, dim=0))
