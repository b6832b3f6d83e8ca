"""Sampling answers: `labs_lib.rollout.generate` against transformers' `generate`."""

from collections.abc import Iterator
from dataclasses import asdict

from labs_lib.tools.benchmarks.cases import RolloutCase
from labs_lib.tools.benchmarks.measuring import Comparison
from labs_lib.tools.benchmarks.options import Options
from labs_lib.tools.benchmarks.turns import measure

OURS, USUAL = "labs_lib.tools.benchmarks.sampling_ours", "labs_lib.tools.benchmarks.sampling_hf"
ANSWER_TOKENS = (9, 32)
TURNS = 5


def compare(options: Options) -> Iterator[Comparison]:
    """One comparison for each profile and answer length."""
    for profile in options.profiles:
        for tokens in ANSWER_TOKENS:
            case = RolloutCase(profile, options.threads_of(profile), tokens)
            contenders = [("transformers' generate", USUAL, asdict(case)), ("this project", OURS, asdict(case))]
            usual, ours = measure(contenders, options.turns(TURNS))
            yield Comparison(f"sampling: {case}, FP32", "batch", usual, ours)
