"""A GRPO iteration: this project's trainer against TRL's GRPOTrainer, at two answer lengths; where its time goes."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec

from labs_lib.errors import LabError
from labs_lib.tools.benchmarks.cases import GrpoCase
from labs_lib.tools.benchmarks.measuring import Comparison
from labs_lib.tools.benchmarks.options import Options
from labs_lib.tools.benchmarks.phases import Phases, measure_phases
from labs_lib.tools.benchmarks.turns import measure

OURS, TRL = "labs_lib.tools.benchmarks.grpo_ours", "labs_lib.tools.benchmarks.grpo_trl"
BY_PHASES = "labs_lib.tools.benchmarks.grpo_phases"
ANSWER_TOKENS = (9, 32)
TURNS = 3
TARGET = "smollm2-135m", 9  # where a speed and a memory are promised
FASTER, MEMORY_SHARE = 4, 0.55


def compare(options: Options) -> Iterator[Comparison | Phases]:
    """One comparison, and one table of phases, for each profile and answer length.

    Raises:
        LabError: TRL is not installed, or the two did not do the same work.
    """
    if find_spec("trl") is None:
        raise LabError("TRL is not installed: run this by `make bench`, which installs it first.")
    for profile in options.profiles:
        for tokens in ANSWER_TOKENS:
            case = GrpoCase(profile, options.threads_of(profile), tokens)
            yield _comparison(case, options.turns(TURNS), (profile, tokens) == TARGET)
            work = f"GRPO iteration by phases: {case}, {case.updates} updates"
            yield measure_phases(work, BY_PHASES, case, options.turns(TURNS))


def _comparison(case: GrpoCase, turns: int, promised: bool) -> Comparison:
    trl = f"TRL {version('trl')}"
    usual, ours = measure([(trl, TRL, asdict(case)), ("this project", OURS, asdict(case))], turns)
    # Once, for its memory: it is TRL's default and slower.
    saving = (f"{trl}, gradient checkpointing", TRL, asdict(replace(case, checkpointing=True)))
    others = tuple(measure([saving], 1)) if promised else ()
    return Comparison(
        work=f"GRPO iteration: {case}, {case.updates} updates, FP32",
        unit="iteration",
        usual=usual,
        ours=ours,
        faster=FASTER if promised else None,
        memory_share=MEMORY_SHARE if promised else None,
        others=others,
    )
