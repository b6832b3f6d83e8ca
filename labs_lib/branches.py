"""The course's trained branches: what each one starts from, how it is trained, and where its state lies.

`ensure_branch` trains a branch in three modes (continuous, interrupted, resumed), or finds it trained already, so
any lab can be opened first. While a policy is trained, held-out files cannot be opened.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from labs_lib.branch_runs import (
    Preparation,
    TrainedBranch,
    discard,
    one_at_a_time,
    run_identity,
    train_modes,
)
from labs_lib.checkpoint import load_model_weights, load_untied
from labs_lib.config import Grpo, Profile
from labs_lib.errors import BaseModelError, LabError, VerificationError
from labs_lib.models.base import LoadedBase, base_tokenizer, load_base
from labs_lib.models.chat import encode_prompt, encode_target, pad_id
from labs_lib.models.fingerprint import policy_fingerprint
from labs_lib.models.locations import base_folder
from labs_lib.paths import outputs_base
from labs_lib.reduced import evenly, held_out
from labs_lib.tasks.learning_scope import stock_arithmetic_scope
from labs_lib.tasks.stock_arithmetic.corpus import DATA_FOLDER, MANIFEST, Example, load_split, split_training
from labs_lib.tasks.stock_arithmetic.statements import INSTRUCTION
from labs_lib.training.grpo import GrpoSettings, GrpoTrainer, RolloutPrompt
from labs_lib.training.run import RunPlan
from labs_lib.training.supervised import SupervisedExample, SupervisedTrainer

# What StockArithmetic's runs use beside what all runs use.
NUMERIC_CODE = (
    "kernels/advantages.py",
    "training/grpo.py",
    "tasks/stock_arithmetic/corpus.py",
    "tasks/stock_arithmetic/problem.py",
    "tasks/stock_arithmetic/statements.py",
    "tasks/stock_arithmetic/verifier.py",
)
OTHER_SECTIONS = ("office",)  # of the profile: they play no part here
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

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer without its model, which takes seconds to load.

        Raises:
            BaseModelError: it cannot be read, or knows no chats.
        """
        folder = base_folder(self.profile, self.weak)
        try:
            tokenizer = base_tokenizer(self.profile.base, folder)
        except (OSError, ValueError, KeyError) as error:
            told = " ".join(str(error).split())
            raise BaseModelError(f"The tokenizer of {folder.name} cannot be read: {told}.") from error
        if tokenizer.chat_template is None:
            raise BaseModelError(f"The tokenizer of {folder.name} knows no chats: the labs need an instruct model.")
        return tokenizer


def policy_source(profile: Profile, start: str) -> PolicySource:
    """The source of "base", "base-weak" or a branch; the branch is trained first when it is not on disk."""
    if start in (BASE, WEAK_BASE):
        return PolicySource(profile, start == WEAK_BASE, None, None)
    return trained_source(profile, ensure_branch(profile, start, show_complete=False))


def trained_source(profile: Profile, trained: TrainedBranch) -> PolicySource:
    """The source of a branch's final policy."""
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
    with one_at_a_time(profile, branch.name, show_complete), _scope(branch):
        if fresh:
            discard(profile, branch.name)
        identity = branch_identity(profile, branch, source)
        return train_modes(profile, branch, "policy", _preparation(profile, branch, source, identity), show_complete)


def _scope(branch: Branch):
    return stock_arithmetic_scope(validation_nll=branch.kind != "grpo", outputs=outputs_base())


def branch_identity(profile: Profile, branch: Branch, source: PolicySource) -> dict[str, str]:
    """What must be equal for a saved state to be continued; each key can be named when it differs.

    The start is believed to be what its branch says of it: whoever loads it holds it to that.
    """
    own = asdict(branch)
    own |= {f"grpo.{key}": value for key, value in (own.pop("grpo") or {}).items()}
    config = profile.numeric_items(without=OTHER_SECTIONS)
    identity = run_identity(config, own, source.tokenizer(), DATA_FOLDER / MANIFEST, NUMERIC_CODE)
    return identity | {"start": source.fingerprint or policy_fingerprint(source.load().model)}


def _preparation(profile: Profile, branch: Branch, source: PolicySource, identity: dict[str, str]) -> Preparation:
    make = partial(branch_trainer, profile, branch, source)
    if branch.kind == "grpo":
        every = profile.grpo.checkpoint_every
        plan = RunPlan(branch.grpo.iterations, lambda step: step % every == 0, identity, branch.name)
        return Preparation(plan, branch.grpo.interrupt_at, make)
    settings = getattr(profile, branch.kind)
    batches = settings.updates // settings.epochs
    plan = RunPlan(settings.updates, lambda step: step % batches == 0, identity, branch.name)
    return Preparation(plan, batches, make)


def branch_trainer(profile: Profile, branch: Branch, source: PolicySource) -> SupervisedTrainer | GrpoTrainer:
    """A trainer of `branch` that has not begun, on fresh copies of its start."""
    warm, rest = split_training(load_split("train", labels=True))
    if branch.kind == "grpo":
        return _grpo_trainer(profile, branch, source, rest)
    return _supervised_trainer(profile, branch, source, warm if branch.kind == "warmstart" else rest)


def _supervised_trainer(
    profile: Profile, branch: Branch, source: PolicySource, examples: list[Example]
) -> SupervisedTrainer:
    start, settings = source.load(), getattr(profile, branch.kind)
    validation = held_out(profile, load_split("validation", labels=True), lambda example: example.id)
    return SupervisedTrainer(
        start.model,
        supervised_examples(profile, start.tokenizer, evenly(examples, settings.examples)),
        supervised_examples(profile, start.tokenizer, validation),
        settings,
        profile.optimizer,
        profile.seed if branch.seed is None else branch.seed,
        branch.kind,
        pad_id(start.tokenizer),
    )


def _grpo_trainer(profile: Profile, branch: Branch, source: PolicySource, examples: list[Example]) -> GrpoTrainer:
    start, reference = source.load(), source.load()
    prompts = [RolloutPrompt(e.id, prompt_ids(profile, start.tokenizer, e), e.problem) for e in examples]
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
