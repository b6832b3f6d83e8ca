"""The figures of lab 01: what answers occur, who pays for what, a negative stock on the way, a style bonus."""

from collections.abc import Mapping, Sequence

import numpy
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from labs_lib.figures.style import BLUE, GREY, HATCHES, ORANGE, SKY, VERMILLION

# Rows of the gallery's map: a name that fits beside the grid, and the gallery's categories it stands for.
# Completions that deserve their reward have the first row for themselves, whatever their category.
DESERVING = "deserving"
FAMILIES: dict[str, tuple[str, ...]] = {
    "wrong number": ("wrong number", "out of range"),
    "text around": ("text around", "fence"),
    "two answers": ("two answers",),
    "wrong fields": ("duplicate field", "other fields"),
    "no object, nested": ("not an object", "nested"),
    "not an integer": ("not an integer", "bool for 1", "bool for 0", "minus zero"),
    "not JSON": ("not JSON",),
    "odd characters": ("other scripts", "odd edge"),
    "cut off": ("cut off",),
    "unknown or special id": ("unknown id", "special token left in"),
    "long, hostile, no text": ("too long", "hostile", "not text"),
}
_BIN = 10  # items of stock


def final_stocks(populations: Mapping[str, Sequence[int]]) -> Figure:
    """Histogram of final stocks (items) for each population, as a share of that population in percent."""
    figure, axes = pyplot.subplots()
    edges = numpy.arange(0, (max(map(max, populations.values())) // _BIN + 2) * _BIN, _BIN)
    looks = zip(populations.items(), (BLUE, ORANGE), ("-", "--"), strict=False)
    for (name, stocks), colour, dashes in looks:
        share, _ = numpy.histogram(stocks, bins=edges)
        axes.stairs(100 * share / len(stocks), edges, color=colour, linestyle=dashes, linewidth=2.6, label=name)
    axes.set_xlabel("final stock (items)")
    axes.set_ylabel(f"problems (% per {_BIN} items)")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def payments(counts: Mapping[str, Mapping[str, int]]) -> Figure:
    """One bar a verifier: completions that it pays, deserved and undeserved."""
    figure, axes = pyplot.subplots(figsize=(7.2, 3.4))
    names = list(counts)[::-1]
    wrong = [counts[name]["wrongly_paid"] for name in names]
    right = [counts[name]["paid"] - counts[name]["wrongly_paid"] for name in names]
    axes.barh(names, right, color=BLUE, label="deserved")
    axes.barh(names, wrong, left=right, color=ORANGE, hatch="//", edgecolor="white", label="undeserved")
    for place, (good, bad) in enumerate(zip(right, wrong, strict=True)):
        axes.text(good + bad + 1, place, f"{bad} undeserved", va="center")
    axes.set_xlim(0, max(map(sum, zip(right, wrong, strict=True))) * 1.3)
    axes.set_xlabel("completions that are paid")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def family_counts(table: Sequence[Mapping], verifiers: Sequence[str]) -> dict[str, dict[str, tuple[int, int]]]:
    """Family -> verifier -> (paid completions, all completions of the family), from `gallery.verdict_table`."""
    families = {DESERVING: [row for row in table if row["deserves"]]}
    for family, categories in FAMILIES.items():
        families[family] = [row for row in table if row["category"] in categories and not row["deserves"]]
    return {
        family: {name: (sum(row[name].reward for row in rows), len(rows)) for name in verifiers}
        for family, rows in families.items()
    }


def gallery_map(counts: Mapping[str, Mapping[str, tuple[int, int]]]) -> Figure:
    """Families down, verifiers across (`family_counts`): how many of each are paid.

    Blue is a deserved payment, orange an undeserved one, darker for a larger share; white is no payment.
    """
    families, names = list(counts), list(next(iter(counts.values())))
    figure, axes = pyplot.subplots(figsize=(7.2, 6.4))
    for row, family in enumerate(families):
        colour = BLUE if family == DESERVING else ORANGE
        for column, name in enumerate(names):
            paid, total = counts[family][name]
            share = paid / total
            patch = Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, alpha=0.85 * share, linewidth=0)
            axes.add_patch(patch)
            axes.text(
                column,
                row,
                f"{paid} of {total}",
                ha="center",
                va="center",
                weight="bold" if paid else "normal",
                color="white" if family == DESERVING and share > 0.5 else "black",
            )
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(families) - 0.5, -0.5)
    axes.axhline(0.5, color=GREY, linewidth=1.2)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(families)), families)
    axes.xaxis.tick_top()
    axes.set_xlabel("paid completions: blue deserved, orange undeserved")
    axes.grid(visible=False)
    return figure


def stock_paths(panels: Mapping[str, Mapping[str, Sequence[int]]]) -> Figure:
    """One panel a problem, one line an order of movements: the stock (items) after 0 to 4 movements."""
    figure, all_axes = pyplot.subplots(1, len(panels), figsize=(7.2, 4.2), squeeze=False)
    for axes, (title, paths) in zip(all_axes[0], panels.items(), strict=True):
        lowest = min(min(stocks) for stocks in paths.values())
        highest = max(max(stocks) for stocks in paths.values())
        margin = 0.12 * (highest - lowest)
        looks = zip(paths.items(), (BLUE, ORANGE), ("o", "s"), ("-", "--"), strict=False)
        for (label, stocks), colour, marker, dashes in looks:
            axes.plot(range(len(stocks)), stocks, color=colour, marker=marker, linestyle=dashes, label=label)
        axes.axhspan(lowest - margin, 0, color="#EEEEEE")
        axes.axhline(0, color=GREY, linewidth=1.2)
        axes.set_ylim(lowest - margin, highest + margin)
        axes.set_xticks(range(5))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_title(title)
        axes.set_xlabel("movements done")
    all_axes[0][0].set_ylabel("stock (items)")
    handles, labels = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def style_bonus(panels: Mapping[str, Mapping[str, Sequence[float]]], answers: Sequence[str]) -> Figure:
    """One panel a group, one set of bars a reward rule: the advantage (no unit) of each answer."""
    figure, all_axes = pyplot.subplots(1, len(panels), figsize=(7.2, 4.2), sharey=True, squeeze=False)
    for axes, (title, rules) in zip(all_axes[0], panels.items(), strict=True):
        width = 0.8 / len(rules)
        for number, (rule, advantages) in enumerate(rules.items()):
            places = numpy.arange(len(advantages)) + (number - (len(rules) - 1) / 2) * width
            look = {"color": (BLUE, SKY, VERMILLION)[number], "hatch": HATCHES[number], "edgecolor": "white"}
            axes.bar(places, advantages, width, label=rule, **look)
        axes.axhline(0, color=GREY, linewidth=1.2)
        axes.set_xticks(range(len(answers)), answers)
        axes.set_title(title)
        axes.set_xlabel("answer")
        axes.grid(axis="x", visible=False)
    all_axes[0][0].set_ylabel("advantage")
    handles, labels = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
