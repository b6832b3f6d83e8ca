"""Run the long studies of a profile again and record their summaries in `data/recorded/`."""

import argparse
from collections.abc import Sequence

from labs_lib.config import load_profile
from labs_lib.runtime import start
from labs_lib.tools.command_line import command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every study of one profile; states that are on disk already are resumed or reused."""
    parser = argparse.ArgumentParser(prog="make studies", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    profile = start(load_profile(parser.parse_args(arguments).profile).name)
    from labs_lib import studies  # after start: it imports torch, which the processor pins must come before

    study = studies.run_grpo_control(profile)
    studies.record_study(study)
    print(f"recorded {len(study['rows'])} policies in {studies.RECORDED.relative_to(studies.ROOT).as_posix()}")
    for kind in ("greedy", "sampled"):
        print(studies.verdict(studies.paired_difference(study, kind)[1], kind))
    return 0


if __name__ == "__main__":
    command_line(main)
