"""Intervals and paired comparisons: what a difference of a few answers out of 200 is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np

from labs_lib.errors import LabError

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


@dataclass(frozen=True)
class Interval:
    """A 95 % interval `low`..`high` around `value`."""

    value: float
    low: float
    high: float


def wilson(correct: int, n: int) -> Interval:
    """Wilson's score interval (1927) for a proportion of independent trials; sensible also at 0 and n.

    Raises:
        LabError: not 0 <= correct <= n, or n < 1.
    """
    if n < 1 or not 0 <= correct <= n:
        raise LabError(f"A share of {correct} in {n} does not exist: correct must be in 0..n and n at least 1.")
    rate, z2 = correct / n, Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * sqrt(rate * (1 - rate) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # At the ends the exact bounds are 0 and 1; rounding must not leave them outside of the interval.
    return Interval(rate, 0.0 if correct == 0 else centre - half, 1.0 if correct == n else centre + half)


def bootstrap_mean(values: Sequence[float], draws: int, seed: int) -> Interval:
    """Percentile bootstrap of the mean over problems (Efron 1979).

    `values` holds one number per problem, for example the share of its four samples that are right: samples of
    one problem are not independent, so problems are resampled, not answers.

    Raises:
        LabError: no values.
    """
    if not len(values):
        raise LabError("A bootstrap needs at least one value.")
    data = np.asarray(values, dtype=np.float64)
    chosen = np.random.default_rng(seed).integers(0, len(data), size=(draws, len(data)))
    # Whole numbers add up alike on every processor; a mean of floats might not.
    low, high = np.sort(data[chosen].sum(axis=1))[[int(0.025 * draws), int(0.975 * draws) - 1]] / len(data)
    return Interval(float(data.sum() / len(data)), float(low), float(high))


@dataclass(frozen=True)
class PairedComparison:
    """Two policies on the same problems: the mean difference (second minus first) and who won how often."""

    difference: Interval
    only_first: int
    only_second: int
    p_value: float


def compare_paired(first: Sequence[float], second: Sequence[float], draws: int, seed: int) -> PairedComparison:
    """Bootstrap of the paired difference, and an exact two-sided sign test over problems where they differ.

    On 0/1 values the sign test is McNemar's (1947) in its exact form.

    Raises:
        LabError: not the same number of problems.
    """
    if len(first) != len(second):
        raise LabError(f"A paired comparison needs the same problems: got {len(first)} and {len(second)} values.")
    wins = sum(b > a for a, b in zip(first, second, strict=True))
    losses = sum(a > b for a, b in zip(first, second, strict=True))
    differences = [b - a for a, b in zip(first, second, strict=True)]
    return PairedComparison(bootstrap_mean(differences, draws, seed), losses, wins, sign_test(wins, losses))


def sign_test(wins: int, losses: int) -> float:
    """Exact two-sided binomial p-value of `wins` against `losses` under a fair coin; 1 without any."""
    n, tail = wins + losses, min(wins, losses)
    return min(1.0, 2 * sum(comb(n, k) for k in range(tail + 1)) / 2**n)
