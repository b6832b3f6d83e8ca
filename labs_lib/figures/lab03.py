"""Figures of lab 03: learning curves, accuracy by population and against cost, where a gain can come from."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot
from matplotlib.figure import Figure

from labs_lib.figures.panels import iteration_panels
from labs_lib.figures.style import BLACK, BLUE, GREEN, GREY, HATCHES, MARKERS, ORANGE, PALETTE, SKY, VERMILLION

POPULATION_NAMES = ("ID50", "OOD100")
KINDS = ("greedy", "sampled")


def curves(history: Sequence[dict[str, Any]], group_size: int) -> dict[str, list[float]]:
    """What the learning curves show, one number an iteration: by name, in the order of the panels."""
    second = [row["updates"][-1] for row in history]
    return {
        "mean reward": [_mean(answer["reward"] for answer in row["answers"]) for row in history],
        "constant groups (share)": [_constant_share(row["answers"], group_size) for row in history],
        "exact KL to the reference (nats/token)": [update["kl_mean"] for update in second],
        "clipped tokens, last update (share)": [update["active_clip_share"] for update in second],
        "gradient norm before clipping": [_mean(u["gradient_norm"] for u in row["updates"]) for row in history],
        "entropy (nats/token)": [update["entropy_mean"] for update in second],
    }


def _mean(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


def _constant_share(answers: Sequence[dict[str, Any]], group_size: int) -> float:
    groups = [answers[start : start + group_size] for start in range(0, len(answers), group_size)]
    return _mean(len({answer["paid"] for answer in group}) == 1 for group in groups)


def learning_curves(history: Sequence[dict[str, Any]], group_size: int) -> Figure:
    """Six panels over the iterations of a GRPO run: every value, and the mean of the last ten."""
    return iteration_panels(curves(history, group_size))


def accuracy_bars(summaries: Mapping[str, dict[str, Any]]) -> Figure:
    """Greedy and sampled accuracy of each policy, ID50 beside OOD100, with 95 % intervals."""
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 4.4), sharey=True)
    for axis, kind in zip(axes, KINDS, strict=True):
        for place, population in enumerate(POPULATION_NAMES):
            entries = [summary["accuracy"][kind][population] for summary in summaries.values()]
            x = [index + 0.4 * (place - 0.5) for index in range(len(entries))]
            style = {"color": (BLUE, ORANGE)[place], "hatch": HATCHES[place], "edgecolor": "white"}
            axis.bar(x, [_percent(entry) for entry in entries], width=0.38, label=population, **style)
            axis.errorbar(
                x, [_percent(e) for e in entries], yerr=_errors(entries), fmt="none", ecolor=BLACK, elinewidth=1.6
            )
        axis.set_title(kind)
        axis.set_xticks(range(len(summaries)), list(summaries), rotation=20)
        axis.grid(axis="x", visible=False)
    axes[0].set_ylabel("right answers (%)")
    axes[0].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _percent(entry: Mapping[str, float]) -> float:
    return 100 * entry["correct"] / entry["n"]


def _errors(entries: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Distances to the lower and the upper ends of the intervals, never negative."""
    lower = [max(0.0, _percent(entry) - 100 * entry["low"]) for entry in entries]
    upper = [max(0.0, 100 * entry["high"] - _percent(entry)) for entry in entries]
    return [lower, upper]


COSTS = (
    ("answers", "answers sampled", 1),
    ("tokens", "tokens (thousands)", 1000),
    ("total", "seconds of training", 1),
)


def policy_costs(summary: Mapping[str, Any]) -> dict[str, float]:
    """What one policy cost beyond its start: answers, answer tokens through any model, seconds."""
    return {
        "answers": summary["answers"],
        "tokens": summary["tokens_generated"] + summary["tokens_scored"],
        "total": summary["seconds"]["total"],
    }


def accuracy_against_cost(summaries: Mapping[str, dict[str, Any]]) -> Figure:
    """Sampled accuracy over all 200 problems against three costs, with 95 % intervals; one mark a policy."""
    figure, axes = pyplot.subplots(1, 3, figsize=(9.0, 4.2), sharey=True)
    for axis, (key, label, unit) in zip(axes, COSTS, strict=True):
        places = _apart([policy_costs(summary)[key] / unit for summary in summaries.values()])
        for index, (name, summary) in enumerate(summaries.items()):
            entry = summary["accuracy"]["sampled"]["ALL"]
            axis.errorbar(
                [places[index]],
                [_percent(entry)],
                yerr=_errors([entry]),
                marker=MARKERS[index],
                color=PALETTE[index],
                linestyle="none",
                markersize=9,
                label=name,
            )
        axis.set_xlabel(label)
        axis.margins(x=0.12)
    axes[0].set_ylabel("right sampled answers (%)")
    axes[0].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(summaries))
    return figure


def _apart(values: Sequence[float]) -> list[float]:
    """The values, each moved up until it is 4 % of the largest from those before it: no interval hides another."""
    step = 0.04 * (max(values) or 1.0)
    places: list[float] = []
    for value in values:
        while near := [place for place in places if abs(place - value) < 0.999 * step]:
            value = max(near) + step
        places.append(value)
    return places


def mixed_probability(p: float, group_size: int) -> float:
    """Probability that a group has both right and wrong answers when each is right with probability p."""
    return 1 - p**group_size - (1 - p) ** group_size


def mixed_groups_figure(measured: Mapping[str, tuple[float, float]], group_sizes: Sequence[int] = (2, 4, 8)) -> Figure:
    """Share of mixed groups against p for equal problems, and measured (p, share) of runs with G = 4."""
    figure, axis = pyplot.subplots(figsize=(7.2, 4.9))
    grid = [index / 200 for index in range(201)]
    for size, color, dashes in zip(group_sizes, (SKY, BLUE, GREEN), ("--", "-", "-."), strict=False):
        shares = [100 * mixed_probability(p, size) for p in grid]
        axis.plot([100 * p for p in grid], shares, color=color, linestyle=dashes, label=f"G = {size}, equal problems")
    for (name, (p, share)), marker in zip(measured.items(), MARKERS, strict=False):
        axis.plot(
            [100 * p], [100 * share], marker=marker, color=VERMILLION, linestyle="none", markersize=10, label=name
        )
    axis.set_xlabel("right answers among all sampled (%)")
    axis.set_ylabel("mixed groups (%)")
    axis.set_ylim(0, 102)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def control_figure(gains: Mapping[str, Mapping[str, Sequence[float]]], seeds: Sequence[int]) -> Figure:
    """Change against the warm start, in points: for each seed the shuffled control beside the verified run."""
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 4.2), sharey=True)
    for axis, kind in zip(axes, KINDS, strict=True):
        for seed, shuffled, verified, marker, color in zip(
            seeds, gains["grpo-shuffled"][kind], gains["grpo"][kind], MARKERS, PALETTE, strict=False
        ):
            axis.plot([0, 1], [100 * shuffled, 100 * verified], marker=marker, color=color, label=f"seed {seed}")
        axis.axhline(0, color=GREY, linewidth=1.2, linestyle="-")
        axis.set_xticks([0, 1], ["shuffled rewards", "verified rewards"])
        axis.set_xlim(-0.3, 1.3)
        axis.set_title(f"{kind}, all 200 problems")
    axes[0].set_ylabel("change against the warm start (points)")
    axes[1].legend(loc="best")
    return figure
