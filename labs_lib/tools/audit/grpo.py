"""Checks of GRPO: rollouts, rewards, advantages, updates, captured log-probabilities and probed distributions."""

from itertools import pairwise
from math import exp, fsum, isfinite, log
from typing import Any

from labs_lib.tools.audit import formulas
from labs_lib.tools.audit.corpus import pool
from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.judging import final_stock, judge
from labs_lib.tools.audit.protocol import Plan
from labs_lib.tools.audit.randomness import TorchGenerator, torch_stream
from labs_lib.tools.audit.reading import BranchEvidence, Evidence
from labs_lib.tools.audit.supervised import check_rates

# Recorded numbers are FP32, recomputed ones FP64.
ADVANTAGE = 1e-5
LOSS_ABSOLUTE, LOSS_RELATIVE = 2e-6, 1e-5
RATIO = 5e-6  # absolute and relative
LOGPROB = 1e-5  # nats, absolute and relative
SCORE_CHECK = 5e-5  # nats, between two ways to unembed the same hidden states
KL_LOWEST = -1e-6
KL_ABSOLUTE, KL_RELATIVE = 5e-6, 1e-3  # a term against a whole distribution
KL_MEAN = 1e-7, 1e-4  # a mean against its own terms
NORMALISED = 1e-9
DRAW = 1e-9


def check_grpo(evidence: Evidence, plan: Plan, findings: Findings) -> None:
    """One GRPO run, from its rollouts to its updates."""
    branch = evidence.branches[plan.name]
    for title, check in (
        ("rollouts", _check_rollouts),
        ("texts", _check_texts),
        ("rewards", _check_rewards),
        ("advantages", _check_advantages),
        ("updates", _check_updates),
        ("captured log-probabilities", _check_captured),
        ("probed distributions", _check_probes),
    ):
        with findings.group(plan.name, title) as group:
            check(evidence, plan, branch, group)
    if evidence.tokenizer(branch.weak) is None:
        findings.note("texts from ids and the verdict unknown_id where the base's tokenizer is not on this machine")


# --- What was sampled --------------------------------------------------------------------------------


def _check_rollouts(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> None:
    """The budget; prompts by the seeded permutation; no rollout twice; answers of a possible length."""
    file, rows, settings = branch.final.record_place, branch.history, plan.settings
    group.equal(file, "iterations", [row["iteration"] for row in rows], list(range(1, plan.steps + 1)))
    group.equal(file, "updates", branch.final.record["updates"], plan.updates)
    seen: set[str] = set()
    for row, prompts in zip(rows, _prompts(evidence, plan, branch, group), strict=True):
        wanted = [
            (f"{plan.name}/{row['iteration']:04}/{place}/{member}", prompt)
            for place, prompt in enumerate(prompts)
            for member in range(settings["group_size"])
        ]
        group.equal(file, f"iteration {row['iteration']} answers", len(row["answers"]), len(wanted))
        for answer, (rollout, prompt) in zip(row["answers"], wanted, strict=False):
            place = f"rollout {rollout}"
            group.equal(file, f"{place} rollout_id", answer["rollout_id"], rollout)
            group.require(file, place, answer["rollout_id"] not in seen, answer["rollout_id"], "consumed only once")
            seen.add(answer["rollout_id"])
            group.equal(file, f"{place} prompt", answer["prompt"], prompt)
            check_length(file, place, answer, evidence.protocol["budget.answer_tokens"], group)
            group.count("answers")
    group.equal(file, "answers consumed", len(seen), plan.answers)
    group.count("prompts", plan.steps * settings["prompts_per_iteration"])


def _prompts(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> list[list[str]]:
    """The prompts of every iteration, from the seed; the order and cursor that were saved must end there."""
    generator = torch_stream(plan.seed, "grpo/prompts")
    wanted = plan.settings["prompts_per_iteration"]
    return check_prompts(branch, generator, pool(evidence, "grpo"), wanted, plan.steps, group)


def check_prompts(
    branch: BranchEvidence, generator: TorchGenerator, names: list[str], wanted: int, steps: int, group: Group
) -> list[list[str]]:
    """The prompts of every iteration; a new permutation when fewer are left than wanted."""
    order: list[int] = []
    cursor, chosen = 0, []
    for _ in range(steps):
        if cursor + wanted > len(order):
            order, cursor = generator.permutation(len(names)), 0
        chosen.append([names[index] for index in order[cursor : cursor + wanted]])
        cursor += wanted
    group.equal(branch.final.record_place, "order", branch.final.record["order"], order)
    group.equal(branch.final.record_place, "cursor", branch.final.record["cursor"], cursor)
    return chosen


def check_length(file: str, place: str, answer: dict[str, Any], limit: int, group: Group) -> None:
    length, reason = len(answer["ids"]), answer["finish_reason"]
    group.require(file, f"{place} ids", 1 <= length <= limit, length, f"1 to {limit} tokens")
    group.require(file, f"{place} finish_reason", reason in ("eos", "length"), reason, "eos or length")
    if reason == "length":
        group.equal(file, f"{place} tokens of an answer without EOS", length, limit)
    group.equal(file, f"{place} log-probabilities", len(answer["logprobs"]), length)


def _check_texts(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> None:
    """Every text is what its ids say."""
    for row in branch.history:
        for answer in row["answers"]:
            check_text(evidence, branch, branch.final.record_place, answer["rollout_id"], answer, group)


def check_text(
    evidence: Evidence, branch: BranchEvidence, file: str, place: str, answer: dict[str, Any], group: Group
) -> None:
    """The text of one answer from its ids, and EOS at its end and nowhere else."""
    tokenizer, ids = evidence.tokenizer(branch.weak), answer["ids"]
    if tokenizer is None:
        return
    group.equal(file, f"{place} text", answer["text"], tokenizer.text(ids))
    ended = tokenizer.eos in ids
    group.equal(file, f"{place} finish_reason", answer["finish_reason"], "eos" if ended else "length")
    group.require(file, f"{place} ids", tokenizer.eos not in ids[:-1], ids, "nothing after EOS")
    group.count("texts")


# --- Rewards and advantages --------------------------------------------------------------------------


def _check_rewards(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> None:
    """Verdicts from the texts; what was paid is the reward, or its seeded permutation in the control."""
    file = branch.final.record_place
    shuffle = torch_stream(plan.seed, "grpo/shuffle")
    for row in branch.history:
        verdicts = [
            check_verdict(evidence, branch, file, a["rollout_id"], a["prompt"], a, group) for a in row["answers"]
        ]
        if plan.shuffled:
            verdicts = [verdicts[index] for index in shuffle.permutation(len(verdicts))]
        for answer, reward in zip(row["answers"], verdicts, strict=True):
            group.equal(file, f"{answer['rollout_id']} paid", answer["paid"], float(reward))
        group.count("rewards", len(verdicts))


def check_verdict(
    evidence: Evidence,
    branch: BranchEvidence,
    file: str,
    place: str,
    problem: str,
    answer: dict[str, Any],
    group: Group,
) -> int:
    """Reward and reason of one answer from its text, finish reason and problem; returns the reward."""
    tokenizer = evidence.tokenizer(branch.weak)
    known = answer["reason"] != "unknown_id" if tokenizer is None else tokenizer.knows(answer["ids"])
    target = final_stock(evidence.examples[problem]["problem"])
    verdict = judge(answer["text"], answer["finish_reason"], target, known)
    group.equal(file, f"{place} reward", answer["reward"], verdict.reward)
    group.equal(file, f"{place} reason", answer["reason"], verdict.reason)
    if "value" in answer:
        group.equal(file, f"{place} value", answer["value"], verdict.value)
    return verdict.reward


def groups_of(row: dict[str, Any], size: int) -> list[list[dict[str, Any]]]:
    """The answers of one iteration, prompt by prompt."""
    return [row["answers"][start : start + size] for start in range(0, len(row["answers"]), size)]


def _expected_advantages(plan: Plan, row: dict[str, Any]) -> list[float]:
    size, epsilon = plan.settings["group_size"], plan.settings["advantage_epsilon"]
    paid = [[answer["paid"] for answer in members] for members in groups_of(row, size)]
    return [advantage for rewards in paid for advantage in formulas.advantages(rewards, epsilon)]


def _check_advantages(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> None:
    """Advantages from what was paid; exactly 0 in a group in which all were paid the same."""
    file = branch.final.record_place
    for row in branch.history:
        for answer, expected in zip(row["answers"], _expected_advantages(plan, row), strict=True):
            place, tolerance = f"{answer['rollout_id']} advantage", ADVANTAGE if expected else 0.0
            group.close(file, place, answer["advantage"], expected, tolerance)
        groups = groups_of(row, plan.settings["group_size"])
        group.count("groups", len(groups))
        group.count("constant groups", sum(len({a["paid"] for a in members}) == 1 for members in groups))


# --- Updates -----------------------------------------------------------------------------------------


def _check_updates(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> None:
    """Ratios, clipped surrogate, KL mean and loss of every update from its log-probs, and its learning rate."""
    file = branch.final.record_place
    for row in branch.history:
        place = f"iteration {row['iteration']}"
        group.equal(file, f"{place} updates", len(row["updates"]), plan.settings["updates_per_iteration"])
        advantage = _expected_advantages(plan, row)
        for number, update in enumerate(row["updates"]):
            _check_update(file, f"{place} update {number}", plan, row, advantage, update, group)
            group.count("updates")
    check_rates(plan, evidence, branch, [update for row in branch.history for update in row["updates"]], group)


def _check_update(
    file: str, place: str, plan: Plan, row: dict[str, Any], advantage: list[float], update: dict[str, Any], group: Group
) -> None:
    settings, kl = plan.settings, update["kl"]
    ratio = formulas.ratios(update["logprobs"], [answer["logprobs"] for answer in row["answers"]])
    loss = formulas.objective(ratio, kl, advantage, settings)
    group.close(file, f"{place} loss", update["loss"], loss, LOSS_ABSOLUTE, LOSS_RELATIVE)
    tokens = [value for values in kl for value in values]
    group.close(file, f"{place} kl_mean", update["kl_mean"], formulas.mean(tokens), *KL_MEAN)
    group.require(file, f"{place} kl", min(tokens) >= KL_LOWEST, min(tokens), f"no KL below {KL_LOWEST:g}")
    per_token = [[a] * len(row) for a, row in zip(advantage, ratio, strict=True)]
    check_clip(file, place, update, ratio, per_token, settings, group)
    group.count("token ratios", len(tokens))


def check_clip(
    file: str,
    place: str,
    update: dict[str, Any],
    ratio: list[list[float]],
    advantage: list[list[float]],
    settings: dict[str, Any],
    group: Group,
) -> None:
    """The audit of the clip that an update recorded, from its ratios and advantages, token by token."""
    largest = max(abs(r - 1) for values in ratio for r in values)
    group.close(file, f"{place} max_ratio_deviation", update["max_ratio_deviation"], largest, RATIO, RATIO)
    shares = formulas.clip_shares(ratio, advantage, settings["clip_low"], settings["clip_high"], RATIO)
    for name, (least, most) in shares.items():
        holds = least - 1e-12 <= update[name] <= most + 1e-12
        group.require(file, f"{place} {name}", holds, update[name], f"{least:g}" + f" to {most:g}" * (least != most))


def _check_captured(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> None:
    """Before the first update the policy is the one that sampled; before a later one it is not, and is recorded so.

    A run in which every ratio stays at 1 has recomputed its "old" log-probs.
    """
    file, tolerance = branch.final.record_place, plan.settings["logprob_tolerance"]
    moved = 0.0
    for row in branch.history:
        place, captured = f"iteration {row['iteration']}", [answer["logprobs"] for answer in row["answers"]]
        for answer in row["answers"]:
            holds = all(isfinite(value) and value <= 0 for value in answer["logprobs"])
            group.require(file, f"{answer['rollout_id']} logprobs", holds, answer["logprobs"], "nats, at most 0")
        largest = largest_gap(row["updates"][0]["logprobs"], captured)
        group.require(file, f"{place} first update", largest <= tolerance, largest, f"within {tolerance:g} of captured")
        check = row["score_check"]
        group.require(file, f"{place} score_check", 0 <= check <= tolerance, check, f"at most {tolerance:g}")
        group.close(file, f"{place} score_check", check, largest, SCORE_CHECK)
        for before, after in pairwise(update["logprobs"] for update in row["updates"]):
            moved = max(moved, largest_gap(before, after))
        group.count("score checks")
    if plan.settings["updates_per_iteration"] > 1:
        group.require(file, "all later updates", moved > 0, moved, "some ratio other than 1 after an update")


def largest_gap(first: list[list[float]], second: list[list[float]]) -> float:
    return max(abs(a - b) for row, other in zip(first, second, strict=True) for a, b in zip(row, other, strict=True))


# --- Probes ------------------------------------------------------------------------------------------


def _check_probes(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> None:
    """Whole distributions: normalised, KL >= 0 and as recorded, sampled tokens as drawn; KL 0 at the start."""
    file, rows = branch.final.record_place, branch.history
    group.require(file, "iteration 1", "probe" in rows[0], sorted(rows[0]), "a probe of whole distributions")
    draws = torch_stream(plan.seed, "grpo/draws")
    for row in rows:
        uniforms = draws.uniforms(len(row["answers"]) * evidence.protocol["budget.answer_tokens"])
        if "probe" in row:
            place = f"iteration {row['iteration']} probe"
            first = uniforms[:: evidence.protocol["budget.answer_tokens"]][: plan.settings["group_size"]]
            _check_probe(file, place, row, first, group)
            group.count("probes")
    start = [value for values in rows[0]["updates"][0]["kl"] for value in values]
    largest = max(map(abs, start))
    group.require(file, "iteration 1 update 0 kl", largest <= KL_ABSOLUTE, largest, "0: the reference is the start")


def _check_probe(file: str, place: str, row: dict[str, Any], draws: list[float], group: Group) -> None:
    """`draws` are the uniforms behind the first token of each answer to the first prompt."""
    probe = row["probe"]
    for name in ("sampled", "now", "reference"):
        total = fsum(map(exp, probe[name]))
        group.close(file, f"{place} {name}: sum of probabilities", total, 1.0, NORMALISED)
    sampled, reference = probe["sampled"], probe["reference"]
    kl = {name: formulas.categorical_kl(probe[name], reference) for name in ("sampled", "now")}
    for name, value in kl.items():
        group.require(file, f"{place} KL({name}, reference)", value >= -1e-12, value, "at least 0")
    if row["iteration"] == 1:
        gap = max(abs(a - b) for a, b in zip(sampled, reference, strict=True))
        group.require(file, f"{place} sampled", gap <= LOGPROB, gap, "the reference, before the first update")
    update = row["updates"][0]
    entropy = update["entropy_mean"]
    group.require(file, f"{place} entropy_mean", 0 <= entropy <= log(len(sampled)), entropy, "a possible entropy")
    for number, uniform in enumerate(draws):
        answer, member = row["answers"][number], f"{place}, answer {number}"
        token = answer["ids"][0]
        group.close(file, f"{member} log-probability", answer["logprobs"][0], sampled[token], LOGPROB, LOGPROB)
        group.close(file, f"{member} KL", update["kl"][number][0], kl["sampled"], KL_ABSOLUTE, KL_RELATIVE)
        below = fsum(map(exp, sampled[:token]))
        drawn = below - DRAW <= uniform <= below + exp(sampled[token]) + DRAW
        group.require(file, f"{member} first token", drawn, token, f"the token at {uniform:.6f} of the distribution")
        group.count("probed answers")
