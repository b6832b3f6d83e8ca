"""Panels over the iterations of a run, for every lab that shows learning curves."""

from collections.abc import Mapping, Sequence

from matplotlib import pyplot
from matplotlib.figure import Figure

from labs_lib.figures.style import BLUE, SKY

SMOOTHING = 10  # iterations of the moving average


def smoothed(values: Sequence[float], width: int = SMOOTHING) -> list[float]:
    """Mean of the last `width` values at each place (of fewer at the start)."""
    windows = [values[max(0, end - width) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]


def iteration_panels(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Six panels over the iterations of a run: every value, and the mean of the last ten.

    Args:
        curves: title of a panel -> one number an iteration, in the order of the panels.
    """
    figure, axes = pyplot.subplots(3, 2, figsize=(8.4, 8.4), sharex=True)
    for axis, (name, values) in zip(axes.flat, curves.items(), strict=True):
        iterations = range(1, len(values) + 1)
        axis.plot(iterations, values, color=SKY, linestyle="-", linewidth=1.0, label="each iteration")
        axis.plot(iterations, smoothed(values), color=BLUE, linestyle="-", label=f"mean of last {SMOOTHING}")
        axis.set_title(name, fontsize=13)
        axis.set_ylim(bottom=min(0.0, *values))
    for axis in axes[-1]:
        axis.set_xlabel("iteration")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
