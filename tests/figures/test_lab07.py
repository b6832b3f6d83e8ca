"""Figures of lab 07 hold exactly the numbers that they were given."""

import pytest

from labs_lib.figures import lab07
from labs_lib.figures.style import render_png

KL, APART = [1e-4, 1e-2], {"k3": [0.01, 0.1], "k3 x ratio": [1e-15, 1e-16]}
SEEDS = {"lab 03": [19.0, 21.5], "TRL": [17.0, 18.5]}
ROW = {"start": 16.5, "seeds": SEEDS, "run": 18.0, "low": 13.0, "high": 24.0}
PANELS = {"greedy": {"ID50": ROW, "ALL": ROW}, "sampled": {"ID50": ROW, "ALL": ROW}}
PARTS = {"0.5 B": {"policy": 2.0, "Adam": 4.0}, "7 B": {"policy": 30.0, "Adam": 61.0}}
SHARES = {"0.5 B": [0.9, 0.5], "7 B": [0.8, 0.25]}


def test_every_prefix_is_a_point_of_each_estimator():
    axis = lab07.kl_gradients(KL, APART).axes[0]
    assert {line.get_label(): list(line.get_ydata()) for line in axis.lines} == APART
    assert all(list(line.get_xdata()) == KL for line in axis.lines)
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")


def test_a_run_stands_beside_the_seeds_with_its_interval():
    figure = lab07.beside_seeds(PANELS)
    axis = figure.axes[0]
    assert [list(line.get_xdata()) for line in axis.lines[:3]] == [[16.5], [19.0, 21.5], [17.0, 18.5]]
    heights = [set(line.get_ydata()) for line in axis.lines[1:4]]
    assert all(len(height) == 1 for height in heights) and len(set.union(*heights)) == 3
    run = axis.containers[0]
    assert list(run[0].get_xdata()) == [18.0]
    assert [point[0] for point in run[2][0].get_segments()[0]] == pytest.approx([13.0, 24.0])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["warm start", "lab 03", "TRL", "this run, interval over problems"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ID50", "ALL"]


def test_memory_is_in_the_order_of_its_parts_and_the_device_is_a_line():
    figure = lab07.memory_bars(PARTS, 80)
    first, second = figure.axes
    assert [bar.get_width() for bar in first.patches] == [4.0, 2.0]  # from the bottom up
    assert [label.get_text() for label in first.get_yticklabels()] == ["Adam", "policy"]
    assert [bar.get_width() for bar in second.patches] == [61.0, 30.0]
    assert list(second.lines[0].get_xdata()) == [80, 80]


def test_shares_are_shown_in_percent():
    axis = lab07.sampling_share([16, 512], SHARES).axes[0]
    shown = {line.get_label(): list(line.get_ydata()) for line in axis.lines[:2]}
    assert shown == {"0.5 B": [90.0, 50.0], "7 B": [80.0, 25.0]}
    assert axis.get_xscale() == "log"


@pytest.mark.parametrize(
    "figure",
    [
        lambda: lab07.kl_gradients(KL, APART),
        lambda: lab07.beside_seeds(PANELS),
        lambda: lab07.memory_bars(PARTS, 80),
        lambda: lab07.sampling_share([16, 512], SHARES),
    ],
    ids=["gradients", "seeds", "memory", "share"],
)
def test_figures_render_without_a_warning(figure, recwarn):
    assert render_png(figure()).startswith(b"\x89PNG")
    assert [str(warning.message) for warning in recwarn] == []
