"""The GRPO run of lab 03 by TRL in several processes: made once, evaluated by our evaluation, kept as a summary.

TRL has another generator and another order of prompts: the run is the same protocol, not the same numbers.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labs_lib.branch_runs import TrainedBranch, weights_file
from labs_lib.branches import Branch, PolicySource, policy_source
from labs_lib.checkpoint import code_fingerprint, save_model_weights, untied_state_dict
from labs_lib.config import Profile
from labs_lib.errors import VerificationError
from labs_lib.evaluation import GREEDY, SAMPLED, accuracy, mixed_groups, quality
from labs_lib.evidence import BOOTSTRAP_STREAM, EVALUATION_CODE, evaluate_trained
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.paths import ROOT, outputs_root
from labs_lib.progress import ProgressBar
from labs_lib.scale.engine import engine_versions, require_engine
from labs_lib.scale.launch import Launch, processes_for, run_job
from labs_lib.scale.settings import require_known
from labs_lib.scale.start import export_policy, read_policy
from labs_lib.scale.worker import POLICY, SECONDS, answers_file
from labs_lib.seeding import derived_seed
from labs_lib.storage import atomic_write_json, read_json, sha256_file

START, NAME = "warmstart", "grpo-trl"
DEFAULT = Launch()
CODE = ("prompts", "run", "settings", "start", "task", "worker")  # of this package


def scale_folder(profile: Profile, launch: Launch = DEFAULT) -> Path:
    """Where the run lies: its start, what the processes wrote, the policy, the summary."""
    return outputs_root(profile.name) / "-".join(filter(None, ("scale", launch.name)))


def summary_path(profile: Profile, launch: Launch = DEFAULT) -> Path:
    return scale_folder(profile, launch) / "summary.json"


def updates_of(profile: Profile) -> int:
    """Updates of the whole run."""
    return profile.grpo.iterations * profile.grpo.updates_per_iteration


def ensure_scaled(profile: Profile, fresh: bool = False, launch: Launch = DEFAULT) -> dict[str, Any]:
    """The summary of the run by TRL; it is made when it is not on disk, or was made by something else.

    Draws the finished bar also for a run that is there, so that a notebook's output does not depend on it.

    Raises:
        ConfigError: settings of TRL that it does not know.
        LabError: the engine is not installed, or the training failed.
    """
    require_engine()
    require_known(launch.changes)
    source = policy_source(profile, START)
    identity, path = run_identity(profile, source.fingerprint, launch), summary_path(profile, launch)
    if not fresh and path.exists() and (kept := read_json(path))["identity"] == identity:
        with ProgressBar(f"TRL, {kept['processes']} processes", kept["updates"]) as bar:
            bar.advance(kept["updates"])
        return kept
    folder = scale_folder(profile, launch)
    seconds = train_by_engine(profile, source, folder, launch.file, launch.changes)
    summary = {"identity": identity, **summarise(profile, folder, processes_for(profile), seconds, launch.name)}
    atomic_write_json(path, summary)
    return summary


def train_by_engine(profile: Profile, source: PolicySource, folder: Path, file: Path, changes: dict[str, Any]) -> float:
    """The whole run from the policy of `source`; what `folder` held is deleted.

    Args:
        file: what accelerate reads.
        changes: of TRL's settings.

    Returns its seconds. Raises LabError when the training failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    export_policy(profile, source, folder / "start")
    processes, updates = processes_for(profile), updates_of(profile)
    return run_job(profile, folder, folder / "start", processes, updates, file, changes=changes)


def run_identity(profile: Profile, start: str, launch: Launch) -> dict[str, Any]:
    """What must be equal for a run on disk to be shown."""
    package = ROOT / "labs_lib"
    modules = [package / "scale" / f"{name}.py" for name in CODE] + [package / name for name in EVALUATION_CODE]
    return {
        "config": profile.fingerprint(without=("office",)),
        "start": start,
        "code": code_fingerprint(modules, package),
        "launch": sha256_file(launch.file),
        "changes": launch.changes,
        "processes": processes_for(profile),
        "versions": engine_versions(),
    }


def summarise(profile: Profile, folder: Path, processes: int, seconds: float, launched: str) -> dict[str, Any]:
    """Counts, costs and results of a finished run; its policy is evaluated as every policy of lab 03 is.

    Args:
        launched: the name of its launch, which its policy's name ends with.
    """
    trained = adopt_policy(profile, folder / POLICY, "-".join(filter(None, (NAME, launched))))
    evaluation = evaluate_trained(profile, trained)
    seed, draws = derived_seed(profile.seed, BOOTSTRAP_STREAM), profile.evaluation.bootstrap_draws
    rollouts = read_rollouts(folder, processes)
    require_whole_groups(rollouts, profile.grpo.group_size)
    return {
        "processes": processes,
        "updates": updates_of(profile),
        **rollout_counts(rollouts, profile.grpo.group_size),
        "policy_fingerprint": trained.fingerprint,
        "accuracy": {kind: accuracy(evaluation[kind], draws, seed) for kind in (GREEDY, SAMPLED)},
        "quality": {kind: quality(evaluation[kind]) for kind in (GREEDY, SAMPLED)},
        "mixed_test_problems": mixed_groups(evaluation[SAMPLED]),
        "seconds": {
            "launched": seconds,
            **json.loads((folder / SECONDS).read_text(encoding="utf-8")),
            "evaluation": sum(evaluation["seconds"].values()),
        },
    }


def adopt_policy(profile: Profile, folder: Path, name: str) -> TrainedBranch:
    """The policy that an engine saved, read strictly and kept as the branches' final weights are, under `name`."""
    policy = read_policy(profile, folder).model
    fingerprint, weights = policy_fingerprint(policy), weights_file(profile, name)
    save_model_weights(
        weights, untied_state_dict(policy), {"branch": name, "fingerprint": fingerprint, "state": ""}, fresh=True
    )
    return TrainedBranch(Branch(name, START, "grpo", profile.grpo, three_ways=False), {}, weights, fingerprint)


# --- What was sampled ------------------------------------------------------------------------------


def read_rollouts(folder: Path, processes: int) -> list[list[dict[str, Any]]]:
    """The answers of each rollout, of all processes, in the order of the iterations.

    Raises VerificationError for processes that made different numbers of rollouts.
    """
    parts = [
        [json.loads(line) for line in answers_file(folder, process).read_text(encoding="utf-8").splitlines()]
        for process in range(processes)
    ]
    if len({len(part) for part in parts}) != 1:
        raise VerificationError(f"The processes made {', '.join(str(len(part)) for part in parts)} rollouts each.")
    return [[row for part in together for row in part] for together in zip(*parts, strict=True)]


def require_whole_groups(rollouts: Iterable[list[dict[str, Any]]], group_size: int) -> None:
    """Raise VerificationError unless every group, whose rewards were compared, has answers to one problem only."""
    for number, rows in enumerate(rollouts, start=1):
        for group in groups_of(rows, group_size):
            if len({row["problem"] for row in group}) != 1:
                raise VerificationError(
                    f"Rollout {number} has a group of several problems: their rewards must not be compared."
                )


def groups_of(rows: list[dict[str, Any]], group_size: int) -> list[list[dict[str, Any]]]:
    """Consecutive answers as groups; the last one is short when they do not come out even."""
    return [rows[start : start + group_size] for start in range(0, len(rows), group_size)]


def rollout_counts(rollouts: Iterable[list[dict[str, Any]]], group_size: int) -> dict[str, Any]:
    """Rollouts, answers, tokens, the share of mixed groups, and the share of right answers in each rollout."""
    rollouts = list(rollouts)
    groups = [group for rows in rollouts for group in groups_of(rows, group_size)]
    return {
        "rollouts": len(rollouts),
        "answers": sum(map(len, rollouts)),
        "tokens_generated": sum(len(row["ids"]) for rows in rollouts for row in rows),
        "problems": len({row["problem"] for rows in rollouts for row in rows}),
        "mixed_groups": sum(len({row["reward"] for row in group}) > 1 for group in groups) / len(groups),
        "rewards": [sum(row["reward"] for row in rows) / len(rows) for rows in rollouts],
    }
