"""What a lab's cells use to show a library function and to print numbers that may differ by processor."""

import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython.display import Markdown, display

from labs_lib.errors import LabError, VerificationError
from labs_lib.paths import ROOT

SIGN = "≈"
_LONGEST_PLAIN = 1e9


def show_source(function: Callable[..., Any]) -> None:
    """Display the source of a library function or class, highlighted, with the file it comes from.

    The output is a Markdown code block: JupyterLab colours it for its light or its dark theme, and it is
    equal on every machine as long as the function is.
    """
    try:
        source = textwrap.dedent(inspect.getsource(function)).rstrip()
        path = Path(inspect.getsourcefile(function) or "").resolve()
    except (OSError, TypeError):
        name = getattr(function, "__name__", repr(function))
        raise LabError(f"{name} has no Python source to show: it is built in or was typed at a prompt.") from None
    # A decorator of torch hides the file behind its own, which lies in .venv and, by accident, below ROOT.
    ours = path.is_relative_to(ROOT) and "site-packages" not in path.parts
    place = path.relative_to(ROOT).as_posix() if ours else function.__module__
    longest = max((len(run) for run in re.findall(r"`+", source)), default=0)
    fence = "`" * max(3, longest + 1)
    display(Markdown(f"`{place}`\n\n{fence}python\n{source}\n{fence}"))


def approx(value: float, digits: int = 3) -> str:
    """A number that may differ by processor, thread count or clock: `≈0.341`.

    `make test` compares everything around it and not the number. `digits` are significant ones.
    """
    text = f"{float(value):.{digits}g}"
    if "e+" in text and abs(value) < _LONGEST_PLAIN:
        text = f"{value:,.0f}"
    return SIGN + text


def assert_recorded(name: str, value: float, recorded: float, tolerance: float) -> None:
    """Print a number behind `≈` and hold it to the recorded run, within an absolute tolerance.

    Raises VerificationError outside of the tolerance, and for NaN.
    """
    if not abs(value - recorded) <= tolerance:
        raise VerificationError(
            f"{name} is {value:.6g}; the recorded run gave {recorded:.6g}, and more than {tolerance:g} apart is "
            "not the processor's doing."
        )
    print(f"{name} {approx(value)}, within {tolerance:g} of the recorded run")
