"""The figures of lab 02 show the data they are given."""

import math

import pytest
from matplotlib import pyplot

from labs_lib.figures.lab02 import (
    AnswerUpdate,
    MeasuredShare,
    PrefixKL,
    clip_figure,
    mixed_groups_figure,
    prefix_kl_figure,
    ratio_walk_figure,
    update_figure,
)
from labs_lib.figures.style import render_png, use_style
from labs_lib.statistics import Interval


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    pyplot.close("all")


def lines(axes):
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]


def tick_texts(axes):
    return [label.get_text() for label in axes.get_xticklabels()]


def test_mixed_groups():
    rates = [0.0, 0.5, 1.0]
    measured = [MeasuredShare(4, 0.3, Interval(0.4, 0.25, 0.5))]
    figure = mixed_groups_figure(rates, {2: [0, 0.5, 0], 4: [0, 0.875, 0]}, measured)
    (axes,) = figure.axes
    assert (rates, [0, 0.875, 0]) in lines(axes)
    (bar,) = axes.containers
    assert list(bar.lines[0].get_ydata()) == [0.4]
    (segment,) = bar.lines[2][0].get_segments()
    assert segment[:, 1].tolist() == pytest.approx([0.25, 0.5])
    curve = next(line for line in axes.get_lines() if line.get_label().startswith("G = 4"))
    assert bar.lines[0].get_color() == curve.get_color()
    assert render_png(figure)


def test_clip():
    ratios = [0.5, 1.0, 1.5]
    losses, slopes = {1: [-0.5, -1.0, -1.2], -1: [0.8, 1.0, 1.5]}, {1: [-1, -1, 0], -1: [0, 1, 1]}
    figure = clip_figure(ratios, losses, slopes, (0.8, 1.2))
    grid = figure.axes
    assert [lines(axes)[0] for axes in grid] == [
        (ratios, values) for sign in (1, -1) for values in (losses[sign], slopes[sign])
    ]
    assert [axes.get_ylabel() for axes in grid] == ["A = +1", "", "A = −1", ""]
    assert render_png(figure)


def test_ratio_walk():
    figure = ratio_walk_figure([1.0, 1.21, 1.21], [1.0, 1.21, 1.4], 1.2)
    captured, recomputed, clip = lines(figure.axes[0])
    assert captured == ([1, 2, 3], [1.0, 1.21, 1.21]) and recomputed == ([1, 2, 3], [1.0, 1.21, 1.4])
    assert clip[1] == [1.2, 1.2]
    assert render_png(figure)


def test_prefix_kl():
    answer = PrefixKL("one answer", ['{"', "$", "␣", "EOS"], [0.1, 0.2, 0.3, 0.0], [0.1, -0.2, 0, 0], [0, 0.1, 0.2, 0])
    figure = prefix_kl_figure([answer, answer])
    assert len(figure.axes) == 2
    axes = figure.axes[1]
    assert [bar.get_height() for bar in axes.patches] == answer.exact
    assert [y for _, y in lines(axes)[:2]] == [answer.k1, answer.k3]
    assert tick_texts(axes) == ['{"', r"\$", "␣", "EOS"]
    assert axes.get_title() == "one answer"
    assert render_png(figure)


def test_update():
    answer = AnswerUpdate("reward 1", ["a", "b", "c"], [0.5, 0.2, 0.9], [0.6, 0.1, 0.9001])
    rare = AnswerUpdate("reward 0", ["a", "b"], [0.5, 1e-6], [0.5, 1e-7])
    figure = update_figure([answer, rare])
    common, logarithmic = figure.axes
    drawn = lines(common)
    assert [ys for _, ys in drawn[::3]] == [[0.5, 0.6], [0.2, 0.1], [0.9, 0.9001]]
    assert tick_texts(common) == [f"a\n{math.log(1.2):+.2f}", f"b\n{math.log(0.5):+.2f}", "c\n0.00"]
    markers = [line.get_marker() for line in common.get_lines()]
    assert [markers[2], markers[5], markers[8]] == ["^", "v", "s"]
    assert (common.get_yscale(), logarithmic.get_yscale()) == ("linear", "log")
    low, high = logarithmic.get_ylim()
    assert low < 1e-7 and high > 1
    assert render_png(figure)
