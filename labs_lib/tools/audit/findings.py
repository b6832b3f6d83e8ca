"""What an audit found: comparisons, the differences among them, and one line for each group of checks."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

# What reading evidence of another form than the documented one can raise.
DAMAGE = (
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    OSError,
    EOFError,
    struct.error,
    zlib.error,
)


class MissingEvidence(Exception):
    """The evidence cannot be audited because something is not there; the message says what and what to do."""


@dataclass(frozen=True)
class Difference:
    """One place where the evidence does not say what it should."""

    file: str
    place: str
    recorded: Any
    recomputed: Any

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: recorded {_short(self.recorded)}, recomputed {_short(self.recomputed)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:90]}…{text[-20:]}"


@dataclass
class Group:
    """One group of checks on one subject (a branch, the corpus, the report)."""

    subject: str
    title: str
    counts: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    def count(self, what: str, number: int = 1) -> None:
        """Say that `number` more things of a kind were looked at."""
        self.counts[what] = self.counts.get(what, 0) + number

    def differs(self, file: str, place: str, recorded: Any, recomputed: Any) -> None:
        self.differences.append(Difference(file, place, recorded, recomputed))

    def equal(self, file: str, place: str, recorded: Any, recomputed: Any) -> bool:
        """Hold two values to be the same, of the same kind: True is not 1."""
        same = recorded == recomputed and isinstance(recorded, bool) == isinstance(recomputed, bool)
        if not same:
            self.differs(file, place, recorded, recomputed)
        return same

    def close(self, file: str, place: str, recorded: Any, recomputed: float, absolute: float, relative: float = 0.0):
        """Hold a number to another within `absolute` + `relative` * |recomputed|; NaN is never close."""
        if not _is_close(recorded, recomputed, absolute + relative * abs(recomputed)):
            self.differs(file, place, recorded, recomputed)

    def require(self, file: str, place: str, holds: bool, recorded: Any, rule: str) -> None:
        """Hold a value to a rule; the rule is shown where a recomputed value would be."""
        if not holds:
            self.differs(file, place, recorded, rule)

    def line(self) -> str:
        counts = ", ".join(f"{number:,} {what}" for what, number in self.counts.items()) or "nothing"
        verdict = "ok" if not self.differences else f"{len(self.differences):,} DIFFER"
        return f"{self.subject}: {self.title}: {counts} {verdict}"


def _is_close(recorded: Any, recomputed: float, tolerance: float) -> bool:
    is_number = isinstance(recorded, int | float) and not isinstance(recorded, bool)
    return is_number and isfinite(recorded) and abs(recorded - recomputed) <= tolerance


class Findings:
    """All groups of an audit, in the order in which they were checked, and what could not be recomputed."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.notes: dict[str, None] = {}

    @contextmanager
    def group(self, subject: str, title: str) -> Iterator[Group]:
        """Collect the checks of one group; evidence too damaged to be read is a difference, not a traceback."""
        group = Group(subject, title)
        self.groups.append(group)
        try:
            yield group
        except DAMAGE as error:
            group.differs(subject, title, f"{type(error).__name__}: {error}", "evidence of the documented form")

    def note(self, text: str) -> None:
        """Say once what the audit did not recompute."""
        self.notes[text] = None

    @property
    def differences(self) -> list[Difference]:
        return [difference for group in self.groups for difference in group.differences]
