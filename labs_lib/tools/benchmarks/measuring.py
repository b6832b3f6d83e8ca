"""Times and memory of two or more ways to do the same work, and the table that is printed of them."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

MILLISECOND, SECOND = (1000.0, "ms"), (1.0, "s")


@dataclass(frozen=True)
class Measured:
    """One way of doing the work: seconds for one unit of it in each counted turn, and its process' peak memory."""

    way: str
    seconds: tuple[float, ...]
    peak_mb: float | None = None

    @property
    def median(self) -> float:
        return median(self.seconds)


@dataclass(frozen=True)
class Comparison:
    """The usual way and this project's on the same work; `faster` and `memory_share` are targets, or None.

    Turn i of every way was measured next to turn i of the others, so ratios are also taken turn by turn.
    """

    work: str
    unit: str
    usual: Measured
    ours: Measured
    faster: float | None = None
    memory_share: float | None = None
    others: tuple[Measured, ...] = ()

    @property
    def ratio(self) -> float:
        """How many times faster this project's way is, from the medians."""
        return self.usual.median / self.ours.median

    @property
    def ratios(self) -> list[float]:
        """The same, turn by turn."""
        return [usual / ours for usual, ours in zip(self.usual.seconds, self.ours.seconds, strict=True)]

    @property
    def share(self) -> float | None:
        """This project's peak memory as a share of the usual way's, where both are known."""
        if self.usual.peak_mb is None or self.ours.peak_mb is None:
            return None
        return self.ours.peak_mb / self.usual.peak_mb

    def lines(self) -> list[str]:
        """What is printed of it."""
        rows = (self.usual, *self.others, self.ours)
        width = max(len(row.way) for row in rows)
        return [
            self.work,
            *(f"  {_row(row, self.unit, width)}" for row in rows),
            f"  {self._time_line()}",
            *self._memory_line(),
        ]

    def _time_line(self) -> str:
        spread = f"{min(self.ratios):.2f}..{max(self.ratios):.2f}"
        return f"{self.ratio:.2f} times faster (turn by turn {spread}){_verdict(self.faster, self.ratio, '>=')}"

    def _memory_line(self) -> list[str]:
        if self.share is None:
            return []
        return [f"  {self.share:.2f} of the peak memory{_verdict(self.memory_share, self.share, '<=')}"]


def _row(row: Measured, unit: str, width: int) -> str:
    factor, name = MILLISECOND if row.median < 1 else SECOND
    shown, least, most = (f"{factor * value:.4g}" for value in (row.median, min(row.seconds), max(row.seconds)))
    memory = "" if row.peak_mb is None else f", peak {row.peak_mb / 1024:.2f} GB"
    return f"{row.way:<{width}}  {shown:>7} {name} per {unit} ({least}..{most} in {len(row.seconds)}){memory}"


def _verdict(target: float | None, value: float, sense: str) -> str:
    if target is None:
        return ""
    reached = value >= target if sense == ">=" else value <= target
    return f"; target {sense} {target:g}: {'reached' if reached else 'NOT reached'}"


def seconds_by_turns(turns: int, *advances: Callable[[], object]) -> list[list[float]]:
    """Seconds that each of `advances` took in each turn, called one after the other, so that all see the same machine.

    One call of each comes first and is not counted: it also loads what torch loads late.
    """
    spent: list[list[float]] = [[] for _ in advances]
    for turn in range(turns + 1):
        for place, advance in enumerate(advances):
            began = perf_counter()
            advance()
            if turn > 0:
                spent[place].append(perf_counter() - began)
    return spent
