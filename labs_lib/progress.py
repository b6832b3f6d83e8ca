"""A text progress bar that shows time while it runs and none when it is done.

Frames overwrite each other with a carriage return, every frame has the same width, and the last one
carries no timing. JupyterLab therefore shows a live bar, while the saved output (where only the last
frame survives) is the same on every machine and can be compared. Widgets and stderr cannot do both.
Do not print inside the loop: which frame a text interrupts depends on the clock.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TextIO, TypeVar

from labs_lib.errors import LabError

WIDTH = 72  # characters: in a window half as wide as a screen JupyterLab would break a longer line
_SECONDS_BETWEEN_FRAMES = 0.2

Item = TypeVar("Item")


class ProgressBar:
    """A bar advanced by hand, for work that is not a loop over an iterable.

    `total` is the number of steps, or None where it is unknown. Use it as a context manager: leaving
    it writes the last frame, also after an error, so that the output shows how far the work came.
    """

    def __init__(self, desc: str, total: int | None, file: TextIO | None = None) -> None:
        if total is not None and total < 0:
            raise LabError(f"A progress bar needs a total of 0 or more steps, got {total}.")
        self.desc = desc
        self.total = total
        self.done = 0
        # Looked up now and not at import: ipykernel replaces sys.stdout for every execution.
        self._file = file if file is not None else sys.stdout
        self._started = time.monotonic()
        self._last_frame = float("-inf")

    def __enter__(self) -> "ProgressBar":
        self._draw(self._live_suffix())
        return self

    def __exit__(self, *exception: object) -> None:
        self._draw(self._count(), end="\n")

    def advance(self, steps: int = 1) -> None:
        """Count `steps` more as done, and redraw if the last frame is old enough."""
        self.done += steps
        if time.monotonic() - self._last_frame >= _SECONDS_BETWEEN_FRAMES:
            self._draw(self._live_suffix())

    def _count(self) -> str:
        return f"{self.done}/{self.total}" if self.total is not None else f"{self.done}"

    def _live_suffix(self) -> str:
        elapsed = time.monotonic() - self._started
        if not self.total or not self.done:
            return f"{self._count()} [{_clock(elapsed)}]"
        remaining = elapsed / self.done * max(self.total - self.done, 0)
        return f"{self._count()} [{_clock(elapsed)}<{_clock(remaining)}]"

    def _draw(self, suffix: str, end: str = "") -> None:
        self._last_frame = time.monotonic()
        self._file.write("\r" + frame(self.desc, self.done, self.total, suffix) + end)
        self._file.flush()


def frame(desc: str, done: int, total: int | None, suffix: str) -> str:
    """One frame, exactly `WIDTH` characters: a long description is cut, the bar takes what is left."""
    share = 1.0 if total == 0 else min(done / total, 1.0) if total else 0.0
    percent = f"{100 * share:3.0f}%" if total is not None else "   ?"
    desc = desc[: WIDTH - len(percent) - len(suffix) - 15]
    cells = WIDTH - len(desc) - len(percent) - len(suffix) - 6
    filled = int(share * cells)
    return f"{desc}: {percent} |{'█' * filled}{'░' * (cells - filled)}| {suffix}"


def progress(
    iterable: Iterable[Item], desc: str, total: int | None = None, file: TextIO | None = None
) -> Iterator[Item]:
    """Yield the items of `iterable` and show on stdout (or `file`) how many are done."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with ProgressBar(desc, total, file) as bar:
        for item in iterable:
            yield item
            bar.advance()


def rewrite_line(text: str, seconds: float) -> None:
    """A line that lasts until the next frame of a bar is drawn over it, which has the same width."""
    sys.stdout.write(f"\r{f'{text} [{_clock(seconds)}]'[:WIDTH]:<{WIDTH}}")
    sys.stdout.flush()


def announce(what: str, seconds: float) -> None:
    """Say before a long cell how long it takes, as measured on two cores."""
    if seconds < 90:
        print(f"{what} takes ≈{seconds:.0f} s on two cores.", flush=True)
    else:
        print(f"{what} takes ≈{seconds / 60:.0f} min on two cores.", flush=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"
