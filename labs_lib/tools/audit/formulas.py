"""The formulas of the course in plain Python, on lists of floats: advantages, surrogate, KL, schedule, intervals."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from math import cos, exp, fsum, pi, sin, sqrt, tan
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
    ratio: Sequence[Sequence[float]], advantage: Sequence[Sequence[float]], low: float, high: float, blur: float
) -> dict[str, tuple[float, float]]:
    """Least and largest share of tokens outside of the clip range, and of those where the clip removes the gradient.

    `advantage` is that of each token. Two numbers each, since a ratio within `blur` of a bound may fall on either
    side of it in FP32.
    """
    tokens = sum(map(len, ratio))
    shares = {}
    for name in ("outside_share", "active_clip_share"):
        bounds = []
        for shift in (blur, -blur):
            count = 0
            for r, a in zip(chain(*ratio), chain(*advantage), strict=True):
                above, below = r > 1 + high + shift, r < 1 - low - shift
                count += above or below if name == "outside_share" else (above and a > 0) or (below and a < 0)
            bounds.append(count / tokens)
        shares[name] = (bounds[0], bounds[1])
    return shares


def token_rewards(
    old: Sequence[float], reference: Sequence[float], score: float, truncated: bool, settings: dict[str, Any]
) -> list[float]:
    """PPO's reward of every token of one answer: minus the weighted log-ratio; the score (and penalty) on the last."""
    rewards = [-settings["kl_weight"] * (o - r) for o, r in zip(old, reference, strict=True)]
    rewards[-1] += score - (settings["truncation_penalty"] if truncated else 0.0)
    return rewards


def gae(
    rewards: Sequence[float], values: Sequence[float], gamma: float, decay: float
) -> tuple[list[float], list[float]]:
    """Advantages and returns of one answer, backwards; nothing is bootstrapped past its last token."""
    advantages, value_after, advantage_after = [], 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        delta = reward + gamma * value_after - value
        advantage_after = delta + gamma * decay * advantage_after
        value_after = value
        advantages.append(advantage_after)
    advantages.reverse()
    return advantages, [a + value for a, value in zip(advantages, values, strict=True)]


def mean_of_answers(rows: Sequence[Sequence[float]]) -> float:
    """Tokens -> answers -> batch: a mean of means."""
    return mean([mean(row) for row in rows])


def actor_loss(
    ratio: Sequence[Sequence[float]], advantage: Sequence[Sequence[float]], low: float, high: float
) -> float:
    """The clipped surrogate of one update with an advantage for each token."""
    return mean_of_answers(
        [
            [token_loss(r, a, low, high) for r, a in zip(row, weights, strict=True)]
            for row, weights in zip(ratio, advantage, strict=True)
        ]
    )


def critic_loss(values: Sequence[Sequence[float]], returns: Sequence[Sequence[float]]) -> float:
    """One half of the squared error: no second half, no clipping."""
    return mean_of_answers(
        [
            [0.5 * (value - target) ** 2 for value, target in zip(row, targets, strict=True)]
            for row, targets in zip(values, returns, strict=True)
        ]
    )


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


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of independent values, with n - 1 in the variance; 0 for a single value, which is exact."""
    if len(values) == 1:
        return 0.0
    centre = mean(values)
    return sqrt(fsum((value - centre) ** 2 for value in values) / (len(values) - 1) / len(values))


def student_quantile(freedom: int, share: float = 0.95) -> float:
    """What Student's |t| stays below with probability `share`: bisection of its distribution, in the angle of t."""
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, freedom) < share else (low, middle)
    return sqrt(freedom) * tan(low)


def _share_within(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) tan(angle)): the finite sums of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4."""
    odd, side = freedom % 2, cos(angle)
    total, term = 0.0, side if odd else 1.0
    for exponent in range(odd, freedom - 1, 2):
        total += term
        term *= side * side * (exponent + 1) / (exponent + 2)
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total


def bootstrap(values: Sequence[float], draws: int, seed: int) -> tuple[float, float]:
    """95 % percentile interval of the mean, from the same resamples of problems as the run drew."""
    n = len(values)
    means = sorted(fsum(choose(values)) / n for choose in _resamples(seed, n, draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws) - 1]


def bootstrap_ratio(groups: Sequence[tuple[float, float]], draws: int, seed: int) -> tuple[float, float, float]:
    """sum(numerators) / sum(denominators) over groups, with its 95 % percentile interval: (value, low, high).

    A resample without any denominator is left out.
    """
    numbers, weights = zip(*groups, strict=True)
    pairs = ((fsum(choose(numbers)), fsum(choose(weights))) for choose in _resamples(seed, len(groups), draws))
    kept = sorted(number / weight for number, weight in pairs if weight > 0)
    return fsum(numbers) / fsum(weights), kept[int(0.025 * len(kept))], kept[max(0, int(0.975 * len(kept)) - 1)]


@lru_cache(maxsize=8)
def _resamples(seed: int, n: int, draws: int) -> list[itemgetter]:
    # One problem is drawn twice over, so that itemgetter returns a tuple also for it.
    indices = numpy_indices(seed, n, draws * n)
    rows = [indices[start : start + n] for start in range(0, draws * n, n)]
    return [itemgetter(*row) if n > 1 else (lambda values: (values[0],)) for row in rows]
