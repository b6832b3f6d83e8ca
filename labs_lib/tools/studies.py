"""Run the long studies of a profile again and record their summaries in `data/recorded/`."""

import argparse
from collections.abc import Sequence

from labs_lib.config import load_profile
from labs_lib.runtime import start
from labs_lib.tools.command_line import command_line

STUDIES = ("grpo", "office")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every study of one profile, or those named; states that are on disk already are resumed or reused."""
    parser = argparse.ArgumentParser(prog="make studies", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], help="which ones; all when none is named")
    options = parser.parse_args(arguments)
    profile = start(load_profile(options.profile).name)
    from labs_lib import office_study, studies  # after start: they import torch, which the pins must come before

    for name in options.studies or STUDIES:
        if name == "grpo":
            study = studies.run_grpo_control(profile)
            studies.STUDY.record(study)
            print(f"recorded {len(study['rows'])} policies in {studies.STUDY.path.name}")
            for kind in ("greedy", "sampled"):
                print(studies.verdict(studies.paired_difference(study, kind)[1], kind))
        else:
            study = office_study.run_office_study(profile)
            office_study.STUDY.record(study)
            print(f"recorded {len(study['runs'])} runs in {office_study.STUDY.path.name}")
    return 0


if __name__ == "__main__":
    command_line(main)
