"""Figures of lab 06 hold exactly the numbers that they were given."""

import pytest
import torch

from labs_lib.bench.measures import BUCKETS, difficulty
from labs_lib.figures import lab06
from labs_lib.figures.style import render_png
from labs_lib.statistics import mean_over_seeds

PULLS = {
    "by length": {name: [2.0 * place + 1, 2.0 * place + 3] for place, name in enumerate(BUCKETS)},
    "by a constant": {name: [1.0, 1.0] for name in BUCKETS},
}
CURVES = {
    "grpo": torch.tensor([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]]),
    "dr_grpo": torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]),
}


def test_bars_are_relative_to_right_short_and_every_seed_is_a_dot():
    figure = lab06.bucket_bars(PULLS)
    left, right = figure.axes
    assert [bar.get_height() for bar in left.patches] == [1.0, 2.0, 3.0, 4.0]
    assert [list(line.get_ydata()) for line in left.lines] == [[0.5, 1.5], [1.5, 2.5], [2.5, 3.5], [3.5, 4.5]]
    assert [bar.get_height() for bar in right.patches] == [1.0] * 4
    assert [axis.get_title() for axis in figure.axes] == list(PULLS)


def test_difficulty_lines_are_the_exact_advantages():
    axis = lab06.difficulty_lines(4).axes[0]
    shown = {line.get_label(): list(line.get_ydata()) for line in axis.lines[:4]}
    assert shown["wrong, divided"] == [difficulty(k, 4).wrong for k in (1, 2, 3)]
    assert shown["right, not divided"] == [0.75, 0.5, 0.25]
    assert list(axis.lines[0].get_xdata()) == [1, 2, 3]


def test_curves_are_means_over_seeds_with_students_bands():
    figure = lab06.seed_curves({"success": CURVES, "length": CURVES, "entropy": CURVES}, "iteration", start=1)
    assert [axis.get_title() for axis in figure.axes] == ["success", "length", "entropy"]
    first = figure.axes[0]
    assert [list(line.get_ydata()) for line in first.lines] == [[2.0, 3.0], [pytest.approx(1 / 3), 1.0]]
    assert list(first.lines[0].get_xdata()) == [1, 2]
    band = first.collections[0].get_paths()[0].vertices
    interval = mean_over_seeds([1.0, 2.0, 3.0])
    assert band[:, 1].min() == pytest.approx(min(interval.low, mean_over_seeds([2.0, 2.0, 5.0]).low))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CURVES)
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "iteration", "iteration"]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: lab06.bucket_bars(PULLS),
        lab06.difficulty_lines,
        lambda: lab06.seed_curves({"success": CURVES}, "iteration", columns=1),
    ],
    ids=["bars", "difficulty", "curves"],
)
def test_figures_render_without_a_warning(figure, recwarn):
    assert render_png(figure()).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []
