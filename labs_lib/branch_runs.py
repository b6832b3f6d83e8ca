"""What every trained branch has, whatever its task: its folder, its runs in one or three modes, its final weights."""

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from transformers import PreTrainedTokenizerBase

from labs_lib.checkpoint import Checkpoint, code_fingerprint, remove_checkpoints, save_model_weights, weights_metadata
from labs_lib.config import Profile
from labs_lib.models.fingerprint import tensors_fingerprint
from labs_lib.paths import ROOT, outputs_root
from labs_lib.progress import rewrite_line
from labs_lib.storage import sha256_bytes, sha256_file
from labs_lib.training.run import CONTINUOUS, MODES, RESUMED, RunPlan, Trainer, run, run_three_ways
from labs_lib.training.states import tensors_of_role

# The modules whose code can change a number of any run; a resume across a change of them is refused.
COMMON_CODE = (
    "kernels/checks.py",
    "kernels/gae.py",
    "kernels/kl.py",
    "kernels/logprobs.py",
    "kernels/reductions.py",
    "kernels/surrogate.py",
    "kernels/triton_kl.py",
    "models/attention.py",
    "models/base.py",
    "models/chat.py",
    "models/half_precision.py",
    "models/lora.py",
    "models/products.py",
    "models/roles.py",
    "models/unembedding.py",
    "rollout.py",
    "scoring.py",
    "seeding.py",
    "training/epochs.py",
    "training/optimizer.py",
    "training/prompts.py",
    "training/run.py",
    "training/states.py",
    "training/supervised.py",
)
SECONDS_BETWEEN_LOOKS = 0.5


class NamedBranch(Protocol):
    """What a branch of any task says about itself."""

    name: str
    three_ways: bool


@dataclass(frozen=True)
class TrainedBranch:
    """A branch on disk: its final checkpoints by mode, and the file with its final weights."""

    branch: Any
    ends: dict[str, Checkpoint]
    weights: Path
    fingerprint: str

    @property
    def final(self) -> Checkpoint:
        return self.ends[CONTINUOUS]

    @property
    def state_sha256(self) -> dict[str, str]:
        """Hashes of the comparable states of the modes that ran to the end."""
        return {mode: end.state_sha256 for mode, end in self.ends.items() if mode in (CONTINUOUS, RESUMED)}


@dataclass(frozen=True)
class Preparation:
    """How one branch is run: its plan, the step to interrupt at, and a function that makes a fresh trainer."""

    plan: RunPlan
    interrupt_at: int
    make_trainer: Callable[[], Trainer]


def branch_folder(profile: Profile, name: str) -> Path:
    return outputs_root(profile.name) / "branches" / name


def weights_file(profile: Profile, name: str) -> Path:
    return outputs_root(profile.name) / "models" / name / "model.safetensors"


def train_modes(
    profile: Profile, branch: NamedBranch, role: str, preparation: Preparation, show_complete: bool
) -> TrainedBranch:
    """Train one branch in its modes, or resume it, or find it done; exports what `role` learned.

    The export is named by its fingerprint and by the state that it is of.
    """
    folder, plan = branch_folder(profile, branch.name), replace(preparation.plan, show_complete=show_complete)
    if branch.three_ways:
        ends = run_three_ways(preparation.make_trainer, folder, plan, preparation.interrupt_at)
    else:
        ends = {CONTINUOUS: run(preparation.make_trainer, folder / CONTINUOUS, plan)}
    final, weights = ends[CONTINUOUS], weights_file(profile, branch.name)
    fingerprint = _exported(weights, branch.name, final.state_sha256)
    if fingerprint is None:
        learned = tensors_of_role(final.tensors_from(f"{role}."), role)
        fingerprint = tensors_fingerprint(learned)
        metadata = {"branch": branch.name, "fingerprint": fingerprint, "state": final.state_sha256}
        save_model_weights(weights, learned, metadata)
    return TrainedBranch(branch, ends, weights, fingerprint)


def _exported(weights: Path, name: str, state: str) -> str | None:
    """The fingerprint of the weights that were exported from this very final state, if they were.

    What the file says of itself is believed here; whoever loads the weights holds them to the fingerprint.
    """
    if not weights.is_file():
        return None
    said = weights_metadata(weights)
    return said["fingerprint"] if (said.get("branch"), said.get("state")) == (name, state) else None


def discard(profile: Profile, name: str) -> None:
    """Throw away every state and the final weights of a branch: only the explicit `fresh` asks for this."""
    for mode in MODES:
        remove_checkpoints(branch_folder(profile, name) / mode)
    weights_file(profile, name).unlink(missing_ok=True)


@contextmanager
def one_at_a_time(profile: Profile, name: str, tell: bool = False) -> Iterator[None]:
    """Two processes that need the same branch at the same time: the second waits and finds it done.

    Args:
        tell: say so while it waits, in a line that the progress bar of the branch then overwrites.
    """
    folder = branch_folder(profile, name)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        began = time.monotonic()
        while not _locked(lock):
            if tell:
                rewrite_line(f"{name}: in training in another process, waiting", time.monotonic() - began)
            time.sleep(SECONDS_BETWEEN_LOOKS)
        yield


def _locked(lock: IO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def run_identity(
    config: Mapping[str, Any],
    branch: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    manifest: Path,
    code: tuple[str, ...],
) -> dict[str, str]:
    """What must be equal for a saved state to be continued; each key can be named when it differs."""
    package = ROOT / "labs_lib"
    spelling = tokenizer.backend_tokenizer.to_str() + tokenizer.chat_template
    return {
        **{f"config.{key}": str(value) for key, value in config.items()},
        **{f"branch.{key}": str(value) for key, value in branch.items()},
        "tokenizer": sha256_bytes(spelling.encode()),
        "data": sha256_file(manifest),
        "code": code_fingerprint([package / name for name in (*COMMON_CODE, *code)], package),
    }


def branch_seconds(end: Checkpoint) -> dict[str, float]:
    """Seconds by phase over the whole run that ended in `end`."""
    durations: dict[str, Any] = end.durations
    if "iterations" in durations:
        phases = ("generation", "score_check", "optimisation")
        seconds = {phase: sum(row[phase] for row in durations["iterations"]) for phase in phases}
    else:
        seconds = {"generation": 0.0, "score_check": 0.0, "optimisation": sum(durations["optimisation"])}
    return seconds | {"total": sum(seconds.values())}
