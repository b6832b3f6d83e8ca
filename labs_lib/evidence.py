"""From trained branches to evidence on disk: evaluations, and one summary per branch for the report and the audit.

What a run leaves is plain JSON: the history inside each checkpoint's record, one evaluation file per policy, and one
summary per branch that `report.json` merges. The audit recomputes the last from the first two.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labs_lib.branch_runs import TrainedBranch, branch_seconds
from labs_lib.branches import (
    OTHER_SECTIONS,
    PolicySource,
    ensure_branch,
    policy_source,
    prompt_ids,
    supervised_examples,
    trained_source,
)
from labs_lib.checkpoint import code_fingerprint
from labs_lib.config import Profile
from labs_lib.errors import VerificationError
from labs_lib.evaluation import GREEDY, SAMPLED, accuracy, evaluate, mixed_groups, quality
from labs_lib.paths import ROOT, branches_folder, outputs_root
from labs_lib.reduced import held_out
from labs_lib.seeding import derived_seed
from labs_lib.storage import atomic_write_json, read_json
from labs_lib.tasks.stock_arithmetic.corpus import load_split

SPLIT = "test"
BOOTSTRAP_STREAM = "evaluation/bootstrap"
EVALUATION_CODE = (
    "evaluation.py",
    "rollout.py",
    "models/chat.py",
    "models/unembedding.py",
    "kernels/logprobs.py",
    "tasks/corpus_files.py",
    "tasks/stock_arithmetic",
)


def evaluation_path(profile: Profile, name: str) -> Path:
    """Where a policy's answers lie; the name keeps them from being opened while a policy is trained."""
    return outputs_root(profile.name) / "evaluations" / f"evaluation-{name}.json"


def evaluate_branch(profile: Profile, name: str) -> dict[str, Any]:
    """All answers of a branch's final policy on the test problems (200 of them), judged; kept on disk and reused.

    An evaluation of another policy, protocol or code is made again: it can be reproduced exactly.
    """
    return _evaluate(profile, name, policy_source(profile, name))


def evaluate_trained(profile: Profile, trained: TrainedBranch) -> dict[str, Any]:
    """`evaluate_branch` for a branch outside of the protocol, such as one seed of a study."""
    return _evaluate(profile, trained.branch.name, trained_source(profile, trained))


def _evaluate(profile: Profile, name: str, source: PolicySource) -> dict[str, Any]:
    identity = {
        "policy": source.fingerprint,
        "config": profile.fingerprint(without=OTHER_SECTIONS),
        "code": code_fingerprint([ROOT / "labs_lib" / part for part in EVALUATION_CODE], ROOT / "labs_lib"),
    }
    path = evaluation_path(profile, name)
    if path.exists() and (kept := read_json(path))["identity"] == identity:
        return kept
    policy = source.load()
    examples = held_out(profile, load_split(SPLIT, labels=True), lambda example: example.id)
    evidence = evaluate(
        policy.model,
        policy.tokenizer,
        examples,
        [prompt_ids(profile, policy.tokenizer, example) for example in examples],
        profile.evaluation.samples_per_problem,
        profile.budget.answer_tokens,
        profile.seed,
    )
    evidence |= {"branch": name, "identity": identity}
    atomic_write_json(path, evidence)
    return evidence


def branch_counts(trained: TrainedBranch) -> dict[str, Any]:
    """Updates, sampled answers and tokens, and the share of mixed groups met while training."""
    record = trained.final.record
    if trained.branch.kind != "grpo":
        return {"updates": record["updates"], "answers": 0, "tokens_generated": 0, "mixed_groups": None}
    answers = [answer for row in record["history"] for answer in row["answers"]]
    size = trained.branch.grpo.group_size
    groups = [answers[start : start + size] for start in range(0, len(answers), size)]
    mixed = sum(len({answer["paid"] for answer in group}) > 1 for group in groups)
    return {
        "updates": record["updates"],
        "answers": len(answers),
        "tokens_generated": sum(len(answer["ids"]) for answer in answers),
        "mixed_groups": mixed / len(groups),
    }


def tokens_scored(profile: Profile, trained: TrainedBranch) -> int:
    """Answer tokens that went through a model to be scored, over the whole run: what sampling adds is not in it.

    A GRPO token is scored once by the reference and once in every update; what the first update reads is also what is
    checked against the captured log-probs, unless micro-batches keep the two apart.
    """
    record, branch = trained.final.record, trained.branch
    if branch.kind == "grpo":
        apart = branch.grpo.micro_batch_prompts < branch.grpo.prompts_per_iteration
        passes = 1 + branch.grpo.updates_per_iteration + apart
        return passes * branch_counts(trained)["tokens_generated"]
    examples = supervised_examples(
        profile, trained_source(profile, trained).tokenizer(), load_split("train", labels=True)
    )
    tokens = {example.name: len(example.target) for example in examples}
    return sum(tokens[name] for row in record["history"] for name in row["examples"])


def summarise(profile: Profile, trained: TrainedBranch, evaluation: dict[str, Any]) -> dict[str, Any]:
    """The branch's entry in `report.json`."""
    seed, draws = derived_seed(profile.seed, BOOTSTRAP_STREAM), profile.evaluation.bootstrap_draws
    return {
        **branch_counts(trained),
        "tokens_scored": tokens_scored(profile, trained),
        "state_sha256": trained.state_sha256,
        "policy_fingerprint": trained.fingerprint,
        "start": trained.branch.start,
        "accuracy": {kind: accuracy(evaluation[kind], draws, seed) for kind in (GREEDY, SAMPLED)},
        "quality": {kind: quality(evaluation[kind]) for kind in (GREEDY, SAMPLED)},
        "mixed_test_problems": mixed_groups(evaluation[SAMPLED]),
        "seconds": branch_seconds(trained.final),
        "seconds_by_mode": {mode: branch_seconds(end)["total"] for mode, end in trained.ends.items()},
        "evaluation_seconds": evaluation["seconds"],
        "checkpoints": {
            mode: end.path.relative_to(outputs_root(profile.name)).as_posix() for mode, end in trained.ends.items()
        },
    }


def record_branch(profile: Profile, name: str) -> dict[str, Any]:
    """Train (or find), evaluate and summarise a branch; writes and returns its entry of the report."""
    trained = ensure_branch(profile, name, show_complete=False)
    summary = summarise(profile, trained, evaluate_trained(profile, trained))
    atomic_write_json(branches_folder(profile.name) / f"{name}.json", summary)
    write_protocol(profile)
    return summary


def write_protocol(profile: Profile) -> None:
    """The numbers that the audit holds the evidence to, beside the evidence."""
    protocol = {
        key: list(value) if isinstance(value, tuple) else value for key, value in profile.numeric_items().items()
    }
    atomic_write_json(outputs_root(profile.name) / "evidence" / "protocol.json", protocol)


def require_consumed_once(rows: Iterable[dict[str, Any]]) -> int:
    """How many rollouts the iterations of a GRPO history consumed, each exactly once.

    Raises VerificationError naming a rollout that was optimised in more than one iteration.
    """
    seen: set[str] = set()
    for row in rows:
        for answer in row["answers"]:
            if answer["rollout_id"] in seen:
                raise VerificationError(
                    f"Rollout {answer['rollout_id']} was optimised twice: resume from whole iterations only."
                )
            seen.add(answer["rollout_id"])
    return len(seen)


def require_verified_rewards(rows: Iterable[dict[str, Any]], shuffled: bool = False) -> None:
    """Hold what was paid to what the verifier said: the same numbers, in another order only where `shuffled`.

    Raises VerificationError naming the first iteration that was paid otherwise.
    """
    for row in rows:
        paid = [answer["paid"] for answer in row["answers"]]
        verified = [float(answer["reward"]) for answer in row["answers"]]
        if (sorted(paid) != sorted(verified)) if shuffled else (paid != verified):
            raise VerificationError(
                f"Iteration {row['iteration']} was paid {sum(paid):g} for {sum(verified):g} right answers: "
                "pay the verifier's reward and nothing else."
            )


def history(profile: Profile, name: str) -> list[dict[str, Any]]:
    """The per-step evidence of a branch that was trained already."""
    return ensure_branch(profile, name, show_complete=False).final.record["history"]
