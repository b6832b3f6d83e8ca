"""One function of some positions, shown with a control for each, or once, where they start.

The same function draws both: what a reader of the static page sees is what the controls show before they are moved.
"""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from IPython.display import display
from matplotlib import pyplot
from matplotlib.figure import Figure

from labs_lib.errors import LabError
from labs_lib.figures.style import ShownFigure, render_png, save_figure
from labs_lib.interactive.front_end import front_end_is_there


@dataclass(frozen=True)
class Slider:
    """A number between two ends, a step at a time; whole numbers where start, ends and step are.

    Raises LabError for a start outside of the ends and a step that is not positive.
    """

    label: str
    start: float
    low: float
    high: float
    step: float

    def __post_init__(self) -> None:
        if not self.low <= self.start <= self.high or not self.step > 0:
            raise LabError(
                f"The slider {self.label!r} goes from {self.low} to {self.high} in steps of {self.step} and starts at "
                f"{self.start}: let it start between its ends, with a step above 0."
            )

    @property
    def whole(self) -> bool:
        """Whether it moves over whole numbers."""
        return all(isinstance(number, int) for number in (self.start, self.low, self.high, self.step))


@dataclass(frozen=True)
class Choice:
    """One of several names; LabError unless the start is one of them."""

    label: str
    start: str
    options: Sequence[str]

    def __post_init__(self) -> None:
        if self.start not in self.options:
            raise LabError(f"The choice {self.label!r} starts at {self.start!r}, which is none of {self.options}.")


# As printed text looks: a front end sets text within HTML larger and indents it, and it would not fit half a window.
_PRINTED = "margin: 0; font-size: 13px"


class View(NamedTuple):
    """What one position shows: the figure, and its key numbers as text."""

    figure: Figure
    numbers: str


class ShownView(ShownFigure):
    """Numbers and image as one output: as two they would arrive one after the other, and flicker."""

    def __init__(self, png: bytes, alt: str, numbers: str) -> None:
        super().__init__(png, alt)
        self.numbers = numbers

    def _repr_mimebundle_(self, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> dict[str, str]:
        figure = super()._repr_mimebundle_()
        return {
            "text/html": f'<pre style="{_PRINTED}">{html.escape(self.numbers)}</pre>{figure["text/html"]}',
            "text/plain": f"{self.numbers}\n{figure['text/plain']}",
        }


@dataclass(frozen=True)
class Play:
    """A view for every position of its controls.

    Attributes:
        view: takes the value of each control by its name.
        controls: by the name of the view's argument.
        figure: the static figure's name, as for `save_figure`.
        alt: says what the figure shows, whatever the position; the numbers are in the text.
    """

    view: Callable[..., View]
    controls: Mapping[str, Slider | Choice]
    figure: str
    alt: str

    def start(self) -> dict[str, Any]:
        """Where the controls start."""
        return {name: control.start for name, control in self.controls.items()}

    def numbers_at(self, **moved: Any) -> str:
        """The key numbers with some controls moved away from their start; LabError for a control that is not there."""
        if unknown := moved.keys() - self.controls:
            raise LabError(f"There is no control {min(unknown)!r}: move {', '.join(self.controls)}.")
        return _drawn(self, self.start() | moved).numbers


def play(what: Play) -> Any:
    """As a cell's last line: the controls and what they show; without a front end the static figure, and its numbers.

    A view that fails ends the cell; once the controls are there, the error is shown in the figure's place.
    """
    if front_end_is_there():
        return with_controls(what)
    figure, numbers = what.view(**what.start())
    print(numbers)
    return save_figure(figure, what.figure, what.alt)


def with_controls(what: Play) -> Any:
    """The widget: controls above the output of the view, which is drawn again whenever one of them moves."""
    import ipywidgets  # only here: a run without a front end does not pay for it

    controls = {name: _widget(control) for name, control in what.controls.items()}

    def show(**position: Any) -> None:
        display(_drawn(what, position))

    # The new output replaces the old one only when it is there, so that nothing flickers; errors go there too.
    output = ipywidgets.interactive_output(show, controls)
    row = ipywidgets.Box(list(controls.values()), layout={"flex_flow": "row wrap"})
    return ipywidgets.VBox([row, output])


def _drawn(what: Play, position: Mapping[str, Any]) -> ShownView:
    """The view as an image with its alt text and its numbers; no figure stays open, also if the view fails halfway."""
    open_before = set(pyplot.get_fignums())
    try:
        figure, numbers = what.view(**position)
        return ShownView(render_png(figure), what.alt, numbers)
    finally:
        for number in set(pyplot.get_fignums()) - open_before:
            pyplot.close(number)


def _widget(control: Slider | Choice) -> Any:
    """The control of ipywidgets: reachable with Tab, moved with the arrow keys, and with its label in sight."""
    import ipywidgets

    look = {"description": control.label, "style": {"description_width": "initial"}, "layout": {"width": "300px"}}
    if isinstance(control, Choice):
        return ipywidgets.Dropdown(options=list(control.options), value=control.start, **look)
    kind = ipywidgets.IntSlider if control.whole else ipywidgets.FloatSlider
    return kind(value=control.start, min=control.low, max=control.high, step=control.step, **look)
