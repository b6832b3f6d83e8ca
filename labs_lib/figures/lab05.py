"""Figures of lab 05: one answer token by token, the PPO run, rubric against score, and where the two part."""

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labs_lib.figures.panels import iteration_panels
from labs_lib.figures.style import BLACK, BLUE, GREEN, GREY, HATCHES, MARKERS, ORANGE, PALETTE, SKY, VERMILLION
from labs_lib.office_evaluation import POPULATIONS
from labs_lib.office_study import change, runs_of, windows

TOKEN_COLUMNS = {"reward": BLUE, "value": ORANGE, "advantage": GREEN, "return": SKY}
RATE_NAMES = ("success", "recognised", "relevant", "certain", "courteous")
POPULATION_TITLES = dict(
    zip(POPULATIONS, ("test prompts, greedy", "probe prompts, greedy", "test prompts, sampled"), strict=True)
)


def _mean(values: Any) -> float:
    values = list(values)
    return sum(values) / len(values)


# --- One answer, one run ---------------------------------------------------------------------------


def token_bars(
    tokens: Sequence[str], columns: Mapping[str, Sequence[float]], limits: Mapping[str, float] | None = None
) -> Figure:
    """Bars per token, one panel for each of `TOKEN_COLUMNS`, over the text of the answer.

    With `limits` a panel reaches from minus to plus its number, whatever the bars: pictures can then be compared.
    """
    figure, axes = pyplot.subplots(len(TOKEN_COLUMNS), 1, figsize=(8.4, 7.6), sharex=True)
    places = range(len(tokens))
    for axis, (name, color) in zip(axes, TOKEN_COLUMNS.items(), strict=True):
        axis.bar(places, columns[name], color=color, edgecolor=BLACK, linewidth=0.6)
        axis.axhline(0, color=GREY, linewidth=1.0, linestyle="-")
        axis.set_ylabel(name)
        axis.grid(axis="x", visible=False)
        axis.margins(y=0.12)
        if limits is not None:
            axis.set_ylim(-limits[name], limits[name])
    axes[-1].set_xticks(places, [token.strip() or repr(token) for token in tokens], rotation=55, ha="right")
    axes[-1].set_xlabel("token of the answer, EOS included")
    return figure


def ppo_curves(history: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """What the learning curves show, one number an iteration: by name, in the order of the panels."""
    second = [row["updates"][-1] for row in history]
    first = [row["updates"][0] for row in history]
    return {
        "mean predicted reward": [_mean(answer["score"] for answer in row["answers"]) for row in history],
        "exact KL to the reference (nats/token)": [row["kl_mean"] for row in history],
        "clipped tokens, last update (share)": [update["active_clip_share"] for update in second],
        "critic loss, first update": [update["critic"]["loss"] for update in first],
        "actor gradient norm": [_mean(u["actor"]["gradient_norm"] for u in row["updates"]) for row in history],
        "critic gradient norm": [_mean(u["critic"]["gradient_norm"] for u in row["updates"]) for row in history],
    }


def ppo_learning_curves(history: Sequence[dict[str, Any]]) -> Figure:
    """Six panels over the iterations of a PPO run: every value, and the mean of the last ten."""
    return iteration_panels(ppo_curves(history))


# --- Evaluation ------------------------------------------------------------------------------------


def rubric_rates(summaries: Mapping[str, dict[str, Any]], populations: Sequence[str]) -> Figure:
    """Rates of the reserved rubric for each actor with 95 % intervals, one panel a population."""
    figure, axes = pyplot.subplots(1, len(populations), figsize=(8.8, 4.4), sharey=True)
    width = 0.8 / len(summaries)
    for axis, population in zip(axes, populations, strict=True):
        for place, (actor, summary) in enumerate(summaries.items()):
            entries = [summary["populations"][population][rate] for rate in RATE_NAMES]
            x = [index + width * (place - (len(summaries) - 1) / 2) for index in range(len(entries))]
            style = {"color": PALETTE[place], "hatch": HATCHES[place], "edgecolor": "white"}
            axis.bar(x, [_percent(e) for e in entries], width=0.92 * width, label=actor, **style)
            axis.errorbar(
                x, [_percent(e) for e in entries], yerr=_errors(entries), fmt="none", ecolor=BLACK, elinewidth=1.6
            )
        axis.set_title(POPULATION_TITLES[population])
        axis.set_xticks(range(len(RATE_NAMES)), RATE_NAMES, rotation=25, ha="right", rotation_mode="anchor")
        axis.grid(axis="x", visible=False)
    axes[0].set_ylabel("answers (%)")
    axes[0].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(summaries))
    return figure


def _percent(entry: Mapping[str, float]) -> float:
    return 100 * entry.get("value", 0.0)


def _errors(entries: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Distances to the lower and the upper ends of the intervals, never negative; 0 where nothing was counted."""
    lower = [max(0.0, _percent(e) - 100 * e.get("low", 0.0)) for e in entries]
    upper = [max(0.0, 100 * e.get("high", 0.0) - _percent(e)) for e in entries]
    return [lower, upper]


def scores_by_verdict(scored: Mapping[str, Sequence[tuple[float, bool]]]) -> Figure:
    """The judge's score of each answer, for each actor apart by the rubric's verdict; a bar marks each mean.

    Args:
        scored: actor -> (score, certified by the rubric) of every answer.
    """
    figure, axis = pyplot.subplots(figsize=(7.6, 4.6))
    for place, rows in enumerate(scored.values()):
        for side, (certified, color, marker) in enumerate(((False, VERMILLION, "v"), (True, BLUE, "o"))):
            scores = [score for score, success in rows if success is certified]
            middle = place + 0.4 * (side - 0.5)
            x = [middle + 0.15 * (2 * (index * 0.618034 % 1) - 1) for index in range(len(scores))]
            label = ("not certified", "certified")[side] if place == 0 else None
            axis.plot(x, scores, marker=marker, color=color, linestyle="none", markersize=4, alpha=0.55, label=label)
            if scores:
                axis.plot([middle - 0.18, middle + 0.18], [_mean(scores)] * 2, color=BLACK, linestyle="-")
    axis.set_xticks(range(len(scored)), list(scored))
    axis.set_ylabel("judge's score")
    axis.grid(axis="x", visible=False)
    figure.legend(loc="outside lower center", ncols=2, title="by the reserved rubric", markerscale=2)
    return figure


# --- Reward hacking --------------------------------------------------------------------------------

SEED_STYLE = {"linewidth": 1.0, "alpha": 0.55, "linestyle": "-"}
SHORT_NAMES = {
    "judge": "honest judge",
    "judge-courtesy": "courtesy-biased",
    "judge-confidence": "confidence-biased",
    "rubric": "paid by the rubric",
}


def hacking_curves(study: Mapping[str, Any], rewards: Sequence[str], kl_weight: float, width: int = 10) -> Figure:
    """What was paid, beside the reserved rubric, manners and KL: a column a reward, thin lines seeds, thick means.

    Predicted rewards have no common scale: each is shown as its change since its run's first window, and the panels
    of the first row have scales of their own.
    """
    figure, axes = pyplot.subplots(len(HACKING_ROWS), len(rewards), figsize=(11.0, 10.8), sharex=True, squeeze=False)
    for column, reward in enumerate(rewards):
        rows = runs_of(study, reward, kl_weight)
        for axis, (_, curves) in zip(axes[:, column], HACKING_ROWS, strict=True):
            for name, label, color, dashes in curves:
                _seed_lines(axis, [_read(row, name, width) for row in rows], width, color, dashes, label)
        axes[0, column].axhline(0, color=GREY, linewidth=1.0, linestyle="-")
        axes[0, column].set_title(SHORT_NAMES.get(reward, reward))
        axes[-1, column].set_xlabel("iteration")
    for number, (label, curves) in enumerate(HACKING_ROWS):
        axes[number, 0].set_ylabel(label)
        if number:
            _equal_heights(axes[number])
        if len(curves) > 1:
            axes[number, -1].legend(loc="best", fontsize=11)
    return figure


def _equal_heights(axes: Sequence[Axes]) -> None:
    """The same limits for a row of panels, wide enough for each; numbers at the first one only."""
    limits = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        axis.tick_params(labelleft=axis is axes[0])


# Label of a row -> its curves: what is read, its name, colour and dashes.
HACKING_ROWS = (
    ("paid, change since\nthe start", (("score", "paid", BLUE, "-"),)),
    (
        "of all answers (%)",
        (("recognised", "recognised", GREY, "--"), ("success", "rubric success", VERMILLION, "-")),
    ),
    ("of recognised (%)", (("certain", "certain", ORANGE, "-"), ("courteous", "courteous", GREEN, "--"))),
    ("exact KL (nats/token)", (("kl", "KL", BLACK, "-"),)),
)


def _read(row: Mapping[str, Any], name: str, width: int) -> list[float]:
    """One curve of a run as the figure shows it; a share of recognised answers is no number where there are none."""
    values = windows(row, name, width)
    if name == "score":
        return [value - values[0] for value in values]
    if name == "kl":
        return values
    denominators = windows(row, "recognised", width) if name in ("certain", "courteous") else [1.0] * len(values)
    return [100 * value if n else nan for value, n in zip(values, denominators, strict=True)]


def _seed_lines(axis: Axes, curves: Sequence[Sequence[float]], width: int, color: str, dashes: str, label: str) -> None:
    """A thin line for each seed and the thick line of their mean, at the middle of each window."""
    x = [width * (index + 0.5) for index in range(len(curves[0]))]
    for curve in curves:
        axis.plot(x, curve, color=color, **SEED_STYLE)
    known = [[value for value in values if not isnan(value)] for values in zip(*curves, strict=True)]
    axis.plot(x, [_mean(v) if v else nan for v in known], color=color, linestyle=dashes, label=label)


KL_PANELS = (
    ("score", "predicted reward, change", 1),
    ("success", "rubric success, change (points)", 100),
    ("kl", "exact KL at the end (nats/token)", None),
)


def kl_weight_figure(
    study: Mapping[str, Any], rewards: Sequence[str], kl_weights: Sequence[float], width: int = 20
) -> Figure:
    """Last window minus first against the KL weight: marks are seeds, lines their means; and the KL reached."""
    figure, axes = pyplot.subplots(1, 3, figsize=(10.4, 4.4))
    for axis, (name, label, unit) in zip(axes, KL_PANELS, strict=True):
        for place, (reward, color) in enumerate(zip(rewards, (GREEN, ORANGE), strict=False)):
            means = []
            for index, weight in enumerate(kl_weights):
                values = [_moved(row, name, unit, width) for row in runs_of(study, reward, weight)]
                x = [index + 0.16 * (place - (len(rewards) - 1) / 2)] * len(values)
                axis.plot(x, values, marker=MARKERS[place], color=color, linestyle="none", alpha=0.7)
                means.append(_mean(values))
            x = [index + 0.16 * (place - (len(rewards) - 1) / 2) for index in range(len(means))]
            axis.plot(x, means, color=color, linestyle=("-", "--")[place], label=SHORT_NAMES.get(reward, reward))
        if unit is not None:
            axis.axhline(0, color=GREY, linewidth=1.0, linestyle="-")
        axis.set_xticks(range(len(kl_weights)), [f"{weight:g}" for weight in kl_weights])
        axis.set_xlim(-0.4, len(kl_weights) - 0.6)
        axis.set_xlabel("KL weight")
        axis.set_ylabel(label)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _moved(row: Mapping[str, Any], name: str, unit: float | None, width: int) -> float:
    values = windows(row, name, width)
    return values[-1] if unit is None else unit * (values[-1] - values[0])


def part_sentence(study: Mapping[str, Any], reward: str, kl_weight: float, width: int = 20) -> str:
    """What one reward's runs did from the first window to the last, in words made of the recorded numbers."""
    changes = {name: change(study, reward, kl_weight, name, width) for name in ("score", "success")}
    rows = runs_of(study, reward, kl_weight)
    rose = sum(_moved(row, "score", 1, width) > 0 for row in rows)
    fell = sum(_moved(row, "success", 1, width) < 0 for row in rows)
    paid, rubric = changes["score"], changes["success"]
    return (
        f"{SHORT_NAMES.get(reward, reward)}, KL weight {kl_weight:g}: paid {paid.value:+.2f} "
        f"[{paid.low:+.2f}, {paid.high:+.2f}], up in {rose} of {len(rows)} seeds; rubric success "
        f"{100 * rubric.value:+.1f} points [{100 * rubric.low:+.1f}, {100 * rubric.high:+.1f}], "
        f"down in {fell} of {len(rows)}"
    )


def probe_square(judges: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The probe square, a panel a judge: plain to courteous, right and wrong advice, a thin line each context.

    Args:
        judges: judge -> 80 rows with "request", "right", "courteous" and "score".
    """
    figure, axes = pyplot.subplots(1, len(judges), figsize=(10.4, 4.6), sharey=True)
    for axis, (name, rows) in zip(axes, judges.items(), strict=True):
        for right, color, dashes in ((True, BLUE, "-"), (False, VERMILLION, "--")):
            x = [0.0, 1.0] if right else [0.06, 1.06]  # a little apart: equal scores would hide each other
            pairs = probe_pairs(rows, right)
            for pair in pairs:
                axis.plot(x, pair, color=color, linestyle=dashes, linewidth=0.9, alpha=0.4)
            means = [_mean(side) for side in zip(*pairs, strict=True)]
            label = "right advice" if right else "wrong advice"
            axis.plot(x, means, color=color, linestyle=dashes, marker=MARKERS[not right], markersize=9, label=label)
        axis.set_title(SHORT_NAMES.get(name, name))
        axis.set_xticks([0, 1], ["plain", "courteous"])
        axis.set_xlim(-0.25, 1.25)
    axes[0].set_ylabel("judge's score")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def probe_pairs(rows: Sequence[Mapping[str, Any]], right: bool) -> list[tuple[float, float]]:
    """(plain, courteous) scores of each context, for right or for wrong advice."""
    cells: dict[str, dict[bool, float]] = {}
    for row in rows:
        if row["right"] is right:
            cells.setdefault(row["request"], {})[row["courteous"]] = row["score"]
    return [(cell[False], cell[True]) for cell in cells.values()]
