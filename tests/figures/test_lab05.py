"""The figures of lab 05 draw what they are given: tokens, curves, rates, seeds and the probe square."""

import pytest
from matplotlib import pyplot

from labs_lib.figures import lab05
from labs_lib.figures.style import render_png, use_style

REWARDS = ("judge", "judge-courtesy", "judge-confidence", "rubric")
BIASED = REWARDS[1:3]


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    pyplot.close("all")


TOKENS = ["Try", " this", ".", "<|im_end|>"]
COLUMNS = {
    "reward": [0.0, -0.01, 0.0, 2.0],
    "value": [0.5, 0.6, 0.7, 1.0],
    "advantage": [1.0, 1.0, 1.0, 1.0],
    "return": [1.5, 1.6, 1.7, 2.0],
}


def iteration(number):
    update = {
        "actor": {"loss": 0.1, "gradient_norm": 1.0 * number},
        "critic": {"loss": 4.0 / number, "gradient_norm": 2.0},
        "active_clip_share": 0.0,
    }
    later = {**update, "active_clip_share": 0.1, "actor": {"loss": 0.1, "gradient_norm": 3.0 * number}}
    answers = [{"score": float(score)} for score in (number, number + 2)]
    return {"answers": answers, "kl_mean": 0.01 * number, "updates": [update, later]}


HISTORY = [iteration(number) for number in range(1, 21)]


def entry(value):
    return {"count": round(100 * value), "n": 100, "value": value, "low": value - 0.1, "high": value + 0.1}


def summary(success):
    rates = {name: entry(success) for name in ("success", "recognised", "relevant", "certain")} | {
        "courteous": {"count": 0, "n": 0}
    }
    return {"populations": {"test": rates, "sampled": rates}}


SUMMARIES = {"sft-office": summary(0.6), "ppo": summary(0.5), "dpo": summary(0.4)}


def run(reward, seed, weight=0.02, gain=0.1):
    """40 iterations of 4 answers; the score rises and success falls by the gain an iteration, in all seeds alike."""
    steps = range(40)
    curves = {
        "success": [4 if step < 20 else 2 for step in steps],
        "recognised": [4 for _ in steps],
        "certain": [1 if step < 20 else 3 for step in steps],
        "courteous": [2 for _ in steps],
        "score": [gain * step + seed for step in steps],
        "kl": [0.001 * step for step in steps],
    }
    return {"reward": reward, "seed": seed, "kl_weight": weight, "answers_an_iteration": 4, "curves": curves}


STUDY = {
    "runs": [run(reward, seed) for reward in REWARDS for seed in (48, 49, 50)]
    + [run(reward, seed, weight, 0.1 + weight) for weight in (0.0, 0.1) for reward in BIASED for seed in (48, 49, 50)]
}


def probes(slope):
    return [
        {"request": f"probe-{n}", "right": right, "courteous": courteous, "score": n + slope * courteous + right}
        for n in range(3)
        for right in (True, False)
        for courteous in (False, True)
    ]


def test_token_bars_stand_over_the_tokens():
    figure = lab05.token_bars(TOKENS, COLUMNS)
    assert len(figure.axes) == 4
    for axis, name in zip(figure.axes, lab05.TOKEN_COLUMNS, strict=True):
        assert [bar.get_height() for bar in axis.patches] == COLUMNS[name]
        assert axis.get_ylabel() == name
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["Try", "this", ".", "<|im_end|>"]


def test_a_token_of_blanks_is_still_named():
    figure = lab05.token_bars([" ", "a"], {name: [0.0, 1.0] for name in COLUMNS})
    assert figure.axes[-1].get_xticklabels()[0].get_text() == "' '"


def test_ppo_curves_hold_one_number_an_iteration():
    curves = lab05.ppo_curves(HISTORY)
    assert len(curves) == 6 and all(len(values) == 20 for values in curves.values())
    assert curves["mean predicted reward"][:2] == [2.0, 3.0]
    assert curves["clipped tokens, last update (share)"][0] == 0.1
    assert curves["actor gradient norm"][1] == pytest.approx(4.0)  # of both updates
    shown = {axis.get_title(): list(axis.lines[0].get_ydata()) for axis in lab05.ppo_learning_curves(HISTORY).axes}
    assert shown == curves


def test_rates_are_percent_with_intervals_and_survive_an_empty_denominator():
    figure = lab05.rubric_rates(SUMMARIES, ("test", "sampled"))
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == pytest.approx([60] * 4 + [0] + [50] * 4 + [0] + [40] * 4 + [0])
    segments = figure.axes[0].collections[0].get_segments()
    assert [list(segment[:, 1]) for segment in segments] == [pytest.approx([50, 70])] * 4 + [[0, 0]]


def test_every_answer_is_a_mark_and_every_group_has_its_mean():
    figure = lab05.scores_by_verdict({"sft": [(1.0, True), (3.0, True), (-1.0, False)], "ppo": [(5.0, False)]})
    marks = [sorted(line.get_ydata()) for line in figure.axes[0].lines]
    assert marks == [[-1.0], [-1.0, -1.0], [1.0, 3.0], [2.0, 2.0], [5.0], [5.0, 5.0], []]


def test_hacking_curves_show_the_change_of_what_was_paid_and_percent_of_the_rubric():
    figure = lab05.hacking_curves(STUDY, REWARDS, 0.02, width=10)
    axes = figure.axes
    assert len(axes) == 16
    paid = axes[0].lines[:4]  # three seeds and their mean
    assert [list(line.get_ydata()) for line in paid] == [pytest.approx([0.0, 1.0, 2.0, 3.0])] * 4
    assert list(paid[0].get_xdata()) == [5, 15, 25, 35]
    assert list(axes[4].lines[3].get_ydata()) == [100] * 4  # recognised, the mean
    assert list(axes[4].lines[7].get_ydata()) == [100, 100, 50, 50]  # success
    assert list(axes[8].lines[3].get_ydata()) == [25, 25, 75, 75]  # certain, the mean
    assert list(axes[8].lines[7].get_ydata()) == [50] * 4  # courteous
    assert list(axes[12].lines[3].get_ydata()) == pytest.approx([0.0045, 0.0145, 0.0245, 0.0345])


def test_a_share_of_no_recognised_answers_is_a_gap():
    study = {"runs": [run("judge", 48), run("judge", 49)]}
    study["runs"][1]["curves"] |= {"recognised": [4] * 30 + [0] * 10, "certain": [2] * 30 + [0] * 10}
    lines = lab05.hacking_curves(study, ("judge",), 0.02, width=10).axes[2].lines
    assert list(lines[1].get_ydata())[:3] == [50] * 3 and lines[1].get_ydata()[3] != lines[1].get_ydata()[3]
    assert list(lines[2].get_ydata()) == [37.5, 37.5, 62.5, 75]  # the mean of the seeds that have one


def test_the_kl_weight_figure_holds_changes_and_the_kl_reached():
    figure = lab05.kl_weight_figure(STUDY, BIASED, (0.0, 0.02, 0.1))
    score, success, kl = figure.axes
    assert list(score.lines[0].get_ydata()) == pytest.approx([2.0] * 3)  # the seeds at weight 0
    assert list(score.lines[3].get_ydata()) == pytest.approx([2.0, 2.0, 4.0])  # means: gains 0.1, 0.1 and 0.2
    assert list(success.lines[3].get_ydata()) == [-50] * 3
    assert list(kl.lines[3].get_ydata()) == pytest.approx([0.0295] * 3)
    assert [tick.get_text() for tick in score.get_xticklabels()] == ["0", "0.02", "0.1"]


def test_the_sentence_says_what_the_seeds_did():
    sentence = lab05.part_sentence(STUDY, "judge-confidence", 0.02)
    assert sentence.startswith("confidence-biased, KL weight 0.02: paid +2.00 [+2.00, +2.00], up in 3 of 3 seeds")
    assert sentence.endswith("-50.0 points [-50.0, -50.0], down in 3 of 3")


def test_the_probe_square_joins_the_two_answers_of_a_context():
    figure = lab05.probe_square({"judge": probes(0.5), "judge-courtesy": probes(3.0)})
    assert lab05.probe_pairs(probes(0.5), True) == [(1.0, 1.5), (2.0, 2.5), (3.0, 3.5)]
    right = figure.axes[1].lines[:4]
    assert [list(line.get_ydata()) for line in right] == [[1, 4], [2, 5], [3, 6], [2, 5]]
    assert list(figure.axes[0].lines[7].get_ydata()) == [1.0, 1.5]  # wrong advice, the mean


@pytest.mark.parametrize(
    "figure",
    [
        lambda: lab05.token_bars(TOKENS, COLUMNS),
        lambda: lab05.ppo_learning_curves(HISTORY),
        lambda: lab05.rubric_rates(SUMMARIES, ("test", "sampled")),
        lambda: lab05.scores_by_verdict({"sft": [(1.0, True), (0.0, False)]}),
        lambda: lab05.hacking_curves(STUDY, REWARDS, 0.02),
        lambda: lab05.kl_weight_figure(STUDY, BIASED, (0.0, 0.02, 0.1)),
        lambda: lab05.probe_square({name: probes(1.0) for name in REWARDS[:3]}),
    ],
)
def test_figures_render_without_a_warning(figure, recwarn):
    assert render_png(figure()).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []
