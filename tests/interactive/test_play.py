"""Controls and what they show: the static figure at their start, and a redraw with new numbers at every move."""

import subprocess
import sys

import ipywidgets
import pytest
from matplotlib import pyplot

from labs_lib import paths
from labs_lib.errors import LabError
from labs_lib.figures.style import ShownFigure, use_style
from labs_lib.interactive import play as module
from labs_lib.interactive.play import Choice, Play, ShownView, Slider, View, play, with_controls

ALT = "A line whose end is at the chosen height, for tests of the controls."


@pytest.fixture(autouse=True)
def style(monkeypatch, tmp_path):
    monkeypatch.setenv(paths.FIGURES_VARIABLE, str(tmp_path))
    use_style()
    yield
    pyplot.close("all")


def line(height, kind):
    figure, axes = pyplot.subplots()
    if height > 8:
        raise ValueError("too high")
    axes.plot([0, height], linestyle={"solid": "-", "dashed": "--"}[kind])
    return View(figure, f"height {height}, {kind}")


LINE = Play(
    line,
    {"height": Slider("height", 2, 0, 9, 1), "kind": Choice("kind", "solid", ["solid", "dashed"])},
    "02-play-line",
    ALT,
)


def controls_of(widget):
    row, output = widget.children
    assert isinstance(output, ipywidgets.Output)
    return row.children


# --- Static ------------------------------------------------------------------------------------------


def test_without_a_front_end_the_figure_at_the_start_is_saved_with_its_numbers(capsys, tmp_path):
    shown = play(LINE)
    assert isinstance(shown, ShownFigure) and shown.alt == ALT
    assert capsys.readouterr().out == "height 2, solid\n"
    assert (tmp_path / "02-play-line.png").read_bytes() == shown.png
    assert pyplot.get_fignums() == []


def test_without_a_front_end_a_failing_view_ends_the_cell():
    with pytest.raises(ValueError, match="too high"):
        play(Play(line, {**LINE.controls, "height": Slider("height", 9, 0, 9, 1)}, LINE.figure, ALT))


def test_a_static_figure_costs_no_import_of_widgets():
    code = (
        "import sys; from labs_lib.interactive import lab02, lab06; from labs_lib.interactive.play import play;"
        "play(lab06.two_answers()); sys.exit('ipywidgets' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr or "ipywidgets was imported"


def test_the_numbers_of_another_position_leave_no_figure_open():
    assert LINE.numbers_at() == "height 2, solid" and LINE.numbers_at(height=7) == "height 7, solid"
    assert pyplot.get_fignums() == []
    with pytest.raises(LabError, match="no control 'hight': move height, kind"):
        LINE.numbers_at(hight=7)


# --- With controls -----------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch):
    """What the output of the controls holds, one view after the other."""
    views = []
    monkeypatch.setattr(module, "display", views.append)
    return views


def test_with_a_front_end_there_are_controls_and_no_file(monkeypatch, tmp_path, shown):
    monkeypatch.setattr(module, "front_end_is_there", lambda: True)
    height, kind = controls_of(play(LINE))
    assert (height.value, height.min, height.max, height.step) == (2, 0, 9, 1)
    assert isinstance(height, ipywidgets.IntSlider) and kind.options == ("solid", "dashed")
    assert [control.description for control in (height, kind)] == ["height", "kind"]
    assert list(tmp_path.iterdir()) == []
    assert [view.numbers for view in shown] == ["height 2, solid"]


def test_what_the_controls_show_first_is_the_static_figure(shown):
    with_controls(LINE)
    assert [view.png for view in shown] == [play(LINE).png]


def test_numbers_and_figure_are_one_output_with_alt_text():
    bundle = ShownView(b"png", ALT, "1 < 2")._repr_mimebundle_()
    assert ">1 &lt; 2</pre><img " in bundle["text/html"] and f'alt="{ALT}"' in bundle["text/html"]
    assert bundle["text/plain"] == f"1 < 2\nFigure: {ALT}"


def test_a_move_draws_again_with_new_numbers_and_leaves_no_figure_open(shown):
    height, kind = controls_of(with_controls(LINE))
    students = pyplot.figure()
    height.value = 5
    kind.value = "dashed"
    assert [view.numbers for view in shown] == ["height 2, solid", "height 5, solid", "height 5, dashed"]
    assert len({view.png for view in shown}) == 3
    assert pyplot.get_fignums() == [students.number]


def test_a_view_that_fails_halfway_leaves_no_figure_open_and_the_next_move_works(shown):
    height, _ = controls_of(with_controls(LINE))
    with pytest.raises(ValueError, match="too high"):
        height.value = 9
    assert pyplot.get_fignums() == []
    height.value = 8
    assert shown[-1].numbers == "height 8, solid"


def test_numbers_with_a_fraction_get_a_slider_for_them():
    (slider,) = controls_of(
        with_controls(Play(lambda x: line(x, "solid"), {"x": Slider("x", 0.5, 0, 2, 0.5)}, "", ALT))
    )
    assert isinstance(slider, ipywidgets.FloatSlider) and slider.step == 0.5


@pytest.mark.parametrize("wrong", [(3, 0, 2, 1), (-1, 0, 2, 1), (1, 0, 2, 0), (1, 0, 2, -1), (float("nan"), 0, 2, 1)])
def test_a_slider_that_starts_outside_or_stands_still_is_refused(wrong):
    with pytest.raises(LabError, match="'size' goes from"):
        Slider("size", *wrong)


def test_a_choice_starts_at_one_of_its_options():
    with pytest.raises(LabError, match="'kind' starts at 'dotted'"):
        Choice("kind", "dotted", ["solid", "dashed"])
