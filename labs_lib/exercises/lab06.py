"""Exercises of lab 06: the division by the standard deviation, DAPO's loss, a sweep of the clip's upper bound."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch

from labs_lib.bench.losses import Variant
from labs_lib.exercises.check import Comparison, Exercise, Property, close


def _fp64(rows: Sequence) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- 1: the division ---------------------------------------------------------------------------------

Advantages = Callable[..., torch.Tensor]
MIXED = _fp64([[1.0] * right + [0.0] * (8 - right) for right in range(1, 8)])
PARTIAL = _fp64([[2.0, -1.0, 0.5, 0.5], [0.0, 0.0, 3.0, 5.0]])
# The mean of three FP64 values 0.1 is not 0.1.
CONSTANT = _fp64([[0.1] * 3, [1.0] * 3, [0.0] * 3])


def _of_mixed(good: Callable[[int], float], bad: Callable[[int], float]) -> torch.Tensor:
    """What right and wrong answers get in each group of `MIXED`, from the number of right ones."""
    return _fp64([[good(right)] * right + [bad(right)] * (8 - right) for right in range(1, 8)])


BATCH_ADVANTAGES = Exercise(
    "batch_advantages",
    (
        Property(
            "without the division: reward minus the mean of its own group",
            lambda f: close(f(MIXED, False), _of_mixed(lambda k: 1 - k / 8, lambda k: -k / 8)),
        ),
        Property(
            "with it: over the population's standard deviation, that of all G rewards and not G - 1",
            lambda f: close(f(MIXED, True), _of_mixed(lambda k: sqrt((8 - k) / k), lambda k: -sqrt(k / (8 - k)))),
        ),
        Property(
            "rewards between and beyond 0 and 1 are treated alike",
            lambda f: close(
                f(PARTIAL, True),
                _fp64([[sqrt(2), -sqrt(2), 0, 0], [x / sqrt(18 / 4) for x in (-2, -2, 1, 3)]]),
            ),
        ),
        Property(
            "a constant group gets exactly 0 both ways, even where its mean is off by rounding",
            lambda f: close(torch.stack([f(CONSTANT, False), f(CONSTANT, True)]), _fp64([[[0] * 3] * 3] * 2), 0.0),
        ),
    ),
)

# --- 2: DAPO's loss ----------------------------------------------------------------------------------

Loss = Callable[..., torch.Tensor]
# Three answers, of 3, 1 and 2 tokens.
MASK = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
OLD = -_fp64([[1.0, 0.5, 0.25], [2.0, 0.0, 0.0], [0.75, 1.5, 0.0]])
ADVANTAGES = _fp64([1.5, -0.5, -1.0])
ONES = _fp64([[1.0] * 3] * 3)
INSIDE = _fp64([[1.1, 0.95, 1.2], [1.2, 1, 1], [0.85, 1.1, 1]])
GAINED = _fp64([[1.6, 1.27, 1], [0.5, 1, 1], [1, 1, 1]])  # a good token grew, a bad one shrank
LOST = _fp64([[0.5, 0.5, 1], [1.6, 1, 1], [1, 2, 1]])


def _padded(ratios: torch.Tensor, filler: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities now and as sampled, `ratios` apart, with `filler` off the mask."""
    return (OLD + ratios.log()).masked_fill(~MASK, filler), OLD.masked_fill(~MASK, filler)


def _dapo(
    function: Loss,
    ratios: torch.Tensor,
    expected: float,
    rows: slice = slice(0, 3),
    bounds: tuple[float, float] = (0.2, 0.28),
    filler: float = 0.0,
) -> Comparison:
    now, old = _padded(ratios, filler)
    return close(function(now[rows], old[rows], ADVANTAGES[rows], MASK[rows], *bounds), _fp64(expected), 1e-9)


def _dapo_gradient(function: Loss) -> Comparison:
    now, old = (t.requires_grad_() for t in _padded(GAINED, torch.nan))
    loss = function(now, old, ADVANTAGES, MASK, 0.2, 0.28)
    if not (isinstance(loss, torch.Tensor) and loss.requires_grad):
        return Comparison("no gradient flows to the log-probabilities; something is detached")
    gradient, of_old = torch.autograd.grad(loss, [now, old], allow_unused=True)
    if of_old is not None and not torch.equal(of_old.nan_to_num(), torch.zeros_like(of_old)):
        return Comparison("a gradient flows into the old log-probabilities, which are constants")
    if gradient is None:
        return Comparison("no gradient reaches the log-probabilities")
    return close(gradient, _fp64([[0, -1.5 * 1.27, -1.5], [0, 0, 0], [1, 1, 0]]) / 6, 1e-9)


DAPO_LOSS = Exercise(
    "dapo_loss",
    (
        Property(
            "where the ratio is 1, an answer of one token costs minus its advantage, however long its padding",
            lambda f: _dapo(f, ONES, 0.5, rows=slice(1, 2)),
        ),
        Property(
            "every active token of the batch counts the same, so a long answer counts more",
            lambda f: _dapo(f, ONES, -(3 * 1.5 - 0.5 - 2 * 1.0) / 6),
        ),
        Property(
            "inside of the bounds a token's advantage is multiplied by its own e^(now - old)",
            lambda f: _dapo(f, INSIDE, -(3.25 * 1.5 - 1.2 * 0.5 - 1.95 * 1.0) / 6),
        ),
        Property(
            "a good token gains nothing above 1 + clip_high, a bad one nothing below 1 - clip_low",
            lambda f: _dapo(f, GAINED, -((1.28 + 1.27 + 1) * 1.5 - 0.8 * 0.5 - 2 * 1.0) / 6),
        ),
        Property(
            "the two bounds are what the caller asks for, each on its side",
            lambda f: _dapo(f, GAINED, -((1.5 + 1.27 + 1) * 1.5 - 0.9 * 0.5 - 2 * 1.0) / 6, bounds=(0.1, 0.5)),
        ),
        Property(
            "the clip is one-sided: a token that moved the wrong way pays for all of it",
            lambda f: _dapo(f, LOST, -((0.5 + 0.5 + 1) * 1.5 - 1.6 * 0.5 - (1 + 2) * 1.0) / 6),
        ),
        Property(
            "what stands off the mask does not count",
            lambda f: _dapo(f, INSIDE, -2.325 / 6, filler=7.0),
        ),
        Property("not even as NaN", lambda f: _dapo(f, INSIDE, -2.325 / 6, filler=torch.nan)),
        Property(
            "the gradient is minus advantage times ratio over all tokens, 0 where clipped and on padding of NaN",
            _dapo_gradient,
        ),
    ),
)

# --- 3: a sweep, and what to look for in it ----------------------------------------------------------

Sweep = Callable[[Sequence[float]], dict[str, Variant]]
BOUNDS = (0.25, 0.28, 0.5)


def _swept(
    read: Callable[[dict[str, Variant]], Any], expected: Any, bounds: Sequence[float] = BOUNDS
) -> Callable[[Sweep], Comparison]:
    def holds(function: Sweep) -> Comparison:
        found = function(bounds)
        if not (isinstance(found, dict) and all(isinstance(variant, Variant) for variant in found.values())):
            return Comparison("the result is not a dict of variants")
        return Comparison(None if read(found) == expected else f"not so for the bounds {bounds}")

    return holds


SWEEP = Exercise(
    "sweep",
    (
        Property("one variant for each bound, in order, named by the bound", _swept(list, ["0.25", "0.28", "0.5"])),
        Property(
            "the bound is the upper one",
            _swept(lambda found: [variant.clip_high for variant in found.values()], [0.25, 0.28, 0.5]),
        ),
        Property(
            "everything else is as in GRPO, the lower bound too",
            _swept(
                lambda found: [repr(variant) for variant in found.values()],
                [repr(Variant(clip_high=b)) for b in BOUNDS],
            ),
        ),
        Property("any bounds may be asked for", _swept(list, ["0.4", "0.2"], (0.4, 0.2))),
    ),
)

CURVE = _fp64([[0.0, 0.0], [0.75, 0.25], [0.5, 1.0], [0.25, 0.5], [1.0, 1.0]])  # means 0, 0.5, 0.75, 0.375, 1
THREE = _fp64([[0.0, 0.0, 0.0], [0.9, 0.0, 0.0], [0.9, 0.9, 0.0]])


def _passes(curve: torch.Tensor, *cases: tuple[float, int | None]) -> Callable[[Callable], Comparison]:
    """Whether the function finds the iteration of each case (level, iteration)."""

    def holds(function: Callable[[torch.Tensor, float], int | None]) -> Comparison:
        found = [function(curve, level) for level, _ in cases]
        if any(iteration is not None and type(iteration) is not int for iteration in found):
            return Comparison("the result is neither a whole number nor None")
        return Comparison(None if found == [iteration for _, iteration in cases] else "another iteration is named")

    return holds


STEPS_TO = Exercise(
    "steps_to",
    (
        Property(
            "the first iteration above the level is named, also if the curve falls again", _passes(CURVE, (0.4, 1))
        ),
        Property("the mean over seeds counts, not the best, worst or middle one", _passes(CURVE, (0.7, 2))),
        Property("of any number of seeds", _passes(THREE, (0.25, 1), (0.5, 2))),
        Property("a curve that only touches the level has not passed it", _passes(CURVE, (0.5, 2))),
        Property("a curve that starts above the level has passed it at 0", _passes(CURVE, (-0.1, 0))),
        Property("a curve that never passes gives None", _passes(CURVE, (1.0, None))),
    ),
)

# One column a seed: falls and climbs higher, never falls, falls in two steps.
SEEDS = _fp64([[0.2, 0.0, 0.5], [0.9, 0.5, 0.6], [0.5, 0.6, 0.3], [0.7, 0.8, 0.1], [0.95, 0.8, 0.2]])
LARGEST_FALL = Exercise(
    "largest_fall",
    (
        Property("a seed that never falls has 0", lambda f: close(f(SEEDS[:, 1:2]), _fp64([0.0]), 1e-12)),
        Property(
            "a fall is below the best *before* it, also if the seed climbs higher later",
            lambda f: close(f(SEEDS[:, :1]), _fp64([0.4]), 1e-9),
        ),
        Property("a fall may take several iterations", lambda f: close(f(SEEDS[:, 2:]), _fp64([0.5]), 1e-9)),
        Property("every seed has its own", lambda f: close(f(SEEDS), _fp64([0.4, 0.0, 0.5]), 1e-9)),
    ),
)
