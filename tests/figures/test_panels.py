"""The panels of the learning curves show every value and the moving mean, whichever run they are of."""

import pytest
from matplotlib import pyplot

from labs_lib.figures.panels import iteration_panels, smoothed
from labs_lib.figures.style import use_style

CURVES = {f"curve {number}": [number * step for step in range(1, 21)] for number in range(5)} | {
    "below zero": [-0.5, 0.25] * 10
}


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    pyplot.close("all")


def test_the_moving_mean_looks_back_only():
    assert smoothed([0.0, 2.0, 4.0, 6.0], 2) == [0.0, 1.0, 3.0, 5.0]


def test_each_panel_shows_the_values_and_their_mean():
    figure = iteration_panels(CURVES)
    assert [axis.get_title() for axis in figure.axes] == list(CURVES)
    for axis, values in zip(figure.axes, CURVES.values(), strict=True):
        each, mean = axis.lines
        assert list(each.get_xdata()) == list(mean.get_xdata()) == list(range(1, 21))
        assert list(each.get_ydata()) == values
        assert list(mean.get_ydata()) == smoothed(values)
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "", "", "", "iteration", "iteration"]


def test_panels_stand_on_zero_unless_a_value_is_below_it():
    assert [axis.get_ylim()[0] for axis in iteration_panels(CURVES).axes] == [0.0] * 5 + [-0.5]


def test_one_curve_too_few_is_refused():
    with pytest.raises(ValueError, match="zip"):
        iteration_panels(dict(list(CURVES.items())[:5]))
