"""The figures of lab 02: groups, the clip, what "old" means, clip and KL, KL per prefix, one update token by token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labs_lib.figures.style import BLACK, BLUE, DASHES, GREY, MARKERS, ORANGE, PALETTE, SKY, VERMILLION
from labs_lib.statistics import Interval

LARGEST_GROUP = 8  # answers that the axis of `group_figure` has room for
_VISIBLE = 0.005  # nats: smaller changes print as 0.00


@dataclass(frozen=True)
class MeasuredShare:
    """Mixed groups of one size: the mean success per answer and the share with its 95 % interval, in 0..1."""

    group_size: int
    success: float
    share: Interval


@dataclass(frozen=True)
class PrefixKL:
    """KL along one answer, in nats: exact and what the sampled token says (k1, k3), one value a token."""

    title: str
    tokens: Sequence[str]
    exact: Sequence[float]
    k1: Sequence[float]
    k3: Sequence[float]


@dataclass(frozen=True)
class AnswerUpdate:
    """One answer's token probabilities, in 0..1, before and after an update."""

    title: str
    tokens: Sequence[str]
    before: Sequence[float]
    after: Sequence[float]


@dataclass(frozen=True)
class TokenCurve:
    """A loss of one token and its gradient by the token's logit, one value a ratio."""

    loss: Sequence[float]
    gradient: Sequence[float]


@dataclass(frozen=True)
class TokenForces:
    """What acts on one token by its ratio: KL in nats, the surrogate, the weighted KL, and their sum."""

    ratios: Sequence[float]
    kl: Sequence[float]
    surrogate: TokenCurve
    penalty: TokenCurve
    total: TokenCurve


def group_figure(rewards: Sequence[float], advantages: Sequence[float], title: str) -> Figure:
    """Bars over the answers of one group: what each is paid, with the mean, and its advantage.

    The axes hold groups of 4 to 8 answers paid 0 to 1.5 and do not move with the numbers.
    """
    figure, (paid, compared) = pyplot.subplots(2, 1, figsize=(7.2, 4.8), sharex=True)
    places = range(1, len(rewards) + 1)
    paid.bar(places, rewards, width=0.6, color=SKY, edgecolor=BLACK)
    paid.axhline(sum(rewards) / len(rewards), color=BLACK, linestyle="--", linewidth=1.4, label="mean")
    colours = [BLUE if advantage > 0 else VERMILLION for advantage in advantages]
    hatches = ["" if advantage > 0 else "//" for advantage in advantages]
    compared.bar(places, advantages, width=0.6, color=colours, hatch=hatches, edgecolor=BLACK)
    compared.axhline(0, color=GREY, linewidth=1.0, linestyle="-")
    paid.set(title=title, ylabel="reward", ylim=(0, 1.6))
    paid.legend(loc="upper right")
    compared.set(xlabel="answer", ylabel="advantage", xlim=(0.4, LARGEST_GROUP + 0.6), ylim=(-3, 3))
    compared.set_xticks(range(1, LARGEST_GROUP + 1))
    for axes in (paid, compared):
        axes.grid(axis="x", visible=False)
    return figure


def token_forces_figure(curve: TokenForces, here: TokenForces, bounds: tuple[float, float]) -> Figure:
    """Losses and gradients of one token over the ratio, with the clip range shaded and a mark at one ratio.

    The axes hold advantages of 1 and -1 with KL weights up to 3 and do not move with the numbers.
    """
    figure, panels = pyplot.subplots(1, 2, figsize=(8.4, 4.2), sharex=True)
    lines = {"clipped surrogate": "surrogate", "β KL": "penalty", "sum": "total"}
    for axes, part in zip(panels, ("loss", "gradient"), strict=True):
        for (label, name), colour, dashes in zip(lines.items(), (BLUE, ORANGE, BLACK), ("--", "-.", "-"), strict=True):
            values = getattr(getattr(curve, name), part)
            axes.plot(curve.ratios, values, color=colour, linestyle=dashes, label=label)
        axes.plot(here.ratios, getattr(here.total, part), "o", color="white", markeredgecolor=BLACK, markersize=10)
        axes.axvspan(*bounds, color="#E8E8E8", zorder=0)
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle="-")
        axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlabel("ratio ρ")
    panels[0].set(title="loss", ylim=(-2.3, 4.6))
    panels[1].set(title="gradient by the token's logit", ylim=(-1.1, 1.9))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def mixed_groups_figure(
    success: Sequence[float], expected: Mapping[int, Sequence[float]], measured: Sequence[MeasuredShare]
) -> Figure:
    """Share of groups with both rewards: a curve per group size over `success`, and the measured points."""
    figure, axes = pyplot.subplots(figsize=(7.2, 4.6))
    colours = dict(zip(expected, PALETTE, strict=False))
    for (size, shares), dashes in zip(expected.items(), DASHES, strict=False):
        axes.plot(success, shares, color=colours[size], linestyle=dashes, label=f"G = {size}, equal problems")
    for point, marker in zip(measured, MARKERS, strict=False):
        below, above = point.share.value - point.share.low, point.share.high - point.share.value
        axes.errorbar(
            point.success,
            point.share.value,
            yerr=[[max(below, 0.0)], [max(above, 0.0)]],
            marker=marker,
            markersize=9,
            markeredgecolor=BLACK,
            linestyle="none",
            color=colours[point.group_size],
            label=f"G = {point.group_size}, measured",
        )
    axes.set(xlabel="success per answer p", ylabel="share of mixed groups", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def clip_figure(
    ratios: Sequence[float],
    losses: Mapping[int, Sequence[float]],
    gradients: Mapping[int, Sequence[float]],
    bounds: tuple[float, float],
) -> Figure:
    """Loss per token and its gradient by the ratio, for the advantages +1 and -1 (the keys)."""
    figure, grid = pyplot.subplots(2, 2, figsize=(7.2, 5.6), sharex=True, sharey="col")
    for row, advantage in enumerate(losses):
        colour, dashes = (BLUE, "-") if advantage > 0 else (VERMILLION, "--")
        for axes, values in zip(grid[row], (losses[advantage], gradients[advantage]), strict=True):
            axes.plot(ratios, values, color=colour, linestyle=dashes)
            axes.axvspan(*bounds, color="#E8E8E8", zorder=0)
            axes.axhline(0, color=GREY, linewidth=0.8)
            axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        grid[row, 0].set_ylabel(f"A = {advantage:+d}".replace("-", "−"))
    grid[0, 0].set_title("loss")
    grid[0, 1].set_title("gradient by ρ")
    for axes in grid[1]:
        axes.set_xlabel("ratio ρ")
    return figure


def ratio_walk_figure(captured: Sequence[float], recomputed: Sequence[float], highest: float) -> Figure:
    """p(token) / p(token) at sampling time before each update, for captured and for recomputed old log-probs."""
    figure, axes = pyplot.subplots(figsize=(7.2, 3.8))
    updates = range(1, len(captured) + 1)
    axes.plot(updates, captured, color=BLUE, marker="o", linestyle="-", label="old = captured")
    axes.plot(updates, recomputed, color=VERMILLION, marker="s", linestyle="--", label="old = recomputed")
    axes.axhline(highest, color=GREY, linewidth=1.2, linestyle=":")
    axes.annotate(
        f"clip at {highest:g}", (len(captured), highest), xytext=(0, -17), textcoords="offset points", ha="right"
    )
    axes.set(xlabel="before update", ylabel="p now / p when sampled")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper left")
    return figure


def prefix_kl_figure(answers: Sequence[PrefixKL]) -> Figure:
    """A panel for each answer: bars of the exact KL at every prefix, markers for k1 and k3."""
    figure, grid = pyplot.subplots(len(answers), 1, figsize=(7.2, 3.0 * len(answers)), squeeze=False, sharey=True)
    for axes, answer in zip(grid[:, 0], answers, strict=True):
        places = range(len(answer.tokens))
        axes.bar(places, answer.exact, width=0.62, color=BLUE, label="exact")
        axes.plot(places, answer.k1, MARKERS[1], color=ORANGE, markeredgecolor=BLACK, markersize=7, label="k1")
        axes.plot(places, answer.k3, MARKERS[2], color=VERMILLION, markeredgecolor=BLACK, markersize=7, label="k3")
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set(title=answer.title, ylabel="KL in nats")
        _token_axis(axes, answer.tokens)
    grid[-1, 0].set_xlabel("token that follows the prefix")
    grid[0, 0].legend(ncols=3, loc="best")
    return figure


def update_figure(answers: Sequence[AnswerUpdate]) -> Figure:
    """A panel for each answer: every token's probability before and after, joined.

    Below each token stands the change of its log-probability in nats. Panels with a probability below 1 % have a
    logarithmic axis of their own: a token of one in a million must not hide the changes of the others.
    """
    figure, grid = pyplot.subplots(len(answers), 1, figsize=(7.2, 2.5 * len(answers)), squeeze=False)
    for axes, answer in zip(grid[:, 0], answers, strict=True):
        changes = [log(after / before) for before, after in zip(answer.before, answer.after, strict=True)]
        for place, (before, after, change) in enumerate(zip(answer.before, answer.after, changes, strict=True)):
            colour, marker = _direction(change)
            places = [place - 0.16, place + 0.16]
            axes.plot(places, [before, after], color=colour, linestyle="-", linewidth=2)
            axes.plot(places[0], before, "o", color="white", markeredgecolor=BLACK, markersize=8)
            axes.plot(places[1], after, marker, color=colour, markeredgecolor=BLACK, markersize=8)
        axes.set(title=answer.title, ylabel="probability")
        _probability_axis(axes, min([*answer.before, *answer.after]))
        shown = [f"{change:+.2f}" if abs(change) >= _VISIBLE else "0.00" for change in changes]
        _token_axis(axes, [f"{token}\n{change}" for token, change in zip(answer.tokens, shown, strict=True)])
    figure.suptitle("○ before   ▲ after, up   ▼ after, down   ■ after, within 0.005 nats", fontsize=13)
    grid[-1, 0].set_xlabel("token, and the change of its log p in nats")
    return figure


def _direction(change: float) -> tuple[str, str]:
    """Colour and marker of a change of log-probability."""
    if abs(change) < _VISIBLE:
        return GREY, "s"
    return (BLUE, "^") if change > 0 else (VERMILLION, "v")


def _probability_axis(axes: Axes, lowest: float) -> None:
    if lowest >= 0.01:
        axes.set_ylim(-0.08, 1.12)
        return
    axes.set_yscale("log")
    margin = lowest**0.15  # the same share of the axis below the lowest value and above 1
    axes.set_ylim(lowest * margin, 1 / margin)


def _token_axis(axes: Axes, tokens: Sequence[str]) -> None:
    # A dollar sign would start mathematics, and a space would be invisible.
    axes.set_xticks(range(len(tokens)), [token.replace("$", r"\$").replace(" ", "␣") for token in tokens])
    axes.grid(axis="x", visible=False)
