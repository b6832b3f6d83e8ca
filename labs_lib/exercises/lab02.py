"""The exercises of lab 02: mask, advantages, clipped loss, exact KL and the reduction to one number."""

from collections.abc import Callable
from math import log, sqrt

import torch

from labs_lib.exercises.check import Comparison, Exercise, Property, close, gradients

Function = Callable[..., torch.Tensor]


def _double(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- 2.1 ---------------------------------------------------------------------------------------------


def _mask_is(lengths: list[int], width: int, rows: list[list[int]]) -> Callable[[Function], Comparison]:
    expected = torch.tensor(rows, dtype=torch.bool)
    return lambda f: close(f(torch.tensor(lengths), width), expected)


ANSWER_MASK = Exercise(
    "answer_mask",
    (
        Property("one bool per answer and position: (answers, width)", _mask_is([2, 2], 2, [[1, 1], [1, 1]])),
        Property("the last of an answer's tokens, its EOS, is active", _mask_is([3, 4], 4, [[1, 1, 1, 0], [1] * 4])),
        Property("nothing after an answer's EOS is active", _mask_is([1, 3], 5, [[1, 0, 0, 0, 0], [1, 1, 1, 0, 0]])),
        Property("every answer has its own length", _mask_is([2, 1, 3], 3, [[1, 1, 0], [1, 0, 0], [1, 1, 1]])),
    ),
)

# --- 2.2 ---------------------------------------------------------------------------------------------

_ROOT3 = sqrt(3.0)
_ONE_RIGHT = _double([1, 0, 0, 0])
_TWO_GROUPS = _double([1, 0, 0, 0], [0, 5, 5, 0])
_TWO_GROUPS_WANTED = _double([_ROOT3, -1 / _ROOT3, -1 / _ROOT3, -1 / _ROOT3], [-1, 1, 1, -1])
_CONSTANT = torch.tensor([[0.1] * 8, [1.0] * 8, [0.0] * 8])  # FP32, where the mean of eight 0.1 is not 0.1
_MIXED = torch.tensor([[0.1] * 4, [1.0, 0.0, 1.0, 0.0]])

ADVANTAGES_OF_GROUPS = Exercise(
    "advantages_of_groups",
    (
        Property(
            "one advantage per reward, of the rewards' shape and dtype", lambda f: close(0 * f(_MIXED), 0 * _MIXED)
        ),
        Property(
            "one right answer of four gets the square root of 3 (population std)",
            lambda f: close(f(_ONE_RIGHT), _TWO_GROUPS_WANTED[:1]),
        ),
        Property("every group has its own mean and std", lambda f: close(f(_TWO_GROUPS), _TWO_GROUPS_WANTED)),
        Property(
            "epsilon is added to the std, not to the variance",
            lambda f: close(f(_double([1, 0, 1, 0]), 0.5), _double([0.5, -0.5, 0.5, -0.5])),
        ),
        Property(
            "equal rewards give exactly 0, also [0.1] * 8 in FP32",
            lambda f: close(f(_CONSTANT), torch.zeros(3, 8), atol=0.0),
        ),
        Property(
            "a constant group leaves the other groups as they are",
            lambda f: close(f(_MIXED), torch.tensor([[0.0] * 4, [1.0, -1.0, 1.0, -1.0]])),
        ),
    ),
)

# --- 2.3 ---------------------------------------------------------------------------------------------

_OLD = _double([-1, -1], [-1, -1])


def _ratios(*rows: list[float]) -> torch.Tensor:
    """Log-probabilities now that make these ratios with `_OLD`."""
    return _OLD + _double(*rows).log()


def _loss_is(ratios: list[list[float]], advantages: list[float], losses: list[list[float]]):
    inputs = (_ratios(*ratios), _OLD, torch.tensor(advantages, dtype=torch.float64))
    return lambda f: close(f(*inputs), _double(*losses))


def _slope_is(ratios: list[list[float]], advantages: list[float], slopes: list[list[float]]):
    weights = torch.tensor(advantages, dtype=torch.float64)
    return lambda f: close(gradients(lambda now: f(now, _OLD, weights), _ratios(*ratios))[0], _double(*slopes))


CLIPPED_LOSS = Exercise(
    "clipped_loss",
    (
        Property(
            "with unchanged log-probs the loss is −A, the same for every token of an answer",
            _loss_is([[1, 1], [1, 1]], [2, -3], [[-2, -2], [3, 3]]),
        ),
        Property(
            "within the clip range the loss is −ρA, and ρ = exp(now − old)",
            _loss_is([[1.1, 0.9], [1.1, 0.9]], [1, -1], [[-1.1, -0.9], [1.1, 0.9]]),
        ),
        Property(
            "a good answer that became likelier than 1.2 times gains no more, a bad one below 0.8 neither",
            _loss_is([[1.5, 1.2], [0.5, 0.8]], [1, -1], [[-1.2, -1.2], [0.8, 0.8]]),
        ),
        Property(
            "the clip is one-sided: a change for the worse counts in full",
            _loss_is([[0.5, 0.7], [1.5, 1.3]], [1, -1], [[-0.5, -0.7], [1.5, 1.3]]),
        ),
        Property(
            "where nothing is clipped, the gradient by the log-prob is −ρA",
            _slope_is([[1, 0.5], [1, 1.5]], [2, -2], [[-2, -1], [2, 3]]),
        ),
        Property(
            "where the clip acts the gradient is 0, and the other tokens keep theirs",
            _slope_is([[1.5, 1], [1, 0.5]], [1, -1], [[0, -1], [1, 0]]),
        ),
    ),
)

# --- 2.4 ---------------------------------------------------------------------------------------------

_P = _double([1 / 2, 1 / 4, 1 / 8, 1 / 8], [1 / 8, 1 / 8, 1 / 4, 1 / 2]).log()
_Q = _double([1 / 4] * 4, [1 / 2, 1 / 4, 1 / 8, 1 / 8]).log()
_KL = torch.tensor([log(2) / 4, 7 / 8 * log(2)], dtype=torch.float64)
_SHIFT = _double([3.0], [-5.0])  # a constant added to a row of logits changes no probability


def _kl_gradient() -> torch.Tensor:
    return _P.exp() * (_P - _Q - _KL.unsqueeze(-1))


EXACT_KL = Exercise(
    "exact_kl",
    (
        Property("one number a row: (..., V) becomes (...)", lambda f: close(0 * f(_P, _Q), 0 * _KL)),
        Property("identical policies have KL 0", lambda f: close(f(_P, _P.clone()), torch.zeros(2).double())),
        Property("p = (1/2, 1/4, 1/8, 1/8) against a uniform q gives log(2)/4", lambda f: close(f(_P, _Q), _KL)),
        Property(
            "logits are not normalised: adding a constant to a row changes nothing",
            lambda f: close(f(_P + _SHIFT, _Q - _SHIFT), _KL),
        ),
        Property("large logits (1000) give a finite result", lambda f: close(f(_P + 1000, _Q + 1000), _KL)),
        Property(
            "the gradient by the policy's logits is p (log p − log q − KL)",
            lambda f: close(gradients(lambda z: f(z, _Q), _P + _SHIFT)[0], _kl_gradient()),
        ),
    ),
)

# --- 2.5 ---------------------------------------------------------------------------------------------

_LENGTHS_1_3 = torch.tensor([[True, False, False], [True, True, True]])
_LOSSES = _double([1, 7, 7], [2, 2, 2])
_WITH_NAN = _double([1, torch.nan, torch.nan], [2, 2, 2])
_VALUE = torch.tensor(1.5, dtype=torch.float64)
_WEIGHTS = _double([1 / 2, 0, 0], [1 / 6] * 3)

ANSWER_MEAN_LOSS = Exercise(
    "answer_mean_loss",
    (
        Property(
            "the result is a tensor without dimensions", lambda f: close(0 * f(_LOSSES, _LENGTHS_1_3), 0 * _VALUE)
        ),
        Property(
            "lengths 1 and 3, token losses 1 and 2: the answers count alike, 1.5",
            lambda f: close(f(_LOSSES, _LENGTHS_1_3), _VALUE),
        ),
        Property(
            "padding never reaches the result, whatever it holds", lambda f: close(f(_WITH_NAN, _LENGTHS_1_3), _VALUE)
        ),
        Property(
            "each token weighs 1 / (answers × tokens of its answer) in the gradient",
            lambda f: close(gradients(lambda values: f(values, _LENGTHS_1_3), _LOSSES)[0], _WEIGHTS),
        ),
    ),
)
