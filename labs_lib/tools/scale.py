"""`make scale`: lab 03's GRPO run by TRL in several processes, to the end, and lab 07, which shows it."""

import argparse
from collections.abc import Sequence
from typing import Any

from labs_lib.reduced import budget_note
from labs_lib.runtime import start
from labs_lib.scale.engine import require_engine
from labs_lib.tools.command_line import command_line
from labs_lib.tools.locks import exclusive

LAB = "07"


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """What the run did, cost and gave."""
    seconds, versions = summary["seconds"], summary["identity"]["versions"]
    lines = [
        ", ".join(f"{name} {number}" for name, number in versions.items()),
        f"{summary['processes']} processes, {summary['updates']} updates, {summary['answers']:,} answers to "
        f"{summary['problems']} problems, {summary['tokens_generated']:,} tokens",
        f"groups with right and wrong answers: {100 * summary['mixed_groups']:.1f} %",
        f"seconds: {seconds['training']:.0f} of training, {seconds['launched']:.0f} with the start of the processes, "
        f"{seconds['evaluation']:.0f} of evaluation",
    ]
    for kind, table in summary["accuracy"].items():
        for population, entry in table.items():
            low, high = 100 * entry["low"], 100 * entry["high"]
            share = 100 * entry["correct"] / entry["n"]
            lines.append(
                f"{kind:<8} {population:<7} {entry['correct']}/{entry['n']} = {share:.1f} % [{low:.1f}, {high:.1f}]"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make scale", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("--budget", type=float, default=1.0, help="share of the protocol's counts, for a first look")
    parser.add_argument("--fresh", action="store_true", help="train again what is on disk already")
    parser.add_argument("--run-only", action="store_true", help="do not execute lab 07 after the run")
    parser.add_argument("--launch", metavar="FILE", help="what accelerate reads instead, a file of configs/launch")
    parser.add_argument("--settings", metavar="FILE", help="changes of TRL's settings, a file of configs/launch")
    options = parser.parse_args(arguments)
    require_engine()
    profile = start(options.profile, budget=options.budget)
    # After start: with pyarrow, which the engine brings, even papermill imports numpy, and pins must come before.
    from labs_lib.paths import outputs_root
    from labs_lib.scale.launch import launch_of
    from labs_lib.scale.run import ensure_scaled, summary_path

    launch = launch_of(options.launch, options.settings)
    with exclusive(outputs_root(profile.name)):
        summary = ensure_scaled(profile, options.fresh, launch)
    print(*summary_lines(summary), sep="\n")
    if note := budget_note(profile.protocol_share):
        print(note)
    path = summary_path(profile, launch).relative_to(outputs_root(profile.name).parent.parent)
    print(f"written to {path}\n", flush=True)
    if options.run_only or launch.name:
        return 0  # lab 07 shows the run that every machine can make
    from labs_lib.tools import run_all

    return run_all.main(["--profile", options.profile, "--budget", str(options.budget), LAB])


if __name__ == "__main__":
    command_line(main)
