"""The figures of lab 04 draw what they are given, with the intervals where they belong."""

import pytest
from matplotlib import pyplot

from labs_lib.figures import lab04
from labs_lib.figures.style import render_png, use_style


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    pyplot.close("all")


def entry(value, half=0.1):
    return {"value": value, "low": max(0.0, value - half), "high": min(1.0, value + half)}


RATES = {name: entry(0.1 * place + 0.2) for place, name in enumerate(lab04.RATE_NAMES)}
NOTHING_READ = {"success": entry(0.0), "recognised": entry(0.0)} | {
    name: {"count": 0, "n": 0} for name in ("relevant", "certain", "courteous")
}
BINS = [{"predicted": 0.6, "n": 30, **entry(0.5)}, {"predicted": 0.95, "n": 150, **entry(0.9)}]
PAIRS = [
    {"chosen": 2.0, "rejected": -1.0, "tokens": [12, 18]},
    {"chosen": 1.0, "rejected": 0.5, "tokens": [20, 12]},
]
CELLS = {
    (right, manner, courteous): entry(0.1 * len(manner) + 0.3 * right + 0.05 * courteous)
    for right in (True, False)
    for manner in ("plain", "cautious", "certain")
    for courteous in (False, True)
}
PROBES = [
    {"request": name, "right": right, "courteous": courteous, "score": score + 2.0 * right + courteous}
    for name, score in (("probe-1", 0.0), ("probe-2", 1.0))
    for right in (True, False)
    for courteous in (False, True)
]
ANSWERS = [
    {"prompt": f"prompt {number}", "text": f"answer {number}", "reason": reason}
    for number, reason in enumerate(["wrong_action", "success", "UNCERTIFIED", "success", "success"])
]


def segments(axis, place=0):
    return [[list(point) for point in segment] for segment in axis.collections[place].get_segments()]


def test_rates_are_in_percent_with_their_intervals():
    axis = lab04.rates_figure({"SFT": RATES}).axes[0]
    assert list(axis.containers[0].lines[0].get_xdata()) == pytest.approx([20, 30, 40, 50, 60])
    assert [point[0] for point in segments(axis)[0]] == pytest.approx([10, 30])
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels[0] == "success\nof all" and labels[3] == "certain\nof recognised"


def test_a_population_without_a_recognised_answer_shows_two_rates():
    axis = lab04.rates_figure({"base": NOTHING_READ, "SFT": RATES}).axes[0]
    assert len(axis.containers[0].lines[0].get_xdata()) == 2


def test_reliability_shows_bins_and_the_diagonal():
    axis = lab04.reliability_figure(BINS).axes[0]
    assert list(axis.lines[0].get_xdata()) == list(axis.lines[0].get_ydata())
    marks = axis.containers[0].lines[0]
    assert list(marks.get_xdata()) == [60, 95] and list(marks.get_ydata()) == [50, 90]
    assert [text.get_text() for text in axis.texts] == ["30 pairs", "150 pairs"]
    assert axis.get_ylim()[0] < 40


def test_both_sides_stand_at_their_own_lengths():
    axis = lab04.length_figure(PAIRS).axes[0]
    chosen, rejected = axis.lines
    assert list(chosen.get_ydata()) == [2.0, 1.0] and list(rejected.get_ydata()) == [-1.0, 0.5]
    assert list(chosen.get_xdata()) == pytest.approx([12, 20], abs=0.2)
    assert list(rejected.get_xdata()) == pytest.approx([18, 12], abs=0.2)


def test_the_factorial_puts_right_beside_wrong_and_courtesy_apart():
    figure = lab04.style_figure(CELLS)
    for axis, courteous in zip(figure.axes, (False, True), strict=True):
        right, wrong = (container.lines[0].get_ydata() for container in axis.containers)
        assert list(right) == pytest.approx(
            [CELLS[True, m, courteous]["value"] for m in ("plain", "cautious", "certain")]
        )
        assert list(right - wrong) == pytest.approx([0.3] * 3)
        assert [label.get_text() for label in axis.get_xticklabels()] == ["plain", "cautious", "certain"]


def test_the_probe_square_joins_plain_to_courteous_of_one_context():
    figure = lab04.probe_square(PROBES)
    for axis, right in zip(figure.axes, (True, False), strict=True):
        level, first, second, mean = axis.lines
        assert list(level.get_ydata()) == [2.5, 2.5]  # right and plain, in both panels
        assert list(first.get_ydata()) == [2.0 * right, 2.0 * right + 1]
        assert list(second.get_ydata()) == [2.0 * right + 1, 2.0 * right + 2]
        assert list(mean.get_ydata()) == [2.0 * right + 0.5, 2.0 * right + 1.5]


def test_answers_are_shown_by_verdict_successes_first_and_at_most_two_of_each():
    texts = [text.get_text() for text in lab04.answers_figure(ANSWERS).axes[0].texts]
    assert texts[::3] == ["success", "success", "UNCERTIFIED", "wrong_action"]
    assert texts[2::3] == ["answer 1", "answer 3", "answer 2", "answer 0"]
    assert texts[1] == "prompt 1"


def test_a_long_or_odd_answer_stays_one_line_of_text():
    row = {"prompt": "p", "text": "costs $5 or\n$6 " + "x" * 200, "reason": "UNCERTIFIED"}
    figure = lab04.answers_figure([row])
    text = figure.axes[0].texts[2].get_text()
    assert "\n" not in text and text.endswith("…") and len(text) == lab04.LONGEST_LINE
    assert render_png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "figure",
    [
        lambda: lab04.rates_figure({"base": NOTHING_READ, "SFT, greedy": RATES, "SFT, sampled": RATES}),
        lambda: lab04.reliability_figure(BINS),
        lambda: lab04.length_figure(PAIRS),
        lambda: lab04.style_figure(CELLS),
        lambda: lab04.probe_square(PROBES),
        lambda: lab04.answers_figure(ANSWERS),
    ],
)
def test_figures_render_without_a_warning(figure, recwarn):
    assert render_png(figure()).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []
