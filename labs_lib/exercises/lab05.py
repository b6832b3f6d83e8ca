"""Exercises of lab 05: token rewards, advantages of a padded batch, the critic's loss, DPO, a detector."""

from collections.abc import Callable
from math import log
from typing import Any

import torch

from labs_lib.exercises.check import Comparison, Exercise, Property, all_hold, close

# --- A padded batch of three answers: of 3, 1 and 2 tokens -------------------------------------------

MASK = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
OLD = -torch.tensor([[1.0, 0.5, 0.25], [2.0, 0.0, 0.0], [0.75, 1.5, 0.0]])
REFERENCE = -torch.tensor([[1.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.75, 2.5, 0.0]])
REWARDS = torch.tensor([[0.0, 0.0, 1.0], [-2.0, 0.0, 0.0], [0.5, 4.0, 0.0]])
VALUES = torch.tensor([[0.4, 0.6, 0.5], [1.5, 0.0, 0.0], [-1.0, 2.0, 0.0]])
RETURNS = torch.tensor([[1.0, -0.4, 0.5], [0.5, 0.0, 0.0], [2.0, 2.0, 0.0]])


def _padded(tensor: torch.Tensor, filler: float) -> torch.Tensor:
    return tensor.masked_fill(~MASK, filler)


def _constant(result: Any) -> Comparison:
    parts = result if isinstance(result, tuple) else (result,)
    grows = any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)
    return Comparison("the result requires grad: rewards and advantages are constants" if grows else None)


# --- 1: token rewards --------------------------------------------------------------------------------

SCORES, TRUNCATED, NEVER = (
    torch.tensor([1.0, -2.0, 4.0]),
    torch.tensor([False, True, False]),
    torch.zeros(3, dtype=torch.bool),
)
Rewards = Callable[..., torch.Tensor]


def _rewards(
    function: Rewards,
    expected: list[list[float]],
    scores: torch.Tensor,
    truncated: torch.Tensor,
    kl_weight: float,
    filler: float = 0.0,
) -> Comparison:
    found = function(_padded(OLD, filler), _padded(REFERENCE, filler), scores, truncated, MASK, kl_weight, 1.0)
    return close(found, torch.tensor(expected), 1e-6)


BATCH_TOKEN_REWARDS = Exercise(
    "batch_token_rewards",
    (
        Property(
            "every token pays for leaving the reference, and is paid for coming back",
            lambda f: _rewards(f, [[-0.05, 0.025, 0], [0.1, 0, 0], [0, -0.1, 0]], torch.zeros(3), NEVER, 0.1),
        ),
        Property(
            "the score stands once, on the last active token of its answer",
            lambda f: _rewards(f, [[0, 0, 1.0], [-2.0, 0, 0], [0, 4.0, 0]], SCORES, NEVER, 0.0),
        ),
        Property(
            "an answer cut at the limit pays the penalty on its last token, and only there",
            lambda f: _rewards(f, [[-0.05, 0.025, 1], [-2.9, 0, 0], [0, 3.9, 0]], SCORES, TRUNCATED, 0.1),
        ),
        Property(
            "what stands off the mask does not count, not even NaN, and is 0 in the result",
            lambda f: all_hold(
                _rewards(f, [[-0.05, 0.025, 1], [-1.9, 0, 0], [0, 3.9, 0]], SCORES, NEVER, 0.1, filler)
                for filler in (3.0, torch.nan)
            ),
        ),
        Property(
            "rewards are constants",
            lambda f: _constant(f(OLD.clone().requires_grad_(), REFERENCE, SCORES, NEVER, MASK, 0.1, 1.0)),
        ),
    ),
)

# --- 2: advantages -----------------------------------------------------------------------------------

Gae = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def _expected_gae(gamma: float, gae_lambda: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Equation 16 of Schulman et al. (2016) as a sum, in FP64."""
    advantages, returns = torch.zeros(MASK.shape), torch.zeros(MASK.shape)
    for row, length in enumerate(MASK.sum(dim=1).tolist()):
        r, v = REWARDS[row].double().tolist(), [*VALUES[row, :length].double().tolist(), 0.0]
        deltas = [r[t] + gamma * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            advantages[row, t] = sum((gamma * gae_lambda) ** k * deltas[t + k] for k in range(length - t))
            returns[row, t] = advantages[row, t] + v[t]
    return advantages, returns


def _gae(function: Gae, gamma: float, gae_lambda: float, filler: float = 0.0, part: int | None = None) -> Comparison:
    found = function(_padded(REWARDS, filler), _padded(VALUES, filler), MASK, gamma, gae_lambda)
    if not isinstance(found, tuple) or len(found) != 2:
        return Comparison("the result is not a pair (advantages, returns)")
    pairs = list(zip(found, _expected_gae(gamma, gae_lambda), strict=True))
    return all_hold(close(actual, expected, 1e-5) for actual, expected in (pairs if part is None else [pairs[part]]))


BATCH_GAE = Exercise(
    "batch_gae",
    (
        Property("with lambda = 0 an advantage is the one-step error", lambda f: _gae(f, 1.0, 0.0, part=0)),
        Property("lambda passes later errors back", lambda f: _gae(f, 1.0, 0.95, part=0)),
        Property("gamma discounts the next value and the next advantage", lambda f: _gae(f, 0.5, 0.5, part=0)),
        Property(
            "a return is the advantage plus the value, in the units of the reward", lambda f: _gae(f, 1.0, 0.95, part=1)
        ),
        Property(
            "padding enters no result, not even as NaN, and is 0 there",
            lambda f: all_hold(_gae(f, 1.0, 0.95, filler) for filler in (7.0, torch.nan)),
        ),
        Property(
            "advantages and returns are constants",
            lambda f: _constant(f(REWARDS, VALUES.clone().requires_grad_(), MASK, 1.0, 0.95)),
        ),
    ),
)

# --- 3: the critic's loss ----------------------------------------------------------------------------

CriticLoss = Callable[..., torch.Tensor]


def _critic_value(function: CriticLoss, rows: slice, expected: float, filler: float = 0.0) -> Comparison:
    found = function(_padded(VALUES, filler)[rows], _padded(RETURNS, filler)[rows], MASK[rows])
    return close(found, torch.tensor(expected), 1e-6)


def _critic_gradient(function: CriticLoss) -> Comparison:
    values, returns = (_padded(t, torch.nan).requires_grad_() for t in (VALUES, RETURNS))
    loss = function(values, returns, MASK)
    if not (isinstance(loss, torch.Tensor) and loss.requires_grad):
        return Comparison("no gradient flows to the values; something is detached")
    gradient, of_target = torch.autograd.grad(loss, [values, returns], allow_unused=True)
    if of_target is not None and not torch.equal(of_target.nan_to_num(), torch.zeros_like(of_target)):
        return Comparison("a gradient flows into the returns, which are constants")
    weights = 1.0 / (len(MASK) * MASK.sum(dim=1, keepdim=True))
    expected = torch.where(MASK, (VALUES - RETURNS) * weights, 0.0)
    return Comparison("no gradient reaches the values") if gradient is None else close(gradient, expected, 1e-6)


BATCH_CRITIC_LOSS = Exercise(
    "batch_critic_loss",
    (
        Property("one token costs half of the squared error", lambda f: _critic_value(f, slice(1, 2), 0.5)),
        Property(
            "the mean over an answer's tokens is taken first",
            lambda f: _critic_value(f, slice(0, 1), (0.36 + 1.0) / 2 / 3),
        ),
        Property(
            "then every answer counts the same, however long",
            lambda f: _critic_value(f, slice(0, 3), (1.36 / 6 + 0.5 + 9.0 / 4) / 3),
        ),
        Property(
            "what stands off the mask does not count, not even NaN",
            lambda f: all_hold(
                _critic_value(f, slice(0, 3), (1.36 / 6 + 0.5 + 9.0 / 4) / 3, x) for x in (5.0, torch.nan)
            ),
        ),
        Property("the gradient is value minus return, over tokens and answers, and 0 on padding", _critic_gradient),
    ),
)

# --- 4: DPO ------------------------------------------------------------------------------------------

Dpo = Callable[..., torch.Tensor]
LN3 = log(3)


def _dpo(
    function: Dpo, policy: list[list[float]], reference: list[list[float]], beta: float, expected: float
) -> Comparison:
    sides = [torch.tensor(column, dtype=torch.float64) for column in (*policy, *reference)]
    return close(function(*sides, beta), torch.tensor(expected, dtype=torch.float64), 1e-6)


def _dpo_gradient(function: Dpo) -> Comparison:
    chosen, rejected = (torch.tensor([-4.0 + shift, -7.0], requires_grad=True) for shift in (LN3, -LN3))
    reference = torch.tensor([-4.0, -7.0])
    loss = function(chosen, rejected, reference, reference, 0.5)
    if not (isinstance(loss, torch.Tensor) and loss.requires_grad):
        return Comparison("no gradient flows to the policy; something is detached")
    found = torch.autograd.grad(loss, [chosen, rejected], allow_unused=True)
    if any(part is None for part in found):
        return Comparison("no gradient reaches one of the two sides")
    expected = torch.tensor([-0.125, -0.25]) / 2
    return all_hold(close(part, sign * expected, 1e-6) for part, sign in zip(found, (1, -1), strict=True))


BATCH_DPO_LOSS = Exercise(
    "batch_dpo_loss",
    (
        Property(
            "a policy that is its reference has loss log 2, whatever the log-probabilities",
            lambda f: _dpo(f, [[-4.0, -9.0], [-7.0, -3.0]], [[-4.0, -9.0], [-7.0, -3.0]], 0.1, log(2)),
        ),
        Property(
            "chosen 3 times and rejected a third as probable, at beta 0.5: -log(3/4)",
            lambda f: _dpo(f, [[-4.0 + LN3], [-7.0 - LN3]], [[-4.0], [-7.0]], 0.5, log(4 / 3)),
        ),
        Property(
            "the pairs' losses are averaged",
            lambda f: _dpo(f, [[-4.0 + LN3, -2.0], [-7.0 - LN3, -2.0]], [[-4.0, -2.0], [-7.0, -2.0]], 0.5, 0.490415),
        ),
        Property(
            "a margin of -5000 gives a loss of 5000, not infinity",
            lambda f: _dpo(f, [[-5000.0], [-1.0]], [[-1.0], [-2.0]], 1.0, 5000.0),
        ),
        Property("gradients are beta times (1 - sigmoid), with opposite signs on the two sides", _dpo_gradient),
    ),
)

# --- 5: where paid and reserved part -----------------------------------------------------------------

Detector = Callable[..., int | None]


def _steps(*levels: float) -> list[float]:
    """Three iterations at each level, around it by 0.25 up and down."""
    return [level + offset for level in levels for offset in (0.25, -0.25, 0.0)]


def _detects(paid: list[float], rubric: list[float], expected: int | None) -> Callable[[Detector], Comparison]:
    def holds(function: Detector) -> Comparison:
        found = function(paid, rubric, 3, 0.5, 0.1)
        if found is not None and type(found) is not int:
            return Comparison("the result is neither a whole number nor None")
        return Comparison(None if found == expected else "another window is named, or none, or one too many")

    return holds


_FLAT = [0.5] * 12
PARTED_AT = Exercise(
    "parted_at",
    (
        Property(
            "the first window in which the paid curve is up and the rubric down is named",
            _detects(_steps(1, 2, 3, 4), [0.6] * 3 + [0.6] * 3 + [0.3] * 3 + [0.2] * 3, 2),
        ),
        Property(
            "a rubric that stays, or rises too, is no parting",
            lambda f: all_hold(_detects(_steps(1, 2, 3, 4), curve, None)(f) for curve in (_FLAT, _steps(0, 1, 2, 3))),
        ),
        Property(
            "a rubric that falls while the paid curve falls too is no parting",
            _detects(_steps(4, 3, 2, 1), [0.6] * 3 + [0.4] * 9, None),
        ),
        Property(
            "means of windows count, not single iterations",
            _detects([1.0] * 3 + [3.0, 0.0, 0.0] + [1.0] * 6, [0.6] * 3 + [0.0, 0.9, 0.9] + [0.6] * 6, None),
        ),
        Property(
            "every window is compared with the first, so that slow drifts add up",
            _detects(_steps(1.0, 1.3, 1.6, 1.9), [0.6] * 3 + [0.55] * 3 + [0.49] * 3 + [0.43] * 3, 2),
        ),
        Property(
            "a last window that is not full does not count",
            _detects([*_steps(1, 1, 1), 5.0, 5.0], [0.6] * 9 + [0.0, 0.0], None),
        ),
    ),
)
