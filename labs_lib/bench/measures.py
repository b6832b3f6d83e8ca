"""Three measures that need no training: what each debated term does to a gradient, an advantage and a step."""

from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

import torch

from labs_lib.bench.policies import initial_mlp, state_features, states_of
from labs_lib.errors import LabError
from labs_lib.tasks.padded_bits.environment import answer_mask, as_tensor, is_right

# Right and wrong answers to key 0, four of each; "long" has four tokens or more.
BUFFER = [
    *[(1, 3), (1, 3), (0, 0, 0, 1, 3), (0, 0, 1, 3)],
    *[(2, 3), (2, 3), (0, 0, 0, 2, 3), (0, 1, 1, 2, 3)],
]
LONG = 4
BUCKETS = ("right short", "right long", "wrong short", "wrong long")


def bucket(answer: Sequence[int]) -> str:
    """One of `BUCKETS`, for an answer to key 0."""
    return f"{'right' if is_right(tuple(answer), 0) else 'wrong'} {'long' if len(answer) >= LONG else 'short'}"


def bucket_gradients(
    length: float | None, std: bool, seed: int, correction: int = 0, epsilon: float = 0.0
) -> dict[str, float]:
    """How hard each bucket of `BUFFER` pulls at a fresh policy: sum of absolute gradients of its mean loss.

    The loss of an answer is -A sum(log-probs) / length, in FP32 with torch's own initialisation.

    Args:
        length: the divisor; None: each answer's own length.
        std: divide advantages by the standard deviation (`correction` 0: population, 1: Bessel's) plus `epsilon`.
    """
    policy, answers = initial_mlp(seed), as_tensor(BUFFER)
    paid = torch.tensor([float(is_right(answer, 0)) for answer in BUFFER])
    advantages = paid - paid.mean()
    if std:
        advantages = advantages / (paid.std(correction=correction) + epsilon)
    features = state_features(2).float()[states_of(answers, torch.zeros(len(answers), dtype=torch.int64))]
    mask = answer_mask(answers)
    logprobs = policy(features).log_softmax(dim=-1).gather(-1, answers.unsqueeze(-1)).squeeze(-1)
    lengths = mask.sum(dim=1) if length is None else torch.full((len(answers),), length)
    losses = -advantages * torch.where(mask, logprobs, 0.0).sum(dim=1) / lengths
    rows = [bucket(answer) for answer in BUFFER]
    found = {}
    for name in BUCKETS:
        loss = losses[[row == name for row in rows]].mean()
        gradients = torch.autograd.grad(loss, list(policy.parameters()), retain_graph=True)
        found[name] = sum(gradient.abs().sum().item() for gradient in gradients)
    return found


class Difficulty(NamedTuple):
    """Advantages of right and wrong answers in a group with k right ones, with and without the division by std."""

    right: float
    wrong: float
    raw_right: float
    raw_wrong: float
    factor: float


def difficulty(right: int, group_size: int = 8) -> Difficulty:
    """What dividing by the population standard deviation makes of a group with `right` right answers, exactly.

    Raises LabError for a group that is all right or all wrong: it has no signal.
    """
    if not 0 < right < group_size:
        raise LabError(f"{right} of {group_size} right is a constant group: give 1 to {group_size - 1}.")
    share = right / group_size
    deviation = sqrt(share * (1 - share))
    return Difficulty((1 - share) / deviation, -share / deviation, 1 - share, -share, 1 / deviation)


def clip_steps(start: float, goal: float, epsilon: float) -> float:
    """Rollout batches from probability `start` to `goal` if each could multiply it by 1 + epsilon at most.

    Raises LabError unless 0 < start < goal <= 1 and epsilon > 0.
    """
    if not (0 < start < goal <= 1 and epsilon > 0):
        raise LabError(f"No climb from {start} to {goal} by {epsilon}: give 0 < start < goal <= 1 and epsilon > 0.")
    return log(goal / start) / log(1 + epsilon)
