"""What can pay PPO's answers: a frozen judge, or (as the control) the rubric that evaluation reserves."""

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from labs_lib.models.chat import ids_known
from labs_lib.models.roles import Scalar
from labs_lib.rollout import Rollout
from labs_lib.scoring import answer_scores
from labs_lib.tasks.office_help.rubric import judge_answer
from labs_lib.training.ppo import PpoPrompt


class JudgeReward:
    """The score of a frozen judge: a predicted score of a simulated preference, neither probability nor usefulness."""

    def __init__(self, judge: Scalar, pad: int):
        self.judge, self.pad = judge.requires_grad_(False), pad
        self.roles: Mapping[str, torch.nn.Module] = {"judge": judge}

    def __call__(self, prompts: Sequence[PpoPrompt], rollout: Rollout, texts: Sequence[str]) -> torch.Tensor:
        return answer_scores(self.judge, [prompt.ids for prompt in prompts], rollout.ids, rollout.mask, self.pad)


class RubricReward:
    """1 for an answer that the rubric certifies, else 0; `actions` holds the right action of each prompt by name."""

    roles: Mapping[str, torch.nn.Module] = {}

    def __init__(self, actions: Mapping[str, str], tokenizer: PreTrainedTokenizerBase):
        self.actions, self.tokenizer = actions, tokenizer

    def __call__(self, prompts: Sequence[PpoPrompt], rollout: Rollout, texts: Sequence[str]) -> torch.Tensor:
        verdicts = [
            judge_answer(
                text,
                rollout.finish_reasons[row],
                self.actions[prompt.name],
                ids_known(self.tokenizer, rollout.answer_ids(row)),
            )
            for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
        ]
        return torch.tensor([float(verdict.success) for verdict in verdicts], device=rollout.ids.device)
