"""The formulas of the course in plain Python, on lists of floats: advantages, surrogate, KL, schedule, intervals."""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, fsum, sqrt
from operator import itemgetter
from typing import Any

from labs_lib.tools.audit.randomness import numpy_indices

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution


def mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def advantages(rewards: Sequence[float], epsilon: float) -> list[float]:
    """(r - mean) / (population std + epsilon) of one group; exactly 0 when all rewards are the same."""
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    centre = mean(rewards)
    deviation = sqrt(mean([(reward - centre) ** 2 for reward in rewards]))
    return [(reward - centre) / (deviation + epsilon) for reward in rewards]


def token_loss(ratio: float, advantage: float, low: float, high: float) -> float:
    """-min(ratio A, clip(ratio, 1 - low, 1 + high) A) of one token."""
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def ratios(now: Sequence[Sequence[float]], captured: Sequence[Sequence[float]]) -> list[list[float]]:
    """exp(now - captured) of every token of every answer."""
    return [
        [exp(new - old) for new, old in zip(row, kept, strict=True)] for row, kept in zip(now, captured, strict=True)
    ]


def objective(
    ratio: Sequence[Sequence[float]],
    kl: Sequence[Sequence[float]],
    advantage: Sequence[float],
    settings: dict[str, Any],
) -> float:
    """The loss of one update: tokens -> answers -> prompts, a mean of means of means."""
    low, high, weight = settings["clip_low"], settings["clip_high"], settings["kl_weight"]
    answers = [
        mean([token_loss(r, a, low, high) + weight * k for r, k in zip(row, kl_row, strict=True)])
        for row, kl_row, a in zip(ratio, kl, advantage, strict=True)
    ]
    size = settings["group_size"]
    return mean([mean(answers[start : start + size]) for start in range(0, len(answers), size)])


def clip_shares(
    ratio: Sequence[Sequence[float]], advantage: Sequence[float], low: float, high: float, blur: float
) -> dict[str, tuple[float, float]]:
    """Least and largest share of tokens outside of the clip range, and of those where the clip removes the gradient.

    Two numbers each, since a ratio within `blur` of a bound may fall on either side of it in FP32.
    """
    tokens = sum(map(len, ratio))
    shares = {}
    for name in ("outside_share", "active_clip_share"):
        bounds = []
        for shift in (blur, -blur):
            count = 0
            for row, a in zip(ratio, advantage, strict=True):
                above = sum(r > 1 + high + shift for r in row)
                below = sum(r < 1 - low - shift for r in row)
                count += above + below if name == "outside_share" else above * (a > 0) + below * (a < 0)
            bounds.append(count / tokens)
        shares[name] = (bounds[0], bounds[1])
    return shares


def categorical_kl(first: Sequence[float], second: Sequence[float]) -> float:
    """Sum over the whole vocabulary of p (log p - log q), from two log-distributions."""
    return fsum(exp(p) * (p - q) for p, q in zip(first, second, strict=True))


def learning_rate(update: int, total: int, peak: float, warmup_fraction: float, final_fraction: float) -> float:
    """Of update `update`, 0-based: linear warm-up to `peak`, then linear decrease to its final fraction."""
    warmup = max(1, round(total * warmup_fraction))
    if update < warmup:
        return peak * (update + 1) / warmup
    return peak * (1 - (1 - final_fraction) * (update + 1 - warmup) / max(1, total - warmup))


def wilson(correct: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of `correct` in `n`."""
    rate, z2 = correct / n, Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * sqrt(rate * (1 - rate) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(values: Sequence[float], draws: int, seed: int) -> tuple[float, float]:
    """95 % percentile interval of the mean, from the same resamples of problems as the run drew."""
    n = len(values)
    means = sorted(fsum(choose(values)) / n for choose in _resamples(seed, n, draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws) - 1]


@lru_cache(maxsize=8)
def _resamples(seed: int, n: int, draws: int) -> list[itemgetter]:
    # One problem is drawn twice over, so that itemgetter returns a tuple also for it.
    indices = numpy_indices(seed, n, draws * n)
    rows = [indices[start : start + n] for start in range(0, draws * n, n)]
    return [itemgetter(*row) if n > 1 else (lambda values: (values[0],)) for row in rows]
