"""`make rates`: choose a profile's learning rates on validation data, and record what every rate gave."""

import argparse
from collections.abc import Sequence
from typing import Any

from labs_lib.config import load_profile
from labs_lib.paths import DATA
from labs_lib.reduced import budget_note
from labs_lib.runtime import start
from labs_lib.storage import atomic_write_json, read_json
from labs_lib.tools.command_line import command_line

RECORDED = DATA / "recorded" / "rates.json"


def lines(rows: Sequence[dict[str, Any]]) -> str:
    """One line a run; the chosen rate of each stage is marked."""
    from labs_lib.tools.report import table  # it imports numpy

    shown = [
        [
            row["stage"],
            ", ".join(f"{rate:g}" for rate in row["rates"].values()),
            "chosen" if row["chosen"] else "",
            ", ".join(f"{name} {value:.4g}" for name, value in row["measured"].items()),
        ]
        for row in rows
    ]
    return table(["stage", "rate", "", "on validation data"], shown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search the named stages and what they need, print the table, record it."""
    parser = argparse.ArgumentParser(prog="make rates", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--budget", type=float, default=1.0, help="share of the protocol's counts in each run")
    parser.add_argument("stages", nargs="*", help="which ones; all when none is named")
    options = parser.parse_args(arguments)
    profile = start(load_profile(options.profile).name, budget=options.budget)
    from labs_lib.rate_search import STAGES, search  # after start: torch and numpy must come after the pins

    rows = search(profile, options.stages or STAGES)
    print(lines(rows))
    if note := budget_note(profile.protocol_share):
        print(note)
    recorded = read_json(RECORDED) if RECORDED.exists() else {}
    kept = [row for row in recorded.get(profile.file, []) if row["stage"] not in {new["stage"] for new in rows}]
    budget = {"budget": profile.protocol_share}
    atomic_write_json(RECORDED, recorded | {profile.file: kept + [row | budget for row in rows]})
    return 0


if __name__ == "__main__":
    command_line(main)
