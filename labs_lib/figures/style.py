"""One look for every figure of the series, and the one way a notebook shows and saves a figure.

Colours are those of Okabe and Ito (2008), which stay apart for colour-blind readers, ordered so that
neighbours also differ in lightness and so in grey. The background is opaque: a transparent one would
put dark labels on JupyterLab's dark theme. Sizes are chosen to be legible at half the display width.
"""

import base64
import html
import io
import re
from collections.abc import Iterable

import matplotlib
from matplotlib import pyplot
from matplotlib.figure import Figure

from labs_lib.errors import LabError
from labs_lib.paths import figures_folder
from labs_lib.storage import atomic_write_bytes

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, BLACK, YELLOW = "#56B4E9", "#CC79A7", "#000000", "#F0E442"
GREY = "#6B6B6B"
PALETTE = (BLUE, ORANGE, GREEN, SKY, VERMILLION, PURPLE, BLACK)
# Lines are told apart by their dashes too: seven colours cannot have seven clearly different greys.
DASHES = ("-", "--", "-.", ":", (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)), "-")
# For heat maps: from light to dark without passing through red-green contrasts, and readable in grey.
SEQUENTIAL_MAP = "cividis"
DIVERGING_MAP = "PuOr"

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++")

_DISPLAY_WIDTH = 720  # CSS pixels at most
_SHARPNESS = 1.5  # pixels of the file for one of these
_PNG_WIDTH = slice(16, 20)  # where a PNG says how wide it is
_NAME = re.compile(r"\d\d-[a-z0-9]+(-[a-z0-9]+)*")
_SHORTEST_ALT = 20

_STYLE = {
    "figure.figsize": (7.2, 4.0),
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "figure.facecolor": "#FFFFFF",
    "savefig.facecolor": "#FFFFFF",
    "savefig.transparent": False,
    "axes.facecolor": "#FFFFFF",
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same glyphs on every machine
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.labelsize": 13,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.fontsize": 12,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.2,
    "lines.markersize": 6,
    "errorbar.capsize": 4,
    "image.cmap": SEQUENTIAL_MAP,
    "svg.hashsalt": "post-training-labs",
}


def use_style() -> None:
    """Reset matplotlib to its defaults and apply the style of the series; safe to call again."""
    matplotlib.rcdefaults()  # leaves the backend alone
    matplotlib.rcParams.update(_STYLE)
    matplotlib.rcParams["axes.prop_cycle"] = matplotlib.cycler(color=PALETTE, linestyle=DASHES)


class ShownFigure:
    """What `save_figure` returns: as a cell's last line it displays the image with its alt text."""

    def __init__(self, png: bytes, alt: str) -> None:
        self.png = png
        self.alt = alt

    def _repr_mimebundle_(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> dict[str, str]:
        # HTML and not image/png: JupyterLab gives the latter no alt attribute, whatever its metadata.
        encoded = base64.b64encode(self.png).decode("ascii")
        # A narrow figure is shown narrow: as wide as the others it would have the largest letters of the page.
        width = min(_DISPLAY_WIDTH, round(int.from_bytes(self.png[_PNG_WIDTH]) / _SHARPNESS))
        image = f'<img src="data:image/png;base64,{encoded}" width="{width}"'
        return {"text/html": f'{image} alt="{html.escape(self.alt)}">', "text/plain": f"Figure: {self.alt}"}


def render_png(figure: Figure) -> bytes:
    """The figure as PNG bytes that depend on its content only: no date, no software version."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def save_figure(figure: Figure, name: str, alt: str) -> ShownFigure:
    """Write `<name>.png`, close the figure and return what displays it in a notebook.

    `name` begins with the lab's number (`02-advantages`); `alt` says what a reader would see. The file
    goes to `labs_lib.paths.figures_folder()`, which is the tracked `figures/` under `make refresh` only.
    Raises LabError for another kind of name or a missing alt text.
    """
    if not _NAME.fullmatch(name):
        raise LabError(f"A figure's name is the lab's number and lower-case words, as 02-advantages; got {name!r}.")
    if len(alt.strip()) < _SHORTEST_ALT:
        raise LabError(f"Figure {name} needs an alt text that says what it shows (at least one sentence).")
    png = render_png(figure)
    atomic_write_bytes(figures_folder() / f"{name}.png", png)
    pyplot.close(figure)  # or the inline backend would show it a second time, without alt text
    return ShownFigure(png, alt)
