"""Figures of lab 04: an actor's answers by the rubric, a judge's reliability, and what its score depends on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labs_lib.figures.style import BLACK, BLUE, GREEN, GREY, MARKERS, PALETTE, SKY, VERMILLION

RATE_NAMES = ("success", "recognised", "relevant", "certain", "courteous")
SUCCESS = "success"
LONGEST_LINE = 78
DENOMINATORS = {"success": "all", "recognised": "all"}  # the others are shares of the recognised answers


def rates_figure(tables: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Five rubric rates of several populations, with 95 % intervals; one mark a population."""
    figure, axis = pyplot.subplots(figsize=(8.4, 4.8))
    for index, (label, rates) in enumerate(tables.items()):
        shown = [name for name in RATE_NAMES if "value" in rates[name]]
        places = [RATE_NAMES.index(name) + 0.22 * (index - (len(tables) - 1) / 2) for name in shown]
        entries = [rates[name] for name in shown]
        axis.errorbar(
            [100 * entry["value"] for entry in entries],
            places,
            xerr=_errors(entries, 100),
            marker=MARKERS[index],
            color=PALETTE[index],
            linestyle="none",
            markersize=8,
            label=label,
        )
    axis.set_yticks(
        range(len(RATE_NAMES)), [f"{name}\nof {DENOMINATORS.get(name, 'recognised')}" for name in RATE_NAMES]
    )
    axis.invert_yaxis()
    axis.set_xlim(-2, 102)
    axis.set_xlabel("answers (%)")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(tables))
    return figure


def _errors(entries: Sequence[Mapping[str, float]], scale: float = 1.0) -> list[list[float]]:
    """Distances to the lower and the upper ends of the intervals, never negative."""
    lower = [scale * max(0.0, entry["value"] - entry["low"]) for entry in entries]
    upper = [scale * max(0.0, entry["high"] - entry["value"]) for entry in entries]
    return [lower, upper]


def answers_figure(rows: Sequence[Mapping[str, Any]], of_each: int = 2) -> Figure:
    """Answers as text under their prompts, the first `of_each` of every verdict, successes first.

    An image, because the text of a sampled answer may differ by processor. Rows hold "prompt", "text" and "reason".
    """
    kept: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        kept.setdefault(row["reason"], []).append(row)
    shown = [row for reason in sorted(kept, key=lambda r: (r != SUCCESS, r)) for row in kept[reason][:of_each]]
    figure, axis = pyplot.subplots(figsize=(9.6, 0.62 * len(shown) + 0.2))
    for place, row in enumerate(shown):
        color = GREEN if row["reason"] == SUCCESS else VERMILLION
        axis.text(0, place, row["reason"], color=color, va="center", fontsize=12)
        axis.text(0.27, place - 0.2, _clipped(row["prompt"]), color=GREY, va="center", fontsize=11)
        axis.text(0.27, place + 0.2, _clipped(row["text"]), color=BLACK, va="center", fontsize=12)
    axis.set_xlim(0, 1)
    axis.set_ylim(len(shown) - 0.4, -0.6)
    axis.axis("off")
    return figure


def _clipped(text: str) -> str:
    # A dollar sign would begin a formula.
    line = " ".join(text.split()).replace("$", r"\$")
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def reliability_figure(bins: Sequence[Mapping[str, float]]) -> Figure:
    """Observed share of right preferences against the predicted probability, one mark a bin, 95 % intervals.

    Each bin holds "predicted" (mean, 0.5..1), "value", "low" and "high" (of the observed share) and "n" pairs.
    """
    figure, axis = pyplot.subplots(figsize=(6.4, 5.0))
    axis.plot([50, 100], [50, 100], color=GREY, linestyle="--", label="perfectly calibrated")
    axis.errorbar(
        [100 * entry["predicted"] for entry in bins],
        [100 * entry["value"] for entry in bins],
        yerr=_errors(bins, 100),
        marker="o",
        color=BLUE,
        linestyle="none",
        markersize=9,
        label="judge",
    )
    for entry in bins:
        axis.annotate(
            f"{entry['n']} pairs",
            (100 * entry["predicted"], 100 * entry["low"]),
            xytext=(0, -16),
            textcoords="offset points",
            ha="center",
            fontsize=12,
        )
    axis.set_xlabel("predicted probability of the answer it prefers (%)")
    axis.set_ylabel("pairs in which it was preferred (%)")
    axis.set_xlim(47, 103)
    axis.set_ylim(min([45.0, *(100 * entry["low"] for entry in bins)]) - 8, 102)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def length_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Score against answer length in tokens, chosen and rejected answers of every pair."""
    figure, axis = pyplot.subplots(figsize=(7.2, 4.4))
    for place, (side, color) in enumerate((("chosen", BLUE), ("rejected", VERMILLION))):
        tokens = [row["tokens"][place] + 0.3 * (place - 0.5) for row in rows]  # a little apart, or they hide each other
        axis.plot(
            tokens,
            [row[side] for row in rows],
            marker=MARKERS[place],
            color=color,
            linestyle="none",
            markersize=5,
            alpha=0.7,
            label=side,
        )
    axis.set_xlabel("answer length (tokens, EOS included)")
    axis.set_ylabel("score (no unit)")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def style_figure(cells: Mapping[tuple[bool, str, bool], Mapping[str, float]]) -> Figure:
    """Mean score of constructed answers by manner, right beside wrong advice; plain left, courteous right.

    `cells` maps (right, manner, courteous) to "value", "low", "high".
    """
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 4.4), sharey=True)
    manners = list(dict.fromkeys(manner for _, manner, _ in cells))
    for axis, courteous in zip(axes, (False, True), strict=True):
        for place, right in enumerate((True, False)):
            entries = [cells[right, manner, courteous] for manner in manners]
            axis.errorbar(
                [index + 0.22 * (place - 0.5) for index in range(len(manners))],
                [entry["value"] for entry in entries],
                yerr=_errors(entries),
                marker=MARKERS[place],
                color=(BLUE, VERMILLION)[place],
                linestyle="none",
                markersize=9,
                label="right advice" if right else "wrong advice",
            )
        axis.set_xticks(range(len(manners)), manners)
        axis.set_xlim(-0.5, len(manners) - 0.5)
        axis.set_title("with a courtesy" if courteous else "without courtesy")
    axes[0].set_ylabel("score (no unit)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def probe_square(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The four scores of each probe context: plain joined to courteous, right advice left and wrong advice right."""
    figure, axes = pyplot.subplots(1, 2, figsize=(8.4, 4.6), sharey=True)
    # A score has no zero: the level to compare with is that of plain, right advice.
    level = _mean(row["score"] for row in rows if row["right"] and not row["courteous"])
    for axis, right in zip(axes, (True, False), strict=True):
        axis.axhline(level, color=GREY, linestyle="--", linewidth=1.6, label="mean, right and plain")
        _paired(axis, [row for row in rows if row["right"] is right])
        axis.set_title("right advice" if right else "wrong advice")
    axes[0].set_ylabel("score (no unit)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


def _paired(axis: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    sides = [{row["request"]: row["score"] for row in rows if row["courteous"] is side} for side in (False, True)]
    for number, request in enumerate(sides[0]):
        axis.plot(
            [0, 1],
            [side[request] for side in sides],
            marker="o",
            color=SKY,
            linestyle="-",
            linewidth=1.2,
            markersize=5,
            label="one context" if number == 0 else None,
        )
    means = [_mean(side.values()) for side in sides]
    axis.plot([0, 1], means, marker="D", color=BLACK, linestyle="-", linewidth=3, markersize=9, label="mean")
    axis.set_xticks([0, 1], ["plain", "courteous"])
    axis.set_xlim(-0.35, 1.35)
