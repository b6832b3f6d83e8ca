"""Long studies: too slow for a lab, run by `make studies`, kept in `data/recorded/`, shown and spot-checked by a lab.

One study so far, the control of GRPO: from the same warm start, for every seed of the profile, a run paid by the
verifier and a run paid with the same rewards shuffled; and the weak base beside them. A recorded study names the
config, code, data and bases that made it, and is refused when they have changed.
"""

from collections.abc import Sequence
from typing import Any

from labs_lib.branch_runs import COMMON_CODE, TrainedBranch
from labs_lib.branches import NUMERIC_CODE, OTHER_SECTIONS, Branch, ensure_branch, train_branch
from labs_lib.checkpoint import code_fingerprint
from labs_lib.config import Profile
from labs_lib.errors import LabError
from labs_lib.evaluation import ALL, GREEDY, SAMPLED, in_population, mixed_groups, populations
from labs_lib.evidence import EVALUATION_CODE, branch_counts, evaluate_trained
from labs_lib.models.locations import WEIGHTS, base_folder
from labs_lib.paths import DATA, ROOT
from labs_lib.recorded import REFRESH_STUDIES, StudyFile
from labs_lib.statistics import Interval, mean_over_seeds
from labs_lib.storage import sha256_file
from labs_lib.tasks.stock_arithmetic.corpus import DATA_FOLDER, MANIFEST

VERIFIED, SHUFFLED = "grpo", "grpo-shuffled"

# Qwen2.5-0.5B under the reference protocol, quoted from the course material that this project follows:
# policy -> (greedy correct of 200, sampled correct of 800, valid JSON of 800, mean greedy answer tokens).
QUOTED_REFERENCE = {
    "warmstart": (3, 15, 799, 7.85),
    "sft": (16, 30, 799, 7.865),
    "grpo": (3, 14, 799, 7.825),
    "grpo-g2": (4, 11, 800, 7.90),
    "grpo-g8": (3, 13, 799, 7.96),
}


def control_branch(profile: Profile, policy: str, seed: int) -> Branch:
    """One run of the study: `policy` is "grpo" or "grpo-shuffled", `seed` draws its prompts and its answers."""
    return Branch(
        f"{policy}-seed{seed}",
        "warmstart",
        "grpo",
        profile.grpo,
        shuffle_rewards=policy == SHUFFLED,
        seed=seed,
        three_ways=False,
    )


def study_row(
    profile: Profile, trained: TrainedBranch, policy: str, seed: int | None, counts: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What a study keeps of one policy: correct answers by kind and population, and what training met.

    Args:
        counts: what training met, `answers` and `mixed_groups`, where it was not our trainer that kept it.
    """
    evaluation = evaluate_trained(profile, trained)
    counts = counts or branch_counts(trained)
    return {
        "policy": policy,
        "seed": seed,
        "start": trained.branch.start,
        "fingerprint": trained.fingerprint,
        "answers": counts["answers"],
        "mixed_groups": counts["mixed_groups"],
        "mixed_test_problems": mixed_groups(evaluation[SAMPLED]),
        "correct": {kind: correct_by_population(evaluation[kind]) for kind in (GREEDY, SAMPLED)},
    }


def correct_by_population(rows: Sequence[dict]) -> dict[str, dict[str, int]]:
    """Population -> {"correct", "n"} over all answers, invalid ones included."""
    table = {}
    for population in populations(rows):
        chosen = in_population(rows, population)
        table[population] = {"correct": sum(row["reward"] for row in chosen), "n": len(chosen)}
    return table


def run_grpo_control(profile: Profile) -> dict[str, Any]:
    """Train and evaluate every policy of the study (minutes); what is on disk already is reused.

    Raises LabError when config, code, data or base are changed while it runs: its rows would not be of one kind.
    """
    identity = study_identity(profile)
    rows = [study_row(profile, ensure_branch(profile, "warmstart"), "warmstart", None)]
    for seed in profile.grpo_control.seeds:
        for policy in (VERIFIED, SHUFFLED):
            branch = control_branch(profile, policy, seed)
            rows.append(study_row(profile, train_branch(profile, branch), policy, seed))
    if profile.base.weak_location is not None:
        for name in ("warmstart-weak", "grpo-weak"):
            seed = None if name == "warmstart-weak" else profile.seed
            rows.append(study_row(profile, ensure_branch(profile, name), name, seed))
    if study_identity(profile) != identity:
        raise LabError(f"Code, data or base were changed while the study ran: run `{REFRESH_STUDIES}` again.")
    return {"profile": profile.name, "identity": identity, "rows": rows}


def study_identity(profile: Profile) -> dict[str, str]:
    """What must be unchanged for a recorded study to speak for the code of today; each key can be named."""
    package = ROOT / "labs_lib"
    modules = sorted({*COMMON_CODE, *NUMERIC_CODE, *EVALUATION_CODE})
    identity = {
        "config": profile.fingerprint(without=OTHER_SECTIONS),
        "data": sha256_file(DATA_FOLDER / MANIFEST),
        "code": code_fingerprint([package / name for name in modules], package),
        "base": sha256_file(base_folder(profile) / WEIGHTS),
    }
    if profile.base.weak_location is not None:
        identity["base-weak"] = sha256_file(base_folder(profile, weak=True) / WEIGHTS)
    return identity


STUDY = StudyFile(DATA / "recorded" / "grpo_control.json", "GRPO control study", study_identity)


def find_row(study: dict[str, Any], policy: str, seed: int | None) -> dict[str, Any]:
    """One row of a study; LabError if it has none for this policy and seed."""
    for row in study["rows"]:
        if row["policy"] == policy and row["seed"] == seed:
            return row
    raise LabError(f"The study has no row for {policy} with seed {seed}: run `{REFRESH_STUDIES}`.")


def rate(row: dict[str, Any], kind: str, population: str = ALL) -> float:
    """Share of right answers in a row, 0..1."""
    entry = row["correct"][kind][population]
    return entry["correct"] / entry["n"]


def seeds_of(study: dict[str, Any]) -> list[int]:
    """The seeds for which the study holds a verified and a shuffled run."""
    return [row["seed"] for row in study["rows"] if row["policy"] == VERIFIED]


def gains(study: dict[str, Any], policy: str, kind: str, population: str = ALL) -> list[float]:
    """Rate of each seed's run minus the warm start's."""
    start = rate(find_row(study, "warmstart", None), kind, population)
    return [rate(find_row(study, policy, seed), kind, population) - start for seed in seeds_of(study)]


def paired_difference(study: dict[str, Any], kind: str, population: str = ALL) -> tuple[list[float], Interval]:
    """Verified minus shuffled for each seed, and the mean over seeds with its 95 % interval."""
    pairs = zip(gains(study, VERIFIED, kind, population), gains(study, SHUFFLED, kind, population), strict=True)
    differences = [verified - shuffled for verified, shuffled in pairs]
    return differences, mean_over_seeds(differences)


def verdict(difference: Interval, what: str) -> str:
    """What an interval of verified minus shuffled allows to say, in one sentence."""
    points = f"{100 * difference.value:+.1f} points [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    if difference.low > 0:
        return f"{what}: {points}: GRPO gains more than its shuffled control."
    if difference.high < 0:
        return f"{what}: {points}: GRPO does worse than its shuffled control."
    return f"{what}: {points}: these seeds do not tell GRPO from its shuffled control."
