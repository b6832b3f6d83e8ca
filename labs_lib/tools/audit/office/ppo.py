"""Checks of PPO: rollouts, token rewards, advantages and returns, and every update of actor and critic."""

from dataclasses import replace
from itertools import pairwise
from math import isfinite, log
from typing import Any

from labs_lib.tools.audit import formulas
from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.grpo import (
    KL_ABSOLUTE,
    KL_LOWEST,
    KL_MEAN,
    SCORE_CHECK,
    check_clip,
    check_length,
    check_prompts,
    check_text,
    largest_gap,
)
from labs_lib.tools.audit.office.corpus import OfficeCorpus
from labs_lib.tools.audit.office.protocol import RUBRIC, OfficePlan
from labs_lib.tools.audit.office.rubric import judge
from labs_lib.tools.audit.randomness import torch_stream
from labs_lib.tools.audit.reading import BranchEvidence, Evidence
from labs_lib.tools.audit.supervised import check_rates

# Recorded numbers are FP32, recomputed ones FP64.
REWARD = 2e-6, 1e-6
ADVANTAGE = 2e-5, 1e-5  # sums of up to 64 tokens
LOSS = 2e-5, 1e-5
VALUE = 1e-5  # the critic's value twice, of the same weights
ROUNDING = 0.5  # nats, between captured and full-sequence log-probs of a BF16 backbone: no rounding is larger
NETWORKS = ("actor", "critic")
PER_TOKEN = ("logprobs", "reference_logprobs", "kl", "values", "rewards", "advantages", "returns")


def check_ppo(evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, findings: Findings) -> None:
    """One PPO run, from its rollouts to its updates."""
    branch = evidence.branches[plan.name]
    checks = (
        ("rollouts", _check_rollouts),
        ("texts", _check_texts),
        ("scores and token rewards", _check_rewards),
        ("advantages and returns", _check_advantages),
        ("updates", _check_updates),
        ("captured log-probabilities and values", _check_captured),
        ("KL to the reference", _check_kl),
    )
    for title, check in checks:
        with findings.group(plan.name, title) as group:
            check(evidence, corpus, plan, branch, group)


def columns(row: dict[str, Any], name: str) -> list[list[float]]:
    """One per-token quantity of all answers of an iteration."""
    return [answer[name] for answer in row["answers"]]


# --- What was sampled --------------------------------------------------------------------------------


def _check_rollouts(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, branch: BranchEvidence, group: Group
) -> None:
    """The budget; prompts by the seeded permutation; one answer to each, none twice; one number for each token."""
    file, rows, record = branch.final.record_place, branch.history, branch.final.record
    group.equal(file, "iterations", [row["iteration"] for row in rows], list(range(1, plan.steps + 1)))
    group.equal(file, "steps", (record["iterations"], record["updates"]), (plan.steps, plan.updates))
    names = [row["id"] for row in corpus.rows["train.rollouts"]]
    generator, wanted = torch_stream(plan.seed, "ppo/prompts"), plan.settings["prompts_per_iteration"]
    seen: set[str] = set()
    prompts = check_prompts(branch, generator, names, wanted, plan.steps, group)
    for row, expected in zip(rows, prompts, strict=True):
        group.equal(file, f"iteration {row['iteration']} prompts", [a["prompt"] for a in row["answers"]], expected)
        for number, answer in enumerate(row["answers"]):
            rollout = f"{plan.name}/{row['iteration']:04}/{number}"
            place = f"rollout {rollout}"
            group.equal(file, f"{place} rollout_id", answer["rollout_id"], rollout)
            group.require(file, place, answer["rollout_id"] not in seen, answer["rollout_id"], "consumed only once")
            seen.add(answer["rollout_id"])
            check_length(file, place, answer, evidence.protocol["budget.answer_tokens"], group)
            lengths = {name: len(answer[name]) for name in PER_TOKEN}
            group.equal(file, f"{place} numbers", lengths, dict.fromkeys(PER_TOKEN, len(answer["ids"])))
            group.count("answers")
    group.equal(file, "answers consumed", len(seen), plan.answers)
    group.count("prompts", plan.answers)


def _check_texts(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, branch: BranchEvidence, group: Group
) -> None:
    for row in branch.history:
        for answer in row["answers"]:
            check_text(evidence, branch, branch.final.record_place, answer["rollout_id"], answer, group)


# --- Rewards and advantages --------------------------------------------------------------------------


def _check_rewards(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, branch: BranchEvidence, group: Group
) -> None:
    """The score is the rubric's where it pays, else a number; token rewards from log-probs, score and truncation."""
    file = branch.final.record_place
    for row in branch.history:
        for answer in row["answers"]:
            place = answer["rollout_id"]
            if plan.reward == RUBRIC:
                score = float(verdict(evidence, corpus, answer, answer["prompt"])["success"])
                group.equal(file, f"{place} score by the rubric", answer["score"], score)
            group.require(file, f"{place} score", isfinite(answer["score"]), answer["score"], "a number")
            for token, (recorded, expected) in enumerate(zip(answer["rewards"], _rewards(plan, answer), strict=True)):
                group.close(file, f"{place} reward of token {token}", recorded, expected, *REWARD)
                group.count("token rewards")
            group.count("scores")
        group.count("truncated answers", sum(answer["finish_reason"] == "length" for answer in row["answers"]))


def verdict(evidence: Evidence, corpus: OfficeCorpus, answer: dict[str, Any], request: str) -> dict[str, Any]:
    """What the rubric says about one recorded answer to a request."""
    tokenizer = evidence.tokenizer(False)
    known = answer.get("reason") != "unknown_id" if tokenizer is None else tokenizer.knows(answer["ids"])
    return judge(answer["text"], answer["finish_reason"], corpus.actions[request], known)


def _rewards(plan: OfficePlan, answer: dict[str, Any]) -> list[float]:
    cut = answer["finish_reason"] == "length"
    captured, reference = answer["logprobs"], answer["reference_logprobs"]
    return formulas.token_rewards(captured, reference, answer["score"], cut, plan.settings)


def _estimates(plan: OfficePlan, answer: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Advantages and returns of one answer, all the way from its log-probs, score and values."""
    settings = plan.settings
    return formulas.gae(_rewards(plan, answer), answer["values"], settings["gamma"], settings["gae_lambda"])


def _check_advantages(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, branch: BranchEvidence, group: Group
) -> None:
    """Generalised advantages backwards, nothing beyond the last token, no whitening; returns = advantage + value."""
    file = branch.final.record_place
    for row in branch.history:
        for answer in row["answers"]:
            for name, expected in zip(("advantages", "returns"), _estimates(plan, answer), strict=True):
                for token, (recorded, value) in enumerate(zip(answer[name], expected, strict=True)):
                    place = f"{answer['rollout_id']} {name} of token {token}"
                    group.close(file, place, recorded, value, *ADVANTAGE)
                    group.count(name)


# --- Updates -----------------------------------------------------------------------------------------


def _check_updates(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, branch: BranchEvidence, group: Group
) -> None:
    """Losses and clip of every update from its log-probs and values and the fixed advantages; learning rates."""
    file, settings = branch.final.record_place, plan.settings
    for row in branch.history:
        place = f"iteration {row['iteration']}"
        group.equal(file, f"{place} updates", len(row["updates"]), settings["updates_per_iteration"])
        estimates = [_estimates(plan, answer) for answer in row["answers"]]
        advantage, returns = ([pair[number] for pair in estimates] for number in (0, 1))
        for number, update in enumerate(row["updates"]):
            at = f"{place} update {number}"
            ratio = formulas.ratios(update["logprobs"], columns(row, "logprobs"))
            loss = formulas.actor_loss(ratio, advantage, settings["clip_low"], settings["clip_high"])
            group.close(file, f"{at} actor loss", update["actor"]["loss"], loss, *LOSS)
            loss = formulas.critic_loss(update["values"], returns)
            group.close(file, f"{at} critic loss", update["critic"]["loss"], loss, *LOSS)
            check_clip(file, at, update, ratio, advantage, settings, group)
            group.equal(file, f"{at} tokens", update["tokens"], sum(map(len, ratio)))
            group.count("updates of both networks")
            group.count("token ratios", update["tokens"])
    for name in NETWORKS:
        rates = replace(plan, settings={**settings, "learning_rate": settings[f"{name}_learning_rate"]})
        made = [update[name] for row in branch.history for update in row["updates"]]
        check_rates(rates, evidence, branch, made, group)


def _check_captured(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, branch: BranchEvidence, group: Group
) -> None:
    """Captured log-probs and values are those of the networks before the first update, and stay fixed afterwards.

    A run in which every ratio stays at 1 has recomputed its "old" log-probs, and one whose values never leave the
    captured ones has recomputed those.
    """
    file = branch.final.record_place
    moved = {"logprobs": 0.0, "values": 0.0}
    for row in branch.history:
        place, first = f"iteration {row['iteration']}", row["updates"][0]
        for answer in row["answers"]:
            for name in ("logprobs", "reference_logprobs"):
                holds = all(isfinite(value) and value <= 0 for value in answer[name])
                group.require(file, f"{answer['rollout_id']} {name}", holds, answer[name], "nats, at most 0")
        largest, check = largest_gap(first["logprobs"], columns(row, "logprobs")), row["score_check"]
        group.require(file, f"{place} score_check", 0 <= check <= ROUNDING, check, f"0 to {ROUNDING:g}")
        group.close(file, f"{place} score_check", check, largest, SCORE_CHECK)
        gap = largest_gap(first["values"], columns(row, "values"))
        group.require(file, f"{place} values of the first update", gap <= VALUE, gap, f"within {VALUE:g} of captured")
        for before, after in pairwise(row["updates"]):
            for name in moved:
                moved[name] = max(moved[name], largest_gap(before[name], after[name]))
        group.count("score checks")
    if plan.settings["updates_per_iteration"] > 1:
        for name, gap in moved.items():
            group.require(file, f"{name} of all later updates", gap > 0, gap, "some that an update has changed")


def _check_kl(evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, branch: BranchEvidence, group: Group) -> None:
    """Means over tokens; at the start the actor is its reference and the critic's head is zero."""
    file, tokenizer = branch.final.record_place, evidence.tokenizer(False)
    for row in branch.history:
        place, tokens = f"iteration {row['iteration']}", [value for kl in columns(row, "kl") for value in kl]
        group.close(file, f"{place} kl_mean", row["kl_mean"], formulas.mean(tokens), *KL_MEAN)
        group.require(file, f"{place} kl", min(tokens) >= KL_LOWEST, min(tokens), f"no KL below {KL_LOWEST:g}")
        most = log(len(tokenizer.tokens)) if tokenizer else float("inf")
        entropy = row["entropy_mean"]
        group.require(file, f"{place} entropy_mean", 0 <= entropy <= most, entropy, "a possible entropy")
        group.count("tokens", len(tokens))
    start = branch.history[0]
    largest = max(abs(value) for kl in columns(start, "kl") for value in kl)
    group.require(file, "iteration 1 kl", largest <= KL_ABSOLUTE, largest, "0: the reference is the start")
    gap = largest_gap(columns(start, "logprobs"), columns(start, "reference_logprobs"))
    group.require(file, "iteration 1 reference_logprobs", gap <= ROUNDING, gap, "those of the actor, up to rounding")
    values = max(abs(value) for row in columns(start, "values") for value in row)
    group.require(file, "iteration 1 values", values == 0, values, "0: the critic's head starts at zero")
