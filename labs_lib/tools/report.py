"""`report.json`: what ran, what it cost, what was learned; written by run_all, printed by `make report`."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from labs_lib.config import load_profile
from labs_lib.errors import LabError, StorageError
from labs_lib.paths import report_path
from labs_lib.reduced import budget_note, reduced
from labs_lib.storage import atomic_write_json, read_json
from labs_lib.tools.command_line import command_line
from labs_lib.tools.lab_runs import Outcome

POPULATIONS = ("ID50", "OOD100", "ALL")
OFFICE = "office-help"  # the task that an entry names; entries of StockArithmetic name none
# Title -> population of an OfficeHelp evaluation.
OFFICE_POPULATIONS = {"greedy": "test", "sampled": "sampled"}
RATES = ("success", "recognised", "certain", "courteous")
JUDGE = "judge"
VERDICTS = "verdicts"


def lab_entry(outcome: Outcome) -> dict[str, Any]:
    """One lab in the report."""
    status = f"skipped {outcome.detail}" if outcome.status == "skipped" else outcome.status
    entry = {
        "name": outcome.name,
        "status": status,
        "seconds": outcome.seconds,
        "peak_rss_mb": outcome.peak_rss_mb,
        "cpu_seconds": outcome.cpu_seconds,
    }
    return {**entry, "error": outcome.detail} if outcome.status == "FAILED" else entry


def write_report(
    path: Path, profile: str, outcomes: Iterable[Outcome], order: Sequence[str], evidence: Path
) -> dict[str, Any]:
    """Merge this run's labs into the report, and from the folder `evidence` every branch and the verdicts of lab 06.

    Labs that this run did not touch keep their entry; what others have added to the report stays. Without a file of
    verdicts the report has none.
    """
    old, verdicts = _existing(path), evidence / f"{VERDICTS}.json"
    labs = {entry["name"]: entry for entry in old.get("labs", [])} | {
        outcome.name: lab_entry(outcome) for outcome in outcomes
    }
    report = {
        **{key: value for key, value in old.items() if key != VERDICTS},
        "profile": profile,
        "labs": [labs[name] for name in order if name in labs],
        "branches": {file.stem: read_json(file) for file in sorted((evidence / "branches").glob("*.json"))},
        **({VERDICTS: read_json(verdicts)} if verdicts.exists() else {}),
    }
    atomic_write_json(path, report)
    return report


def _existing(path: Path) -> dict[str, Any]:
    try:
        report = read_json(path)
    except StorageError:
        return {}
    return report if isinstance(report, dict) else {}


# --- Tables ------------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest entry: numbers to the right, text to the left."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    # A lab's name begins with a digit and is text nevertheless.
    numbers = [column > 0 and all(row[column][:1] in "-0123456789" for row in rows) for column in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(row, widths, numbers, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def labs_table(labs: Sequence[dict[str, Any]]) -> str:
    """What ran, how long, at what cost."""
    rows = [
        [
            lab["name"],
            lab["status"],
            _number(lab.get("seconds"), 1),
            _number(lab.get("cpu_seconds"), 1),
            _number(lab.get("peak_rss_mb"), 0),
        ]
        for lab in labs
    ]
    return table(["lab", "status", "seconds", "CPU seconds", "peak MB"], rows)


def costs_table(branches: dict[str, Any]) -> str:
    """One line a branch: budget, whether the resumed state is the continuous one, seconds."""
    rows = []
    for name, branch in branches.items():
        seconds = branch.get("seconds", {})
        rows.append(
            [
                name,
                _number(branch.get("updates"), 0),
                _number(branch.get("answers"), 0),
                _equality(branch.get("state_sha256", {})),
                _share(branch.get("mixed_groups")),
                *(_number(seconds.get(part), 1) for part in ("generation", "score_check", "optimisation", "total")),
            ]
        )
    header = ["branch", "updates", "answers", "resumed state", "mixed groups"]
    return table([*header, "generation s", "score check s", "optimisation s", "total s"], rows)


def accuracy_table(branches: dict[str, Any], kind: str) -> str:
    """Correct answers by population with their intervals; `kind` is greedy or sampled."""
    rows = [
        [name, *(_accuracy(branch.get("accuracy", {}).get(kind, {}).get(key)) for key in POPULATIONS)]
        for name, branch in branches.items()
    ]
    return table([f"{kind} accuracy", *POPULATIONS], rows)


def office_costs_table(branches: dict[str, Any]) -> str:
    """One line an OfficeHelp branch: its budget, and what it cost."""
    rows = [
        [
            name,
            *(_number(branch.get(key), 0) for key in ("updates", "answers", "tokens_generated", "answers_scored")),
            _equality(branch.get("state_sha256", {})),
            _number(branch.get("seconds", {}).get("total"), 1),
        ]
        for name, branch in branches.items()
    ]
    header = ["OfficeHelp", "updates", "answers", "tokens", "answers scored", "resumed state", "total s"]
    return table(header, rows)


def judges_table(branches: dict[str, Any]) -> str:
    """One line a judge: accuracy on held-out pairs and on biased copies of them; what moves its score of a probe."""
    rows = []
    for name, branch in branches.items():
        accuracy, effect = branch.get("accuracy", {}), branch.get("courtesy", {})
        sets = [accuracy.get(key) for key in ("test", "test-courtesy", "test-confidence")]
        effects = [_average(effect.get(key)) for key in ("advice", "right", "wrong")]
        outranked = f"{effect['outranked']}/{effect['contexts']}" if "outranked" in effect else "-"
        rows.append([name, *map(_rate, sets), *effects, outranked])
    header = ["judge", "pairs", "courtesy-biased", "confidence-biased", "right advice", "courtesy if right"]
    return table([*header, "courtesy if wrong", "courteous wrong first"], rows)


def actors_table(branches: dict[str, Any], title: str) -> str:
    """One line an actor: the reserved rubric, what judges predict, and how far it is from the SFT actor."""
    population, rows = OFFICE_POPULATIONS[title], []
    for name, branch in branches.items():
        rates = branch.get("populations", {}).get(population, {})
        rewards = branch.get("predicted_rewards", {})
        paid = branch.get("reward")
        own = rewards.get(paid, {}).get(population) if paid != JUDGE else None
        rows.append(
            [
                name,
                *(_rate(rates.get(key)) for key in RATES),
                _mean(rewards.get(JUDGE, {}).get(population)),
                _mean(own),
                _mean(branch.get("log_ratio", {}).get(population)),
            ]
        )
    header = [f"{title} answers", "rubric success", "recognised", "unjustified certainty", "courteous"]
    return table([*header, "score by the judge", "score by its own judge", "log-ratio to SFT"], rows)


def verdicts_table(verdicts: dict[str, Any]) -> str:
    """One line a finding of lab 06: its verdict, and the effect that this follows from."""
    rows = [[name, entry["verdict"], _effect(entry), _number(entry["seeds"], 0)] for name, entry in verdicts.items()]
    return table(["finding", "verdict", "effect", "seeds"], rows)


def render(report: dict[str, Any]) -> str:
    """The whole report as text."""
    parts = [f"profile {report['profile']}", labs_table(report["labs"])]
    office = {name: entry for name, entry in report.get("branches", {}).items() if entry.get("task") == OFFICE}
    if branches := {name: entry for name, entry in report.get("branches", {}).items() if name not in office}:
        parts += [costs_table(branches), accuracy_table(branches, "greedy"), accuracy_table(branches, "sampled")]
    if office:
        parts.append(office_costs_table(office))
        judges = {name: entry for name, entry in office.items() if entry["kind"] == JUDGE}
        actors = {name: entry for name, entry in office.items() if name not in judges}
        parts += [judges_table(judges)] if judges else []
        parts += [actors_table(actors, title) for title in OFFICE_POPULATIONS] if actors else []
    if verdicts := report.get(VERDICTS):
        parts.append(verdicts_table(verdicts))
    return "\n\n".join(parts)


def _number(value: Any, digits: int) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "-"


def _share(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else "-"


def _equality(hashes: dict[str, str]) -> str:
    if not hashes.get("continuous") or not hashes.get("resumed"):
        return "-"
    return "equal" if hashes["continuous"] == hashes["resumed"] else "DIFFERS"


def _accuracy(entry: dict[str, Any] | None) -> str:
    if not entry:
        return "-"
    share = entry["correct"] / entry["n"]
    return f"{entry['correct']}/{entry['n']} {share:6.1%} [{entry['low']:.1%}, {entry['high']:.1%}]"


def _rate(entry: dict[str, Any] | None) -> str:
    if not entry or not entry["n"]:
        return "-"
    return f"{entry['count']}/{entry['n']} {entry['value']:6.1%} [{entry['low']:.1%}, {entry['high']:.1%}]"


def _mean(entry: dict[str, Any] | None) -> str:
    return f"{entry['value']:.2f} [{entry['low']:.2f}, {entry['high']:.2f}]" if entry else "-"


def _effect(entry: dict[str, Any]) -> str:
    if entry["seeds"] == 1:
        return f"{entry['effect']:.3g} exact"
    return f"{entry['effect']:.3g} [{entry['low']:.3g}, {entry['high']:.3g}]"


def _average(values: Sequence[float] | None) -> str:
    return f"{sum(values) / len(values):+.2f}" if values else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report of one profile."""
    parser = argparse.ArgumentParser(prog="make report", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--budget", type=float, default=1.0, help="the share of the counts that the run had")
    options = parser.parse_args(arguments)
    profile = reduced(load_profile(options.profile), options.budget)
    path = report_path(profile.name)
    if not path.exists():
        command = f"make run-all PROFILE={profile.file}"
        command += "" if profile.protocol_share == 1 else f" BUDGET={profile.protocol_share:g}"
        raise LabError(f"There is no report of profile {profile.name} yet: run `{command}`.")
    note = budget_note(profile.protocol_share)
    print(render(read_json(path)), *([note] if note else []), sep="\n")
    return 0


if __name__ == "__main__":
    command_line(main)
