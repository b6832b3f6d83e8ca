"""Figures of lab 06: what a division does to gradients and advantages, and curves over seeds with their intervals."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

from labs_lib.bench.measures import BUCKETS, difficulty
from labs_lib.figures.style import BLACK, BLUE, DASHES, GREY, HATCHES, MARKERS, ORANGE, PALETTE
from labs_lib.statistics import mean_over_seeds

SHADE = 0.18  # opacity of an interval's band


def bucket_bars(measured: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """How hard each bucket pulls, one panel a normalisation, relative to right and short; bars with dots for seeds.

    `measured` has, by normalisation and bucket, one sum of absolute gradients per seed.
    """
    figure, axes = pyplot.subplots(1, len(measured), figsize=(8.4, 3.8), sharey=True)
    for axis, (title, buckets) in zip(axes, measured.items(), strict=True):
        whole = sum(buckets[BUCKETS[0]]) / len(buckets[BUCKETS[0]])
        for place, name in enumerate(BUCKETS):
            shares = [value / whole for value in buckets[name]]
            color, hatch = (BLUE, ORANGE)[name.startswith("wrong")], HATCHES[name.endswith("long")]
            axis.bar(place, sum(shares) / len(shares), color=color, hatch=hatch, edgecolor="white")
            axis.plot([place] * len(shares), shares, marker="o", linestyle="none", color=BLACK, markersize=3.5)
        axis.set_xticks(range(len(BUCKETS)), [name.replace(" ", "\n") for name in BUCKETS])
        axis.set_title(title)
        axis.grid(axis="x", visible=False)
    axes[0].set_ylabel("gradient, right short = 1")
    return figure


def token_weight_bars(lengths: Sequence[int], weights: Mapping[str, Sequence[float]]) -> Figure:
    """What a token and what all tokens of each answer weigh, by normalisation; axes for 2 answers or more.

    Args:
        lengths: tokens of each answer.
        weights: normalisation -> what one token of each answer is multiplied by.
    """
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 3.9))
    width = 0.8 / len(lengths)
    for place, length in enumerate(lengths):
        x = [index + width * (place - (len(lengths) - 1) / 2) for index in range(len(weights))]
        style = {"color": (BLUE, ORANGE)[place % 2], "hatch": HATCHES[place], "edgecolor": "white"}
        tokens = "1 token" if length == 1 else f"{length} tokens"
        per_token = [row[place] for row in weights.values()]
        axes[0].bar(x, per_token, width=0.92 * width, label=f"answer {place + 1}, {tokens}", **style)
        axes[1].bar(x, [length * weight for weight in per_token], width=0.92 * width, **style)
    for axis, title, top in zip(axes, ("of one token", "of the whole answer"), (0.55, 1.0), strict=True):
        axis.set(title=title, ylim=(0, top))
        axis.set_xticks(range(len(weights)), list(weights))
        axis.grid(axis="x", visible=False)
    axes[0].set_ylabel("weight in the loss")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(lengths))
    return figure


def difficulty_lines(group_size: int = 8) -> Figure:
    """Advantages of right and wrong answers over the number of right ones, with and without the division by std."""
    counts = range(1, group_size)
    rows = [difficulty(right, group_size) for right in counts]
    figure, axis = pyplot.subplots(figsize=(7.2, 4.2))
    lines = {
        "right, divided": ([row.right for row in rows], BLUE, "-", "o"),
        "right, not divided": ([row.raw_right for row in rows], BLUE, ":", "o"),
        "wrong, divided": ([row.wrong for row in rows], ORANGE, "-", "s"),
        "wrong, not divided": ([row.raw_wrong for row in rows], ORANGE, ":", "s"),
    }
    for label, (values, color, dashes, marker) in lines.items():
        axis.plot(counts, values, color=color, linestyle=dashes, marker=marker, label=label)
    axis.axhline(0, color=GREY, linewidth=1.0, linestyle="-")
    axis.set_xlabel(f"right answers of {group_size}")
    axis.set_ylabel("advantage")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def seed_curves(
    panels: Mapping[str, Mapping[str, torch.Tensor]], xlabel: str, columns: int = 2, start: int = 0
) -> Figure:
    """Means over seeds with Student's 95 % bands: one panel a quantity, the same lines in each.

    Args:
        panels: by title and label, (points, seeds).
        start: what the first point is called on the x axis.
    """
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(4.3 * columns, 3.1 * rows + 0.7), sharex=True, squeeze=False)
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=False):
        for place, (label, values) in enumerate(lines.items()):
            intervals = [mean_over_seeds(row) for row in values.tolist()]
            x = range(start, start + len(intervals))
            style = {"color": PALETTE[place], "linestyle": DASHES[place], "marker": MARKERS[place]}
            every = max(1, len(intervals) // 6)
            axis.plot(x, [i.value for i in intervals], **style, markevery=every, label=label)
            low, high = [i.low for i in intervals], [i.high for i in intervals]
            axis.fill_between(x, low, high, color=PALETTE[place], alpha=SHADE, linewidth=0)
        axis.set_title(title, fontsize=13)
    for unused in axes.flat[len(panels) :]:
        unused.remove()
    for axis in axes.flat[max(0, len(panels) - columns) : len(panels)]:
        axis.set_xlabel(xlabel)
        axis.tick_params(labelbottom=True)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
