"""`make record`: keep what a run of a real model measured, for the labs to show beside their own results."""

import argparse
from collections.abc import Sequence

from labs_lib.config import load_profile
from labs_lib.cores import usable_cores
from labs_lib.real_run import RECORD, describe_run, record_run
from labs_lib.reduced import reduced
from labs_lib.tools.command_line import command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the last run of one profile and budget; the cores are those of this machine."""
    parser = argparse.ArgumentParser(prog="make record", description=__doc__)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--budget", type=float, default=1.0, help="the share of the counts that the run had")
    options = parser.parse_args(arguments)
    run = record_run(reduced(load_profile(options.profile), options.budget), usable_cores())
    print(f"recorded in data/recorded/{RECORD.name}: {describe_run(run)}")
    return 0


if __name__ == "__main__":
    command_line(main)
