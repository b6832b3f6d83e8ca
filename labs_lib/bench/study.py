"""The training study of lab 06: seven variants, 30 seeds, 100 iterations; run by `make studies`, shown by the lab.

The lab trains two of the variants itself and holds them to their recorded rows.
"""

from math import ceil
from typing import Any

import torch

from labs_lib.bench.losses import VARIANTS
from labs_lib.bench.outcomes import Outcome, run_study
from labs_lib.bench.training import Plan
from labs_lib.checkpoint import code_fingerprint
from labs_lib.config import Profile
from labs_lib.paths import DATA, ROOT
from labs_lib.recorded import StudyFile

SEEDS = 30
KEPT = ("success", "length", "length_right", "length_wrong", "entropy")
# Iterations whose behaviour is kept: all while something moves, so that a row's number is its iteration, and the end.
AT = (*range(31), 50, Plan().iterations)
DIGITS = 9
CODE = (
    "bench/behaviour.py",
    "bench/losses.py",
    "bench/outcomes.py",
    "bench/policies.py",
    "bench/products.py",
    "bench/training.py",
    "kernels/advantages.py",
    "kernels/checks.py",
    "kernels/reductions.py",
    "kernels/surrogate.py",
    "seeding.py",
    "tasks/padded_bits/environment.py",
)


def bench_seeds(profile: Profile) -> list[int]:
    """The seeds of lab 06: 30 of them (fewer when the budget is reduced, at least three), from the profile's on."""
    return [profile.seed + number for number in range(max(3, ceil(SEEDS * profile.protocol_share)))]


def run_bias_study(profile: Profile) -> dict[str, Any]:
    """Train everything (a minute of one core); what is kept holds one number per iteration of `AT` and seed."""
    seeds = bench_seeds(profile)
    outcome = run_study(VARIANTS, seeds, Plan())
    curves = {
        variant: {
            name: [[round(value, DIGITS) for value in row] for row in outcome.curve(name, variant)[list(AT)].tolist()]
            for name in KEPT
        }
        for variant in VARIANTS
    }
    return {
        "profile": profile.name,
        "identity": bias_study_identity(profile),
        "seeds": seeds,
        "iterations": list(AT),
        "curves": curves,
    }


def recorded_outcome(study: dict[str, Any]) -> Outcome:
    """A recorded study as an `Outcome`, with one row for each iteration of `AT`."""
    curves = study["curves"]
    iterations = {
        name: torch.tensor([curves[variant][name] for variant in curves], dtype=torch.float64).transpose(0, 1)
        for name in KEPT
    }
    return Outcome(tuple(curves), tuple(study["seeds"]), iterations, {})


def bias_study_identity(profile: Profile) -> dict[str, str]:
    """What must be unchanged for a recorded study to speak for the code of today; each key can be named."""
    package = ROOT / "labs_lib"
    return {"seed": str(profile.seed), "code": code_fingerprint([package / name for name in CODE], package)}


STUDY = StudyFile(DATA / "recorded" / "bias_bench.json", "bias study", bias_study_identity)
