"""Figures of lab 07: gradients of KL estimators, one run beside many seeds, memory by size, the share of sampling."""

from collections.abc import Mapping, Sequence

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labs_lib.figures.style import BLACK, DASHES, GREY, MARKERS, PALETTE


def kl_gradients(kl: Sequence[float], apart: Mapping[str, Sequence[float]]) -> Figure:
    """How far each estimator's expected gradient is from the KL's, relative, over the KL of the prefix in nats."""
    figure, axis = pyplot.subplots(figsize=(7.6, 4.0))
    for place, (label, values) in enumerate(apart.items()):
        axis.plot(kl, values, MARKERS[place], color=PALETTE[place], markersize=5, alpha=0.8, label=label)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("KL of policy and reference at a prefix, nats")
    axis.set_ylabel("gradient apart, relative")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def beside_seeds(panels: Mapping[str, Mapping[str, Mapping[str, object]]]) -> Figure:
    """One run and its interval beside the runs of many seeds; a panel a kind of answer, a row a population.

    Args:
        panels: title -> population -> {"start": percent, "seeds": label -> percents, "run": percent, "low", "high"}.
    """
    figure, axes = pyplot.subplots(1, len(panels), figsize=(8.4, 4.0), sharey=True, squeeze=False)
    for axis, (title, rows) in zip(axes.flat, panels.items(), strict=True):
        for place, row in enumerate(rows.values()):
            _beside(axis, place, row)
        axis.set_yticks(range(len(rows)), rows)
        axis.set_ylim(-0.6, len(rows) - 0.4)
        axis.set_title(title)
        axis.set_xlabel("right answers, percent")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    first = {label: handle for handle, label in zip(handles, labels, strict=True)}
    figure.legend(first.values(), first, loc="outside lower center", ncols=2)
    return figure


def _beside(axis: Axes, place: int, row: Mapping[str, object]) -> None:
    """One population: the start as a line, each group of seeds at a height of its own, the run above them."""
    axis.plot([row["start"]], [place], "|", color=BLACK, markersize=26, markeredgewidth=2, label="warm start")
    heights = (place - 0.25, place)
    for number, (label, values) in enumerate(row["seeds"].items()):
        style = {"marker": MARKERS[number], "color": PALETTE[number], "linestyle": "none"}
        axis.plot(values, [heights[number]] * len(values), label=label, **style)
    error = [[row["run"] - row["low"]], [row["high"] - row["run"]]]
    run = {"color": GREY, "markeredgecolor": BLACK, "label": "this run, interval over problems"}
    axis.errorbar([row["run"]], [place + 0.25], xerr=error, fmt=MARKERS[2], **run)


def memory_bars(parts: Mapping[str, Mapping[str, float]], device: float) -> Figure:
    """Gigabytes by part, one panel a size of model; the line is the memory of one device, in the same unit."""
    figure, axes = pyplot.subplots(1, len(parts), figsize=(8.4, 3.8), squeeze=False)
    for axis, (title, amounts) in zip(axes.flat, parts.items(), strict=True):
        names = list(amounts)[::-1]
        colors = [PALETTE[list(amounts).index(name) % len(PALETTE)] for name in names]
        axis.barh(range(len(names)), [amounts[name] for name in names], color=colors)
        axis.axvline(device, color=BLACK, linestyle="--", linewidth=1.5)
        axis.set_yticks(range(len(names)), names if axis is axes.flat[0] else [""] * len(names))
        axis.set_title(title)
        axis.set_xlabel("GB")
        axis.grid(axis="y", visible=False)
    return figure


def sampling_share(answers: Sequence[int], shares: Mapping[str, Sequence[float]]) -> Figure:
    """Share of an iteration that is sampling, over the answers sampled at once; one line a case."""
    figure, axis = pyplot.subplots(figsize=(7.2, 4.2))
    for place, (label, values) in enumerate(shares.items()):
        style = {"color": PALETTE[place], "linestyle": DASHES[place], "marker": MARKERS[place]}
        axis.plot(answers, [100 * value for value in values], label=label, **style)
    axis.axhline(50, color=GREY, linewidth=1.0, linestyle="-")
    axis.set_xscale("log", base=2)
    axis.set_ylim(0, 100)
    axis.set_xlabel("answers of an iteration")
    axis.set_ylabel("time spent sampling, percent")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
