"""Lab 05 to play with: how far γ and λ carry the score of one answer back, and what its end changes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from labs_lib.config import Ppo
from labs_lib.figures.lab05 import token_bars
from labs_lib.interactive.play import Choice, Play, Slider, View
from labs_lib.kernels.gae import GaeResult, generalised_advantages, token_rewards
from labs_lib.notebook import SIGN

FURTHEST_SCORE = 8.0  # of a judge, to either side
EOS, CUT = "EOS", "cut at the limit"


def answer_credit(tokens: Sequence[str], answer: Mapping[str, Any], ppo: Ppo) -> Play:
    """Rewards, values, advantages and returns of one answer of a PPO run, by γ, λ, score and end.

    Args:
        tokens: the text of each token.
        answer: what the run recorded of it: "logprobs", "reference_logprobs" and "values", one number a token, "score"
            and "finish_reason".
    """
    score = round(min(max(answer["score"], -FURTHEST_SCORE), FURTHEST_SCORE), 1)
    controls = {
        "gamma": Slider("γ", ppo.gamma, 0.0, 1.0, 0.05),
        "gae_lambda": Slider("λ", ppo.gae_lambda, 0.0, 1.0, 0.05),
        "score": Slider("score", score, -FURTHEST_SCORE, FURTHEST_SCORE, 0.1),
        "end": Choice("end", CUT if answer["finish_reason"] == "length" else EOS, [EOS, CUT]),
    }
    limits = _limits(answer, ppo)

    def view(gamma: float, gae_lambda: float, score: float, end: str) -> View:
        rewards, found = credit_of(answer, ppo, gamma, gae_lambda, score, end)
        columns = {
            "reward": rewards[0].tolist(),
            "value": answer["values"],
            "advantage": found.advantages[0].tolist(),
            "return": found.returns[0].tolist(),
        }
        return View(token_bars(tokens, columns, limits), _numbers(columns))

    alt = (
        "Four rows of bars over the tokens of one answer, with axes that stay: reward, value, advantage and return, "
        "for the chosen discount, lambda, score and end."
    )
    return Play(view, controls, "05-play-gae", alt)


def credit_of(
    answer: Mapping[str, Any], ppo: Ppo, gamma: float, gae_lambda: float, score: float, end: str
) -> tuple[torch.Tensor, GaeResult]:
    """Token rewards (1, T) FP64 of an answer with another score and end, and what GAE makes of them."""
    old, reference, values = (
        torch.tensor([answer[name]], dtype=torch.float64) for name in ("logprobs", "reference_logprobs", "values")
    )
    mask = torch.ones_like(old, dtype=torch.bool)
    paid, cut = torch.tensor([score], dtype=torch.float64), torch.tensor([end == CUT])
    rewards = token_rewards(old, reference, paid, cut, mask, ppo.kl_weight, ppo.truncation_penalty)
    return rewards, generalised_advantages(rewards, values, mask, gamma, gae_lambda)


def _limits(answer: Mapping[str, Any], ppo: Ppo) -> dict[str, float]:
    """How far each row can reach, wherever the controls stand.

    A return is a mean of sums of rewards that end in a value or in nothing; an advantage is a value less than that.
    """
    log_ratios = zip(answer["logprobs"], answer["reference_logprobs"], strict=True)
    reward = FURTHEST_SCORE + ppo.truncation_penalty + ppo.kl_weight * sum(abs(a - b) for a, b in log_ratios)
    value = max(abs(value) for value in answer["values"])
    return {"reward": reward, "value": reward, "advantage": reward + 2 * value, "return": reward + value}


def _numbers(columns: Mapping[str, Sequence[float]]) -> str:
    lines = [f"{name:<9} first token {SIGN}{c[0]:z.2f}, last {SIGN}{c[-1]:z.2f}" for name, c in columns.items()]
    return "\n".join(lines)
