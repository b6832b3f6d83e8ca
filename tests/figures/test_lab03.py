"""The figures of lab 03 draw what they are given, with the intervals where they belong."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib import pyplot

from labs_lib.figures import lab03
from labs_lib.figures.style import render_png, use_style


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    pyplot.close("all")


def iteration(number):
    paid = [1.0, 0.0, 1.0, 0.0] if number % 2 else [0.0] * 4
    answers = [{"reward": int(p), "paid": p} for p in [*paid, *[0.0] * 4]]
    updates = [
        {"kl_mean": kl, "active_clip_share": 0.1 * kl, "gradient_norm": 2.0, "entropy_mean": 0.5}
        for kl in (0.0, 0.01 * number)
    ]
    return {"answers": answers, "updates": updates}


HISTORY = [iteration(number) for number in range(1, 21)]


def entry(correct, n, low, high):
    return {"correct": correct, "n": n, "low": low, "high": high}


def summary(correct, answers, total):
    rates = {
        "ID50": entry(correct, 100, 0.2, 0.6),
        "OOD100": entry(5, 100, 0.02, 0.11),
        "ALL": entry(45, 200, 0.2, 0.3),
    }
    return {
        "accuracy": {"greedy": rates, "sampled": rates},
        "answers": answers,
        "tokens_generated": 8 * answers,
        "tokens_scored": 32 * answers + 1000,
        "seconds": {"total": total},
    }


SUMMARIES = {"warmstart": summary(40, 0, 5.0), "sft": summary(50, 0, 20.0), "grpo": summary(45, 1600, 30.0)}


def test_curves_hold_one_number_an_iteration():
    curves = lab03.curves(HISTORY, 4)
    assert len(curves) == 6 and all(len(values) == 20 for values in curves.values())
    assert curves["mean reward"][:2] == [0.25, 0.0]
    assert curves["constant groups (share)"][:2] == [0.5, 1.0]
    assert curves["exact KL to the reference (nats/token)"][3] == pytest.approx(0.04)  # of the last update


def test_constant_groups_are_counted_by_what_was_paid():
    row = {**HISTORY[1], "answers": [{"reward": 0, "paid": p} for p in (0.5, 0.0, 0.0, 0.0)]}
    assert lab03.curves([row], 4)["constant groups (share)"] == [0.0]


def test_learning_curves_show_all_curves():
    shown = {axis.get_title(): list(axis.lines[0].get_ydata()) for axis in lab03.learning_curves(HISTORY, 4).axes}
    assert shown == lab03.curves(HISTORY, 4)


def test_bars_have_the_rates_and_intervals_in_percent():
    figure = lab03.accuracy_bars(SUMMARIES)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights == pytest.approx([40, 50, 45, 5, 5, 5])
    segments = figure.axes[0].collections[0].get_segments()
    assert [list(segment[:, 1]) for segment in segments] == [pytest.approx([20, 60])] * 3
    assert "%" in figure.axes[0].get_ylabel()


def test_costs_are_beside_accuracy():
    figure = lab03.accuracy_against_cost(SUMMARIES)
    for axis, expected in zip(figure.axes, ([0, 64, 1600], [1, 3.6, 65], [5, 20, 30]), strict=True):
        found = [container.lines[0].get_xdata()[0] for container in axis.containers]
        assert found == pytest.approx(expected)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 200).map(float), min_size=1, max_size=6))
def test_marks_of_nearly_equal_cost_stand_apart_and_others_where_they_belong(costs):
    named = {str(number): summary(40, 0, cost) for number, cost in enumerate(costs)}
    axis = lab03.accuracy_against_cost(named).axes[2]
    found = [container.lines[0].get_xdata()[0] for container in axis.containers]
    pyplot.close("all")
    step = 0.04 * (max(costs) or 1.0)
    gaps = [abs(a - b) for number, a in enumerate(found) for b in found[:number]]
    assert all(gap > 0.99 * step for gap in gaps)
    assert all(place >= cost for place, cost in zip(found, costs, strict=True))
    if all(abs(a - b) >= step for number, a in enumerate(costs) for b in costs[:number]):
        assert found == costs


def test_the_mixed_curve_is_symmetric_and_its_points_are_percent():
    assert lab03.mixed_probability(0.0, 4) == lab03.mixed_probability(1.0, 4) == 0
    assert lab03.mixed_probability(0.5, 2) == 0.5
    figure = lab03.mixed_groups_figure({"capable": (0.3, 0.4), "weak": (0.02, 0.05)})
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].lines[3:]]
    assert points == [pytest.approx((30, 40)), pytest.approx((2, 5))]


def test_the_control_connects_the_two_runs_of_a_seed():
    gains = {
        "grpo": {k: [0.1, 0.2, 0.0] for k in lab03.KINDS},
        "grpo-shuffled": {k: [0.0, -0.1, 0.0] for k in lab03.KINDS},
    }
    figure = lab03.control_figure(gains, [48, 49, 50])
    lines = figure.axes[0].lines[:3]
    assert [list(line.get_ydata()) for line in lines] == [[0, 10], [-10, 20], [0, 0]]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: lab03.learning_curves(HISTORY, 4),
        lambda: lab03.accuracy_bars(SUMMARIES),
        lambda: lab03.accuracy_against_cost(SUMMARIES),
    ],
)
def test_figures_render_without_a_warning(figure, recwarn):
    assert render_png(figure()).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []
