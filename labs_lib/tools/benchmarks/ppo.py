"""Where the time of one of this project's PPO iterations goes."""

from collections.abc import Iterator

from labs_lib.tools.benchmarks.cases import RolloutCase
from labs_lib.tools.benchmarks.options import Options
from labs_lib.tools.benchmarks.phases import Phases, measure_phases

OURS = "labs_lib.tools.benchmarks.ppo_ours"
ANSWER_TOKENS = 16
TURNS = 5


def compare(options: Options) -> Iterator[Phases]:
    """One table for each profile."""
    for profile in options.profiles:
        case = RolloutCase(profile, options.threads_of(profile), ANSWER_TOKENS, group_size=1)
        work = f"PPO iteration by phases: {case}, LoRA, 2 updates"
        yield measure_phases(work, OURS, case, options.turns(TURNS))
