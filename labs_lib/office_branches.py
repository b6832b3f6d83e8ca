"""OfficeHelp's trained branches: LoRA SFT, three judges, PPO against each and against the rubric, DPO.

Like `branches` for StockArithmetic: `ensure_office` trains a branch (and whatever it starts from) in its modes, or
finds it trained already. While it trains, test pairs, probes and inference outputs cannot be opened.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from transformers import PreTrainedTokenizerBase

from labs_lib.branch_runs import (
    Preparation,
    TrainedBranch,
    discard,
    one_at_a_time,
    run_identity,
    train_modes,
)
from labs_lib.checkpoint import load_model_weights
from labs_lib.config import Profile, Supervised
from labs_lib.errors import LabError, VerificationError
from labs_lib.models.chat import encode_prompt, encode_target, pad_id
from labs_lib.models.roles import (
    LoadedRole,
    Scalar,
    backbone_fingerprint,
    learned_fingerprint,
    load_adapted,
    load_learned,
)
from labs_lib.office_rewards import JudgeReward, RubricReward
from labs_lib.paths import outputs_base
from labs_lib.reduced import evenly, held_out
from labs_lib.seeding import named_generator
from labs_lib.tasks.learning_scope import office_help_scope
from labs_lib.tasks.office_help.corpus import (
    DATA_FOLDER,
    MANIFEST,
    Pair,
    Request,
    biased_pairs,
    load_demonstrations,
    load_pairs,
    load_rollout_requests,
)
from labs_lib.tasks.office_help.wording import INSTRUCTION
from labs_lib.training.epochs import EpochTrainer
from labs_lib.training.ppo import PpoPrompt, PpoSettings, PpoTrainer, Reward
from labs_lib.training.preferences import DpoTrainer, JudgeTrainer, PreferenceExample
from labs_lib.training.run import RunPlan
from labs_lib.training.supervised import SupervisedExample, SupervisedTrainer

OFFICE_CODE = (
    "kernels/preference.py",
    "office_rewards.py",
    "tasks/corpus_files.py",
    "tasks/office_help/construction.py",
    "tasks/office_help/corpus.py",
    "tasks/office_help/rubric.py",
    "tasks/office_help/wording.py",
    "training/ppo.py",
    "training/preferences.py",
)
# Sections of the profile that play no part here.
OTHER_SECTIONS = ("warmstart", "sft", "grpo", "group_size_runs", "grpo_control", "evaluation", "office.study")
BASE, RUBRIC = "base", "rubric"
SFT, JUDGE, PPO, DPO = "sft-office", "judge", "ppo", "dpo"
BIASES = ("courtesy", "confidence")
# The profile's section of each kind; what a branch starts from stands in its identity by fingerprint.
SECTIONS = {SFT: "sft", JUDGE: "judge", PPO: "ppo", DPO: "dpo"}
# The part of a branch's final state that is its result.
RESULTS = {SFT: "policy", JUDGE: "judge", PPO: "actor", DPO: "policy"}


@dataclass(frozen=True)
class OfficeBranch:
    """How one role is made. `start` is BASE or a branch; `reward` a judge's branch or RUBRIC, for PPO only."""

    name: str
    kind: str  # SFT, JUDGE, PPO or DPO
    start: str
    seed: int  # of the series: see `actor_seed` and `judge_seed`
    bias: str | None = None
    reward: str | None = None
    kl_weight: float | None = None
    three_ways: bool = False


def actor_seed(seed: int) -> int:
    """49 for the series' seed 48: adapters, prompts and draws of the actor."""
    return seed + 1


def judge_seed(seed: int) -> int:
    """50 for the series' seed 48: a judge has adapters, head and order of pairs of its own."""
    return seed + 2


def judge_branch(bias: str | None, seed: int, name: str) -> OfficeBranch:
    """A judge on the 840 pairs, or on copies of them with a bias."""
    return OfficeBranch(name, JUDGE, BASE, seed, bias=bias, three_ways=name == JUDGE)


def ppo_branch(reward: str, kl_weight: float, seed: int, name: str) -> OfficeBranch:
    """PPO from the SFT actor, paid by a judge's branch or by the rubric."""
    return OfficeBranch(name, PPO, SFT, seed, reward=reward, kl_weight=kl_weight, three_ways=name == PPO)


def office_protocol(profile: Profile) -> dict[str, OfficeBranch]:
    """Every branch of labs 04 and 05 by name, in an order in which each start comes before its users."""
    seed, kl_weight = profile.seed, profile.office.ppo.kl_weight
    branches = [OfficeBranch(SFT, SFT, BASE, seed, three_ways=True)]
    for bias in (None, *BIASES):
        suffix = "" if bias is None else f"-{bias}"
        branches.append(judge_branch(bias, seed, f"{JUDGE}{suffix}"))
        branches.append(ppo_branch(f"{JUDGE}{suffix}", kl_weight, seed, f"{PPO}{suffix}"))
    branches.append(ppo_branch(RUBRIC, kl_weight, seed, f"{PPO}-{RUBRIC}"))
    branches.append(OfficeBranch(DPO, DPO, SFT, seed))
    return {branch.name: branch for branch in branches}


# --- From words to ids -----------------------------------------------------------------------------


def request_ids(profile: Profile, tokenizer: PreTrainedTokenizerBase, request: Request) -> list[int]:
    """The ids of one request's prompt."""
    return encode_prompt(tokenizer, INSTRUCTION, request.prompt, profile.budget, request.id)


def answered(
    profile: Profile, tokenizer: PreTrainedTokenizerBase, rows: Sequence[tuple[Request, str]]
) -> list[SupervisedExample]:
    """Requests with an answer as supervised examples; one over budget is an error that names it."""
    examples = []
    for request, answer in rows:
        prompt = request_ids(profile, tokenizer, request)
        target = encode_target(tokenizer, answer, prompt, profile.budget, request.id)
        examples.append(SupervisedExample(request.id, prompt, target))
    return examples


def preference_examples(
    profile: Profile, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair]
) -> list[PreferenceExample]:
    """Pairs as ids; an answer over budget is an error that names it."""
    chosen = answered(profile, tokenizer, [(pair.request, pair.chosen) for pair in pairs])
    rejected = answered(profile, tokenizer, [(pair.request, pair.rejected) for pair in pairs])
    return [
        PreferenceExample(left.name, left.prompt, left.target, right.target)
        for left, right in zip(chosen, rejected, strict=True)
    ]


def training_pairs(profile: Profile, bias: str | None) -> list[Pair]:
    """The 840 pairs that a judge learns from."""
    pairs = load_pairs("train")
    if bias is None:
        return pairs
    return biased_pairs(pairs, bias, profile.office.confidence_share if bias == "confidence" else 1.0)


def family(pair: Pair) -> str:
    """Which family a pair is of: five prompts of one family are not independent, and are kept or left together."""
    return pair.request.family


# --- Fresh and trained roles -----------------------------------------------------------------------


def fresh_actor(profile: Profile, seed: int) -> LoadedRole:
    """The base with new adapters, which change nothing yet."""
    return load_adapted(profile, named_generator(actor_seed(seed), "office/adapters"))


def fresh_judge(profile: Profile, seed: int) -> tuple[Scalar, PreTrainedTokenizerBase]:
    """The base with adapters and a scalar head of the judge's own seed."""
    role = load_adapted(profile, named_generator(judge_seed(seed), "office/adapters"))
    return Scalar(role.model, named_generator(judge_seed(seed), "office/head")), role.tokenizer


@dataclass(frozen=True)
class RoleSource:
    """Where copies of a trained role come from; no two copies share storage."""

    profile: Profile
    trained: TrainedBranch | None  # None: the base

    @property
    def fingerprint(self) -> str | None:
        return self.trained and self.trained.fingerprint

    def actor(self) -> LoadedRole:
        """A fresh copy of an actor: of the base, of SFT, PPO or DPO."""
        role = fresh_actor(self.profile, self.profile.seed)
        self._load(role.model)
        return role

    def critic(self) -> Scalar:
        """A copy of the actor's adapters under a value head that starts at zero."""
        return Scalar(self.actor().model)

    def judge(self) -> Scalar:
        """A fresh copy of a judge."""
        judge, _ = fresh_judge(self.profile, self.profile.seed)
        self._load(judge)
        return judge

    def _load(self, model) -> None:
        if self.trained is None:
            return
        load_learned(model, load_model_weights(self.trained.weights)[0])
        if learned_fingerprint(model) != self.fingerprint:
            raise VerificationError(
                f"{self.trained.weights} is not the role that its branch ended with: train it again."
            )


def role_source(profile: Profile, start: str) -> RoleSource:
    """The source of the base or of a branch of the protocol, which is trained first when it is not on disk."""
    return RoleSource(profile, None if start == BASE else ensure_office(profile, start, show_complete=False))


# --- Training --------------------------------------------------------------------------------------


def ensure_office(profile: Profile, name: str, fresh: bool = False, show_complete: bool = True) -> TrainedBranch:
    """The trained branch, made on the spot (with everything it starts from) when it is not on disk yet.

    Args:
        fresh: throw away what is on disk for this branch and train it again.
        show_complete: draw the finished progress bars also for what is found on disk.

    Raises:
        LabError: an unknown name.
        IdentityError: states on disk that another config, base, data or code made; names what differs.
    """
    branches = office_protocol(profile)
    if name not in branches:
        raise LabError(f"Unknown branch {name!r}; the branches are: {', '.join(branches)}.")
    return train_office(profile, branches[name], fresh=fresh, show_complete=show_complete)


def train_office(
    profile: Profile,
    branch: OfficeBranch,
    reward: RoleSource | None = None,
    fresh: bool = False,
    show_complete: bool = True,
) -> TrainedBranch:
    """Train `branch` (or resume it, or find it done) and export what it learned.

    Args:
        reward: the judge that pays, where it is no branch of the protocol (a seed of a study).
    """
    source = role_source(profile, branch.start)
    if branch.reward not in (None, RUBRIC) and reward is None:
        reward = role_source(profile, branch.reward)
    with one_at_a_time(profile, branch.name, show_complete), _scope(branch):
        if fresh:
            discard(profile, branch.name)
        identity = office_identity(profile, branch, source.actor(), source, reward)
        preparation = _preparation(profile, branch, source, reward, identity)
        return train_modes(profile, branch, RESULTS[branch.kind], preparation, show_complete)


def _scope(branch: OfficeBranch):
    return office_help_scope(branch.kind != PPO, outputs=outputs_base())


def office_identity(
    profile: Profile, branch: OfficeBranch, start: LoadedRole, source: RoleSource, reward: RoleSource | None
) -> dict[str, str]:
    """What must be equal for a saved state to be continued; each key can be named when it differs."""
    others = [f"office.{section}" for kind, section in SECTIONS.items() if kind != branch.kind]
    if branch.bias != "confidence":
        others.append("office.confidence_share")
    config = profile.numeric_items(without=(*OTHER_SECTIONS, *others))
    identity = run_identity(config, asdict(branch), start.tokenizer, DATA_FOLDER / MANIFEST, OFFICE_CODE)
    return identity | {
        "backbone": backbone_fingerprint(start.model),
        "start": str(source.fingerprint),
        "reward": str(reward and reward.fingerprint),
    }


def _preparation(
    profile: Profile, branch: OfficeBranch, source: RoleSource, reward: RoleSource | None, identity: dict[str, str]
) -> Preparation:
    """Plan and trainer of one branch; epochs end where a supervised run may be interrupted."""
    make = partial(office_trainer, profile, branch, source, reward)
    if branch.kind == PPO:
        ppo = profile.office.ppo
        plan = RunPlan(ppo.iterations, lambda step: step % ppo.checkpoint_every == 0, identity, branch.name)
        return Preparation(plan, ppo.interrupt_at, make)
    settings = _settings(profile, branch)
    batches = settings.updates // settings.epochs
    plan = RunPlan(settings.updates, lambda step: step % batches == 0, identity, branch.name)
    return Preparation(plan, batches, make)


def office_trainer(
    profile: Profile, branch: OfficeBranch, source: RoleSource, reward: RoleSource | None
) -> EpochTrainer | PpoTrainer:
    """A trainer of `branch` that has not begun, every role a fresh copy; `reward` pays PPO unless the rubric does."""
    if branch.kind == PPO:
        return _ppo_trainer(profile, branch, source, reward)
    return _epoch_trainer(profile, branch, source, _settings(profile, branch))


def _settings(profile: Profile, branch: OfficeBranch) -> Supervised:
    return getattr(profile.office, SECTIONS[branch.kind])


def _epoch_trainer(profile: Profile, branch: OfficeBranch, source: RoleSource, settings: Supervised) -> EpochTrainer:
    optimizer, validation = profile.optimizer, held_out(profile, load_pairs("validation"), family)
    if branch.kind == JUDGE:
        judge, tokenizer = fresh_judge(profile, branch.seed)
        pairs = evenly(training_pairs(profile, branch.bias), settings.examples)
        examples = [preference_examples(profile, tokenizer, part) for part in (pairs, validation)]
        return JudgeTrainer(
            judge, *examples, settings, optimizer, judge_seed(branch.seed), branch.kind, pad_id(tokenizer)
        )
    actor, seed = source.actor(), actor_seed(branch.seed)
    tokenizer = actor.tokenizer
    common = settings, optimizer, seed, branch.kind, pad_id(tokenizer)
    if branch.kind == DPO:
        pairs = evenly(training_pairs(profile, branch.bias), settings.examples)
        examples = [preference_examples(profile, tokenizer, part) for part in (pairs, validation)]
        return DpoTrainer(actor.model, source.actor().model, *examples, *common)
    demonstrations = [(row.request, row.answer) for row in evenly(load_demonstrations(), settings.examples)]
    chosen = [(pair.request, pair.chosen) for pair in validation]
    return SupervisedTrainer(
        actor.model, answered(profile, tokenizer, demonstrations), answered(profile, tokenizer, chosen), *common
    )


def _ppo_trainer(profile: Profile, branch: OfficeBranch, source: RoleSource, reward: RoleSource | None) -> PpoTrainer:
    actor = source.actor()
    requests = load_rollout_requests()
    prompts = [PpoPrompt(request.id, request_ids(profile, actor.tokenizer, request)) for request in requests]
    settings = PpoSettings(
        replace(profile.office.ppo, kl_weight=branch.kl_weight),
        profile.optimizer,
        profile.kl_block,
        profile.budget.answer_tokens,
        actor_seed(branch.seed),
        branch.name,
    )
    paid_by = _reward(branch, reward, requests, actor.tokenizer)
    return PpoTrainer(actor.model, source.critic(), source.actor().model, paid_by, actor.tokenizer, prompts, settings)


def _reward(
    branch: OfficeBranch, reward: RoleSource | None, requests: list[Request], tokenizer: PreTrainedTokenizerBase
) -> Reward:
    if branch.reward == RUBRIC:
        return RubricReward({request.id: request.action for request in requests}, tokenizer)
    return JudgeReward(reward.judge(), pad_id(tokenizer))
