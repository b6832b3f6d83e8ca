"""Figures: the same bytes for the same content, readable on any background, never without alt text."""

import colorsys
import io
import itertools

import matplotlib
import numpy
import pytest
from matplotlib import pyplot
from PIL import Image

from labs_lib import paths
from labs_lib.errors import LabError
from labs_lib.figures import style

ALT = "A line that rises from one to three, with the axis in seconds."


@pytest.fixture(autouse=True)
def restored_style(monkeypatch, tmp_path):
    monkeypatch.setenv(paths.FIGURES_VARIABLE, str(tmp_path))
    with matplotlib.rc_context():
        style.use_style()
        yield
    pyplot.close("all")


def line_figure(values=(1, 2, 3)):
    figure, axes = pyplot.subplots()
    axes.plot(values)
    axes.set_xlabel("time (s)")
    return figure


def test_same_content_gives_the_same_bytes():
    assert style.render_png(line_figure()) == style.render_png(line_figure())
    assert style.render_png(line_figure()) != style.render_png(line_figure((1, 2, 4)))


def test_bytes_name_no_software_and_no_date():
    image = Image.open(io.BytesIO(style.render_png(line_figure())))
    assert set(image.info) == {"dpi"}


def test_background_is_opaque_and_light():
    pixels = numpy.asarray(Image.open(io.BytesIO(style.render_png(line_figure()))).convert("RGBA"))
    assert (pixels[..., 3] == 255).all()
    assert (pixels[0, 0, :3] > 240).all()


def test_style_replaces_what_a_session_has_set():
    expected = style.render_png(line_figure())
    matplotlib.rcParams["axes.facecolor"] = "black"
    matplotlib.rcParams["xtick.direction"] = "in"
    style.use_style()
    assert style.render_png(line_figure()) == expected


def test_style_leaves_the_backend_alone():
    backend = matplotlib.rcParams["backend"]
    style.use_style()
    assert matplotlib.rcParams["backend"] == backend


def luminance(colour):
    red, green, blue = (int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5))
    return colorsys.rgb_to_yiq(red, green, blue)[0]


def test_neighbouring_colours_differ_in_grey():
    for first, second in itertools.pairwise(style.PALETTE):
        assert abs(luminance(first) - luminance(second)) > 0.1


def test_figure_is_saved_and_shown_with_its_alt_text(tmp_path):
    shown = style.save_figure(line_figure(), "01-rising-line", ALT + ' <"quoted">')
    assert (tmp_path / "01-rising-line.png").read_bytes() == shown.png
    bundle = shown._repr_mimebundle_()
    assert 'alt="A line that rises' in bundle["text/html"]
    assert "&lt;&quot;quoted&quot;&gt;" in bundle["text/html"]
    assert bundle["text/plain"] == f'Figure: {ALT} <"quoted">'


@pytest.mark.parametrize(("inches", "pixels"), [(4.3, 430), (7.2, 720), (11, 720)])
def test_a_figure_is_shown_as_wide_as_it_was_drawn_and_not_wider_than_the_page(inches, pixels):
    shown = style.save_figure(pyplot.figure(figsize=(inches, 3)), "01-line", ALT)
    assert f' width="{pixels}" ' in shown._repr_mimebundle_()["text/html"]


def test_figure_is_closed_so_that_it_is_not_shown_twice():
    style.save_figure(line_figure(), "01-line", ALT)
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize("name", ["line", "1-line", "01_line", "01-Line", "../01-line", "01-line.png", ""])
def test_odd_names_are_refused(name, tmp_path):
    with pytest.raises(LabError, match="name"):
        style.save_figure(line_figure(), name, ALT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("alt", ["", "   ", "a figure"])
def test_missing_alt_text_is_refused(alt):
    with pytest.raises(LabError, match="alt text"):
        style.save_figure(line_figure(), "01-line", alt)


def test_figures_stay_out_of_the_tracked_folder_unless_told(monkeypatch):
    monkeypatch.delenv(paths.FIGURES_VARIABLE)
    monkeypatch.delenv(paths.OUTPUTS_VARIABLE, raising=False)
    assert paths.figures_folder() == paths.ROOT / "outputs" / "figures"
    monkeypatch.setenv(paths.OUTPUTS_VARIABLE, "outputs/test")
    assert paths.figures_folder() == paths.ROOT / "outputs/test/figures"
