"""The figure of lab 00."""

from collections.abc import Sequence

from matplotlib import pyplot
from matplotlib.figure import Figure

from labs_lib.figures.style import BLUE


def answer_probabilities(tokens: Sequence[str], probabilities: Sequence[float]) -> Figure:
    """One bar a token, in the order of the answer; `probabilities` in 0..1, as long as `tokens`."""
    figure, axes = pyplot.subplots()
    places = range(len(tokens))
    axes.bar(places, probabilities, color=BLUE)
    # Token texts repeat, so they are labels of numbered places and not categories.
    axes.set_xticks(places, [_label(token) for token in tokens], rotation=45, ha="right", rotation_mode="anchor")
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("token of the answer")
    axes.set_ylabel("probability")
    axes.grid(axis="x", visible=False)
    return figure


def _label(token: str) -> str:
    # Dollar signs would start matplotlib's mathematics; quotes show where a space belongs to the token.
    return repr(token).replace("$", r"\$")
