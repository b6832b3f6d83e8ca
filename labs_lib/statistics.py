"""Intervals and paired comparisons: what a difference of a few answers out of 200 is worth."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np

from labs_lib.errors import LabError

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution
# Student's t, two-sided 95 %, by degrees of freedom: what a mean over seeds is worth.
T95 = [
    *(float("inf"), 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
]


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


def bootstrap_ratio(groups: Sequence[tuple[float, float]], draws: int, seed: int) -> Interval:
    """Percentile bootstrap of sum(numerators) / sum(denominators) over independent groups (Efron 1979).

    For a rate whose rows come in groups that are not independent within, such as the five prompts of a family. A
    resample without any denominator is left out.

    Raises:
        LabError: no group with a denominator above 0.
    """
    if not any(weight > 0 for _, weight in groups):
        raise LabError("A bootstrap of a ratio needs at least one group with a denominator above 0.")
    data = np.asarray(groups, dtype=np.float64)
    chosen = np.random.default_rng(seed).integers(0, len(data), size=(draws, len(data)))
    numbers, weights = (data[:, column][chosen].sum(axis=1) for column in (0, 1))
    kept = np.sort(numbers[weights > 0] / weights[weights > 0])
    low, high = kept[[int(0.025 * len(kept)), max(0, int(0.975 * len(kept)) - 1)]]
    return Interval(float(data[:, 0].sum() / data[:, 1].sum()), float(low), float(high))


def mean_over_seeds(values: Iterable[float]) -> Interval:
    """Student's t interval (1908) of a mean; seeds are few, so it is wide, as it should be.

    Raises LabError for fewer than two values or more than 31.
    """
    values = list(values)
    if not 2 <= len(values) <= len(T95):
        raise LabError(f"An interval over seeds needs 2 to {len(T95)} of them, got {len(values)}.")
    mean = sum(values) / len(values)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = T95[len(values) - 1] * deviation / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def difference_of_seeds(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Second mean minus first, of two groups of independent runs: Student's t interval (1908) with a pooled variance.

    For runs that share no draws; where each run of one group has a partner in the other, pair them and use
    `mean_over_seeds` of the differences.

    Raises LabError for a group of fewer than two, or more than 32 values in all.
    """
    sizes, freedom = (len(first), len(second)), len(first) + len(second) - 2
    if min(sizes) < 2 or freedom >= len(T95):
        raise LabError(f"A difference of seeds needs 2 or more in each group, {len(T95) + 1} in all, got {sizes}.")
    means = [sum(values) / len(values) for values in (first, second)]
    squares = sum((x - mean) ** 2 for values, mean in zip((first, second), means, strict=True) for x in values)
    half = T95[freedom] * sqrt(squares / freedom * (1 / sizes[0] + 1 / sizes[1]))
    difference = means[1] - means[0]
    return Interval(difference, difference - half, difference + half)


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
