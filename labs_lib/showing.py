"""What a lab shows as text, equal on every machine: tables, refusals, and hashes of trained states."""

import re
from collections.abc import Sequence

from IPython.display import Markdown

from labs_lib.notebook import SIGN, approx
from labs_lib.paths import ROOT, outputs_base
from labs_lib.runtime import session_note

_NUMBER = re.compile(r"[≈+-]*\d|$")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=[^\W\d]|%)")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def show_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Markdown:
    """A Markdown table as a cell's last expression.

    Text padded to columns would shift with the width of a number that may differ; here only the number does. Columns
    of numbers are right-aligned, and a number stays in one line with its unit. A run with a reduced budget is marked
    below the table.
    """
    cells = [[_BEFORE_UNIT.sub(_NO_BREAK, str(cell)) for cell in row] for row in rows]
    rules = [_rule([row[place] for row in cells]) for place in range(1, len(header))]
    lines = [header, ["---", *rules], *cells]
    table = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    note = session_note()
    return Markdown(table + (f"\n\n*{note}*" if note else ""))


def _rule(column: Sequence[str]) -> str:
    """What aligns a column: words to the left, numbers to the right."""
    return "---:" if all(map(_NUMBER.match, column)) else "---"


def refusal(error: BaseException) -> str:
    """Type and message of an error, with the folders of this machine left out."""
    message = str(error)
    for folder, shown in ((outputs_base(), "outputs"), (ROOT, ".")):
        message = message.replace(f"{folder}/", f"{shown}/")
    return f"{type(error).__name__}: {message}"


def percent(share: float, digits: int = 1) -> str:
    """A share that may differ by processor, in percent: `≈30.5 %`."""
    return f"{SIGN}{100 * share:.{digits}f} %"


def rate_with_interval(entry: dict) -> str:
    """`{"correct", "n", "low", "high"}` as `≈61/200 = ≈30.5 % [≈24.5, ≈37.2]`."""
    low, high = (f"{SIGN}{100 * entry[key]:.1f}" for key in ("low", "high"))
    return f"{SIGN}{entry['correct']}/{entry['n']} = {percent(entry['correct'] / entry['n'])} [{low}, {high}]"


def hash_number(digest: str) -> str:
    """The first 32 bits of a SHA-256 as a number behind `≈`: a trained state differs by processor.

    Equality is asserted on whole hashes; this is only there to be looked at.
    """
    return f"{SIGN}{int(digest[:8], 16):,}"


def seconds(value: float) -> str:
    """A duration, `≈12.4 s`."""
    return f"{approx(value)} s"
