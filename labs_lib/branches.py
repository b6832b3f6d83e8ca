"""The course's trained branches: what each one starts from, how it is trained, and where its state lies.

`ensure_branch` trains a branch in three modes (continuous, interrupted, resumed), or finds it trained already, so
any lab can be opened first. While a policy is trained, held-out files cannot be opened.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from labs_lib.checkpoint import (
    Checkpoint,
    code_fingerprint,
    load_model_weights,
    load_untied,
    remove_checkpoints,
    save_model_weights,
    untied_state_dict,
)
from labs_lib.config import Grpo, Profile
from labs_lib.errors import LabError, VerificationError
from labs_lib.models.base import LoadedBase, load_base
from labs_lib.models.chat import encode_prompt, encode_target, pad_id
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.paths import ROOT, outputs_base, outputs_root
from labs_lib.storage import sha256_bytes, sha256_file
from labs_lib.tasks.learning_scope import stock_arithmetic_scope
from labs_lib.tasks.stock_arithmetic.corpus import DATA_FOLDER, MANIFEST, Example, load_split, split_training
from labs_lib.tasks.stock_arithmetic.statements import INSTRUCTION
from labs_lib.training.grpo import GrpoSettings, GrpoTrainer, RolloutPrompt
from labs_lib.training.run import CONTINUOUS, MODES, RESUMED, RunPlan, run, run_three_ways
from labs_lib.training.supervised import SupervisedExample, SupervisedTrainer, policy_tensors

# The modules whose code can change a number of a run; a resume across a change of them is refused.
NUMERIC_CODE = (
    "kernels",
    "models/chat.py",
    "models/base.py",
    "rollout.py",
    "scoring.py",
    "seeding.py",
    "training",
    "tasks/stock_arithmetic/problem.py",
    "tasks/stock_arithmetic/statements.py",
    "tasks/stock_arithmetic/verifier.py",
)
BASE, WEAK_BASE = "base", "base-weak"


@dataclass(frozen=True)
class Branch:
    """How one policy is made. `start` is another branch, "base" or "base-weak"."""

    name: str
    start: str
    kind: str  # "warmstart", "sft" or "grpo"
    grpo: Grpo | None = None
    shuffle_rewards: bool = False
    seed: int | None = None
    three_ways: bool = True

    @property
    def weak(self) -> bool:
        return self.name.endswith("-weak") or self.start.endswith("-weak")


@dataclass(frozen=True)
class TrainedBranch:
    """A branch on disk: its final checkpoints by mode, and the file with its final weights."""

    branch: Branch
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


def protocol_branches(profile: Profile) -> dict[str, Branch]:
    """Every branch of labs 02 and 03 by name, in an order in which each start comes before its users."""
    sizes = profile.group_size_runs
    branches = [
        Branch("warmstart", BASE, "warmstart"),
        Branch("sft", "warmstart", "sft"),
        Branch("grpo", "warmstart", "grpo", profile.grpo),
        *(
            Branch(
                f"grpo-g{size}",
                "warmstart",
                "grpo",
                replace(
                    profile.grpo,
                    group_size=size,
                    iterations=sizes.iterations,
                    interrupt_at=sizes.interrupt_at,
                ),
            )
            for size in sizes.group_sizes
        ),
        Branch("grpo-shuffled", "warmstart", "grpo", profile.grpo, shuffle_rewards=True, three_ways=False),
    ]
    if profile.base.weak_location is not None:
        branches += [
            Branch("warmstart-weak", WEAK_BASE, "warmstart", three_ways=False),
            Branch("grpo-weak", "warmstart-weak", "grpo", profile.grpo, three_ways=False),
        ]
    return {branch.name: branch for branch in branches}


def branch_folder(profile: Profile, name: str) -> Path:
    return outputs_root(profile.name) / "branches" / name


def prompt_ids(profile: Profile, tokenizer: PreTrainedTokenizerBase, example: Example) -> list[int]:
    """The ids of one problem's prompt: the instruction as system message, the statement as the user's."""
    return encode_prompt(tokenizer, INSTRUCTION, example.statement, profile.budget, example.id)


def supervised_examples(
    profile: Profile, tokenizer: PreTrainedTokenizerBase, examples: list[Example]
) -> list[SupervisedExample]:
    """Prompts and targets as ids; an example over budget is an error that names it."""
    encoded = []
    for example in examples:
        prompt = prompt_ids(profile, tokenizer, example)
        target = encode_target(tokenizer, example.target, prompt, profile.budget, example.id)
        encoded.append(SupervisedExample(example.id, prompt, target))
    return encoded


@dataclass(frozen=True)
class PolicySource:
    """Where a policy comes from: a base, or a base with the final weights of a branch."""

    profile: Profile
    weak: bool
    weights: Path | None
    fingerprint: str | None

    def load(self) -> LoadedBase:
        """A fresh copy, reloaded strictly; no two copies share storage.

        Raises:
            VerificationError: the weights do not give the policy that the branch ended with.
        """
        base = load_base(self.profile, self.weak)
        if self.weights is None:
            return base
        load_untied(base.model, load_model_weights(self.weights)[0])
        if policy_fingerprint(base.model) != self.fingerprint:
            raise VerificationError(f"{self.weights} is not the policy that its branch ended with: train it again.")
        return base


def policy_source(profile: Profile, start: str) -> PolicySource:
    """The source of "base", "base-weak" or a branch; the branch is trained first when it is not on disk."""
    if start in (BASE, WEAK_BASE):
        return PolicySource(profile, start == WEAK_BASE, None, None)
    trained = ensure_branch(profile, start, show_complete=False)
    return PolicySource(profile, trained.branch.weak, trained.weights, trained.fingerprint)


def load_policy(profile: Profile, start: str) -> LoadedBase:
    """A fresh copy of a base, or of a trained branch's final policy."""
    return policy_source(profile, start).load()


def ensure_branch(profile: Profile, name: str, fresh: bool = False, show_complete: bool = True) -> TrainedBranch:
    """The trained branch, made on the spot (with everything it starts from) when it is not on disk yet.

    Args:
        fresh: throw away what is on disk for this branch and train it again.
        show_complete: draw the finished progress bars also for what is found on disk, so that a notebook's
            output does not depend on which lab was run before.

    Raises:
        LabError: an unknown name.
        IdentityError: states on disk that another config, base, data or code made; names what differs.
    """
    branches = protocol_branches(profile)
    if name not in branches:
        raise LabError(f"Unknown branch {name!r}; the branches are: {', '.join(branches)}.")
    return train_branch(profile, branches[name], fresh, show_complete)


def train_branch(profile: Profile, branch: Branch, fresh: bool = False, show_complete: bool = True) -> TrainedBranch:
    """Train `branch` (or resume it, or find it done) and export its final weights."""
    source = policy_source(profile, branch.start)
    folder = branch_folder(profile, branch.name)
    with _one_at_a_time(folder), _scope(branch):
        if fresh:
            _discard(profile, branch)
        start = source.load()
        identity = branch_identity(profile, branch, start)
        plan, interrupt_at, make_trainer = _preparation(profile, branch, source, start, identity)
        plan = replace(plan, show_complete=show_complete)
        if branch.three_ways:
            ends = run_three_ways(make_trainer, folder, plan, interrupt_at)
        else:
            ends = {CONTINUOUS: run(make_trainer, folder / CONTINUOUS, plan)}
        return _export(profile, branch, start.model, ends)


def _discard(profile: Profile, branch: Branch) -> None:
    for mode in MODES:
        remove_checkpoints(branch_folder(profile, branch.name) / mode)
    _weights_file(profile, branch).unlink(missing_ok=True)


def _weights_file(profile: Profile, branch: Branch) -> Path:
    return outputs_root(profile.name) / "models" / branch.name / "model.safetensors"


def _scope(branch: Branch):
    return stock_arithmetic_scope(validation_nll=branch.kind != "grpo", outputs=outputs_base())


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Two labs that need the same branch at the same time: the second waits and finds it done."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def branch_identity(profile: Profile, branch: Branch, start: LoadedBase) -> dict[str, str]:
    """What must be equal for a saved state to be continued; each key can be named when it differs."""
    package = ROOT / "labs_lib"
    config = {f"config.{key}": str(value) for key, value in profile.numeric_items().items()}
    own = asdict(branch)
    own |= {f"grpo.{key}": value for key, value in (own.pop("grpo") or {}).items()}
    spelling = start.tokenizer.backend_tokenizer.to_str() + start.tokenizer.chat_template
    return config | {
        **{f"branch.{key}": str(value) for key, value in own.items()},
        "start": policy_fingerprint(start.model),
        "tokenizer": sha256_bytes(spelling.encode()),
        "data": sha256_file(DATA_FOLDER / MANIFEST),
        "code": code_fingerprint([package / name for name in NUMERIC_CODE], package),
    }


def _preparation(profile: Profile, branch: Branch, source: PolicySource, start: LoadedBase, identity: dict[str, str]):
    """(plan, step to interrupt at, function that makes a fresh trainer) for one branch."""
    warm, rest = split_training(load_split("train", labels=True))
    if branch.kind == "grpo":
        prompts = [RolloutPrompt(e.id, prompt_ids(profile, start.tokenizer, e), e.problem) for e in rest]
        every = profile.grpo.checkpoint_every
        plan = RunPlan(branch.grpo.iterations, lambda step: step % every == 0, identity, branch.name)
        return plan, branch.grpo.interrupt_at, lambda: _grpo_trainer(profile, branch, source, prompts)
    settings = getattr(profile, branch.kind)
    examples = (warm if branch.kind == "warmstart" else rest)[: settings.examples]
    batches = -(-len(examples) // settings.batch_size)
    plan = RunPlan(settings.updates, lambda step: step % batches == 0, identity, branch.name)
    return plan, batches, lambda: _supervised_trainer(profile, branch, source, examples)


def _supervised_trainer(
    profile: Profile, branch: Branch, source: PolicySource, examples: list[Example]
) -> SupervisedTrainer:
    start = source.load()
    validation = load_split("validation", labels=True)
    return SupervisedTrainer(
        start.model,
        supervised_examples(profile, start.tokenizer, examples),
        supervised_examples(profile, start.tokenizer, validation),
        getattr(profile, branch.kind),
        profile.optimizer,
        profile.seed if branch.seed is None else branch.seed,
        branch.kind,
        pad_id(start.tokenizer),
    )


def _grpo_trainer(profile: Profile, branch: Branch, source: PolicySource, prompts: list[RolloutPrompt]) -> GrpoTrainer:
    start, reference = source.load(), source.load()
    settings = GrpoSettings(
        branch.grpo,
        profile.optimizer,
        profile.kl_block,
        profile.budget.answer_tokens,
        profile.seed if branch.seed is None else branch.seed,
        branch.name,
        branch.shuffle_rewards,
    )
    return GrpoTrainer(start.model, reference.model, start.tokenizer, prompts, settings)


def _export(profile: Profile, branch: Branch, model: PreTrainedModel, ends: dict[str, Checkpoint]) -> TrainedBranch:
    load_untied(model, policy_tensors(ends[CONTINUOUS].tensors))
    weights = _weights_file(profile, branch)
    fingerprint = policy_fingerprint(model)
    save_model_weights(weights, untied_state_dict(model), {"branch": branch.name, "fingerprint": fingerprint})
    return TrainedBranch(branch, ends, weights, fingerprint)


def branch_seconds(end: Checkpoint) -> dict[str, float]:
    """Seconds by phase over the whole run that ended in `end`."""
    durations: dict[str, Any] = end.durations
    if "iterations" in durations:
        phases = ("generation", "score_check", "optimisation")
        seconds = {phase: sum(row[phase] for row in durations["iterations"]) for phase in phases}
    else:
        seconds = {"generation": 0.0, "score_check": 0.0, "optimisation": sum(durations["optimisation"])}
    return seconds | {"total": sum(seconds.values())}
