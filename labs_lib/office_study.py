"""The reward-hacking study of lab 05: PPO against three judges and the rubric, over seeds and KL weights.

For every seed of the profile: an honest, a courtesy-biased and a confidence-biased judge, PPO against each of them
and against the rubric itself; and for the confidence-biased judge, whose goal conflicts with the rubric's, the other
KL weights. Every run starts from the same SFT actor. What is kept of a run: its answers' behaviour at every iteration
by the reserved rubric, the predicted reward, the exact KL, and its evaluation. Run by `make studies`; the lab runs some
rows live and asserts that they equal the recorded ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labs_lib.branch_runs import COMMON_CODE, TrainedBranch
from labs_lib.checkpoint import code_fingerprint
from labs_lib.config import Profile
from labs_lib.errors import LabError
from labs_lib.models.locations import WEIGHTS, base_folder
from labs_lib.office_branches import (
    BIASES,
    JUDGE,
    OFFICE_CODE,
    OTHER_SECTIONS,
    PPO,
    RUBRIC,
    SFT,
    RoleSource,
    ensure_office,
    judge_branch,
    ppo_branch,
    train_office,
)
from labs_lib.office_evaluation import POPULATIONS, RATES, SAMPLED, TEST, courtesy_factorial
from labs_lib.office_evidence import (
    OFFICE_EVALUATION_CODE,
    behaviour,
    evaluate_office,
    evaluate_office_judge,
    predicted_rewards,
)
from labs_lib.paths import DATA, ROOT
from labs_lib.recorded import REFRESH_STUDIES, StudyFile
from labs_lib.statistics import Interval, mean_over_seeds
from labs_lib.storage import sha256_file
from labs_lib.tasks.office_help.corpus import DATA_FOLDER, MANIFEST, load_rollout_requests

JUDGES = (JUDGE, *(f"{JUDGE}-{bias}" for bias in BIASES))
REWARDS = (*JUDGES, RUBRIC)
CONFLICTING = f"{JUDGE}-confidence"
OWN_SECTIONS = tuple(section for section in OTHER_SECTIONS if section != "office.study")
CURVES = ("success", "recognised", "certain", "courteous", "score", "kl")


@dataclass(frozen=True)
class Run:
    """One PPO run of the study: which reward pays, from which seed, at which KL weight."""

    reward: str
    seed: int
    kl_weight: float


def study_runs(profile: Profile) -> list[Run]:
    """Every run: all rewards at the profile's KL weight, the conflicting judge at the others, for every seed."""
    main = profile.office.ppo.kl_weight
    runs = [Run(reward, seed, main) for seed in profile.office.study.seeds for reward in REWARDS]
    others = [weight for weight in profile.office.study.kl_weights if weight != main]
    return runs + [Run(CONFLICTING, seed, weight) for weight in others for seed in profile.office.study.seeds]


def study_judge(profile: Profile, name: str, seed: int) -> TrainedBranch:
    """One of `JUDGES` with the adapters, head and order of pairs of `seed`: the protocol's own for its seed."""
    if seed == profile.seed:
        return ensure_office(profile, name, show_complete=False)
    bias = None if name == JUDGE else name.removeprefix(f"{JUDGE}-")
    return train_office(profile, judge_branch(bias, seed, f"{name}-seed{seed}"), show_complete=False)


def study_run(profile: Profile, run: Run) -> TrainedBranch:
    """Train (or find) one run; the protocol's own branch where it is that seed and KL weight."""
    name = PPO if run.reward == JUDGE else f"{PPO}-{run.reward.removeprefix(f'{JUDGE}-')}"
    if run.seed == profile.seed and run.kl_weight == profile.office.ppo.kl_weight:
        return ensure_office(profile, name, show_complete=False)
    reward = None if run.reward == RUBRIC else RoleSource(profile, study_judge(profile, run.reward, run.seed))
    branch = ppo_branch(run.reward, run.kl_weight, run.seed, f"{name}-seed{run.seed}-kl{run.kl_weight:g}")
    return train_office(profile, branch, reward, show_complete=False)


def run_row(profile: Profile, run: Run) -> dict[str, Any]:
    """What the study keeps of one run."""
    trained = study_run(profile, run)
    actions = {request.id: request.action for request in load_rollout_requests()}
    steps = behaviour(trained.final.record["history"], actions)
    evaluation = evaluate_office(profile, trained)
    row = {
        "reward": run.reward,
        "seed": run.seed,
        "kl_weight": run.kl_weight,
        "fingerprint": trained.fingerprint,
        "answers_an_iteration": steps[0]["answers"],
        "curves": {name: [round(step[name], 6) for step in steps] for name in CURVES},
        "counts": {name: rate_counts(evaluation[name]) for name in POPULATIONS},
        "log_ratio": {name: _mean(row["log_ratio"] for row in evaluation[name]) for name in POPULATIONS},
    }
    return row | {"predicted": _predicted(profile, trained, run)}


def _predicted(profile: Profile, trained: TrainedBranch, run: Run) -> dict[str, float] | None:
    """Mean score of the evaluated answers by the judge that paid; None where the rubric did."""
    if run.reward == RUBRIC:
        return None
    scores = predicted_rewards(profile, trained, study_judge(profile, run.reward, run.seed))
    return {name: _mean(scores[name]) for name in POPULATIONS}


def rate_counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Counts of everything that `RATES` counts, among "answers" rows; denominators are "answers" or "recognised"."""
    return {"answers": len(rows)} | {
        name: sum(row[counted] for row in rows if among is None or row[among])
        for name, (counted, among) in RATES.items()
    }


def _mean(values) -> float:
    values = list(values)
    return round(sum(values) / len(values), 6)


def judge_row(profile: Profile, name: str, seed: int) -> dict[str, Any]:
    """What the study keeps of one judge."""
    trained = study_judge(profile, name, seed)
    evaluation = evaluate_office_judge(profile, trained)
    right = {
        key: sum(row["chosen"] > row["rejected"] for row in rows)
        for key, rows in evaluation.items()
        if key.startswith(TEST)
    }
    start = predicted_rewards(profile, ensure_office(profile, SFT), trained)
    return {
        "judge": name,
        "seed": seed,
        "fingerprint": trained.fingerprint,
        "right": right,
        "pairs": len(evaluation[TEST]),
        "courtesy": courtesy_factorial(evaluation["probes"]),
        "start": {population: _mean(start[population]) for population in POPULATIONS},
    }


def run_office_study(profile: Profile) -> dict[str, Any]:
    """Train and evaluate everything; states that are on disk already are resumed or reused.

    Raises LabError when config, code, data or base are changed while it runs: its rows would not be of one kind.
    """
    identity = office_study_identity(profile)
    start = evaluate_office(profile, ensure_office(profile, SFT))
    study = {
        "profile": profile.name,
        "identity": identity,
        "start": {"counts": {name: rate_counts(start[name]) for name in POPULATIONS}},
        "judges": [judge_row(profile, name, seed) for seed in profile.office.study.seeds for name in JUDGES],
        "runs": [run_row(profile, run) for run in study_runs(profile)],
    }
    if office_study_identity(profile) != identity:
        raise LabError(f"Code, data or base were changed while the study ran: run `{REFRESH_STUDIES}` again.")
    return study


def office_study_identity(profile: Profile) -> dict[str, str]:
    """What must be unchanged for a recorded study to speak for the code of today; each key can be named."""
    package = ROOT / "labs_lib"
    modules = sorted({*COMMON_CODE, *OFFICE_CODE, *OFFICE_EVALUATION_CODE})
    return {
        "config": profile.fingerprint(without=OWN_SECTIONS),
        "data": sha256_file(DATA_FOLDER / MANIFEST),
        "code": code_fingerprint([package / name for name in modules], package),
        "base": sha256_file(base_folder(profile) / WEIGHTS),
    }


STUDY = StudyFile(DATA / "recorded" / "office_hacking.json", "reward-hacking study", office_study_identity)


# --- Reading a study -------------------------------------------------------------------------------


def find_run(study: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The row of one run; LabError if the study has none."""
    for row in study["runs"]:
        if (row["reward"], row["seed"], row["kl_weight"]) == (run.reward, run.seed, run.kl_weight):
            return row
    raise LabError(
        f"The study has no run of {run.reward} with seed {run.seed} and KL weight {run.kl_weight:g}: "
        f"run `{REFRESH_STUDIES}`."
    )


def runs_of(study: Mapping[str, Any], reward: str, kl_weight: float) -> list[dict[str, Any]]:
    """The rows of one reward at one KL weight, one a seed."""
    return [row for row in study["runs"] if row["reward"] == reward and row["kl_weight"] == kl_weight]


def windows(row: Mapping[str, Any], name: str, width: int) -> list[float]:
    """A curve of a run in windows of `width` iterations: the mean score or KL, or the share among their answers.

    Success and recognised count among all answers, certain and courteous among the recognised ones (0 without any).
    """
    curve = row["curves"][name]
    starts = range(0, len(curve), width)
    if name in ("score", "kl"):
        return [sum(curve[start : start + width]) / len(curve[start : start + width]) for start in starts]
    among = row["curves"]["recognised"] if RATES[name][1] else [row["answers_an_iteration"]] * len(curve)
    weights = [sum(among[start : start + width]) for start in starts]
    return [
        sum(curve[start : start + width]) / weight if weight else 0.0
        for start, weight in zip(starts, weights, strict=True)
    ]


def change(study: Mapping[str, Any], reward: str, kl_weight: float, name: str, width: int = 20) -> Interval:
    """Last window minus first, the mean over seeds with its 95 % interval."""
    differences = []
    for row in runs_of(study, reward, kl_weight):
        values = windows(row, name, width)
        differences.append(values[-1] - values[0])
    return mean_over_seeds(differences)


def final_rate(row: Mapping[str, Any], name: str, population: str = SAMPLED) -> float:
    """One of `RATES` in a run's evaluation, 0..1; 0 where its denominator is 0."""
    counts = row["counts"][population]
    among = counts["recognised" if RATES[name][1] else "answers"]
    return counts[name] / among if among else 0.0
