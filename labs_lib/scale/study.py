"""Seeds of the engine's run, recorded: one run cannot tell an engine that learns less from an unlucky seed.

As many runs by TRL as lab 03's control has seeds, from the same warm start, evaluated with the same draws. A seed is
not the same run in both: each engine has its own generator and its own order of prompts.
"""

from typing import Any

from labs_lib.branches import PolicySource, policy_source
from labs_lib.checkpoint import code_fingerprint
from labs_lib.config import Profile
from labs_lib.errors import LabError
from labs_lib.paths import DATA, ROOT, outputs_root
from labs_lib.recorded import REFRESH_STUDIES, StudyFile
from labs_lib.scale.engine import engine_versions, require_engine
from labs_lib.scale.launch import PROCESSES_FILE, processes_for
from labs_lib.scale.run import (
    CODE,
    NAME,
    START,
    adopt_policy,
    read_rollouts,
    require_whole_groups,
    rollout_counts,
    train_by_engine,
)
from labs_lib.scale.worker import POLICY
from labs_lib.storage import atomic_write_json, read_json, sha256_file
from labs_lib.studies import study_identity, study_row


def engine_identity(profile: Profile) -> dict[str, Any]:
    """What must be unchanged for the recorded runs to speak for the code and the engine of today.

    Raises LabError when the engine is not installed.
    """
    require_engine()
    package = ROOT / "labs_lib"
    return study_identity(profile) | {
        "code of the engine": code_fingerprint([package / "scale" / f"{name}.py" for name in CODE], package),
        "launch file": sha256_file(PROCESSES_FILE),
        "version of the engine": engine_versions(),
    }


ENGINE_STUDY = StudyFile(DATA / "recorded" / "grpo_trl.json", "study of the engine's seeds", engine_identity)


def run_engine_study(profile: Profile) -> dict[str, Any]:
    """Train and evaluate a run for every seed of the control (minutes); finished ones on disk are reused.

    Needs the warm start of lab 03. Raises LabError when something that made a row was changed while it ran.
    """
    identity, source = engine_identity(profile), policy_source(profile, START)
    rows = [_row(profile, source, seed, identity) for seed in profile.grpo_control.seeds]
    if engine_identity(profile) != identity:
        raise LabError(f"Code, data, base or engine were changed while the study ran: run `{REFRESH_STUDIES}` again.")
    return {"profile": profile.name, "identity": identity, "rows": rows}


def _row(profile: Profile, source: PolicySource, seed: int, identity: dict[str, Any]) -> dict[str, Any]:
    folder = outputs_root(profile.name) / "scale-seeds" / str(seed)
    path = folder / "row.json"
    if path.exists() and (kept := read_json(path))["identity"] == identity:
        return kept["row"]
    train_by_engine(profile, source, folder, PROCESSES_FILE, {"seed": seed})
    trained = adopt_policy(profile, folder / POLICY, f"{NAME}-seed{seed}")
    rollouts = read_rollouts(folder, processes_for(profile))
    require_whole_groups(rollouts, profile.grpo.group_size)
    row = study_row(profile, trained, NAME, seed, rollout_counts(rollouts, profile.grpo.group_size))
    atomic_write_json(path, {"identity": identity, "row": row})
    return row
