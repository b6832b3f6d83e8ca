"""Run the long studies of a profile again and record their summaries in `data/recorded/`."""

import argparse
from collections.abc import Sequence

from labs_lib.config import load_profile
from labs_lib.runtime import start
from labs_lib.tools.command_line import command_line

STUDIES = ("grpo", "office", "bias")
ENGINE = "engine"  # only where it is asked for: it needs TRL, which `make scale` installs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every study of one profile, or those named; states that are on disk already are resumed or reused."""
    parser = argparse.ArgumentParser(prog="make studies", description=__doc__)
    parser.add_argument("--profile", default="tiny")
    which = f"which ones; when none is named, all but {ENGINE}"
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, ENGINE, []], help=which)
    options = parser.parse_args(arguments)
    profile = start(load_profile(options.profile).name)
    # After start: they import torch, which the pins must come before.
    from labs_lib import office_study, studies
    from labs_lib.bench import study as bias_study
    from labs_lib.scale import study as engine_study

    runs = {
        "grpo": (studies.STUDY, studies.run_grpo_control, "rows"),
        "office": (office_study.STUDY, office_study.run_office_study, "runs"),
        "bias": (bias_study.STUDY, bias_study.run_bias_study, "curves"),
        ENGINE: (engine_study.ENGINE_STUDY, engine_study.run_engine_study, "rows"),
    }
    for name in options.studies or STUDIES:
        file, run, counted = runs[name]
        study = run(profile)
        file.record(study)
        print(f"recorded {len(study[counted])} {counted} in {file.path.name}")
    return 0


if __name__ == "__main__":
    command_line(main)
