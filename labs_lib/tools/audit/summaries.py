"""Checks of what is reported: every number of a branch's summary, and of `report.json`, from the raw evidence."""

from collections.abc import Sequence
from math import fsum
from typing import Any

from labs_lib.tools.audit.evaluations import GREEDY, SAMPLED
from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.formulas import bootstrap, wilson
from labs_lib.tools.audit.grpo import groups_of
from labs_lib.tools.audit.protocol import Plan
from labs_lib.tools.audit.randomness import derived_seed
from labs_lib.tools.audit.reading import CONTINUOUS, RESUMED, BranchEvidence, Evidence, State

INTERVAL = 1e-6  # intervals are rounded to six digits
SECONDS = 1e-6
PHASES = ("generation", "score_check", "optimisation")


def check_summary(evidence: Evidence, plan: Plan, findings: Findings) -> None:
    """The branch's summary, where there is one, field by field; a field that nothing here recomputes is named."""
    branch = evidence.branches[plan.name]
    if branch.summary is None:
        return
    with findings.group(plan.name, "reported metrics") as group:
        expected = expected_summary(evidence, plan, branch)
        compare(branch.summary_place, "", branch.summary, expected, group)
        if "tokens_scored" in branch.summary:
            _check_scored(evidence, plan, branch, group)
        for key in sorted(branch.summary.keys() - expected.keys() - {"tokens_scored"}):
            findings.note(f"the field {key} of the summaries")


def expected_summary(evidence: Evidence, plan: Plan, branch: BranchEvidence) -> dict[str, Any]:
    """The summary that the raw evidence gives."""
    evaluation, ends = branch.evaluation, {mode: states[-1] for mode, states in branch.states.items()}
    seconds = seconds_by_phase(branch.final)
    return {
        **training_counts(plan, branch),
        "state_sha256": {
            mode: end.manifest["state_sha256"] for mode, end in ends.items() if mode in (CONTINUOUS, RESUMED)
        },
        "policy_fingerprint": branch.final.policy_fingerprint,
        "start": plan.start,
        "accuracy": {kind: accuracy(evaluation[kind], evidence.protocol) for kind in (GREEDY, SAMPLED)},
        "quality": {kind: quality(evaluation[kind]) for kind in (GREEDY, SAMPLED)},
        "mixed_test_problems": mixed_problems(evaluation[SAMPLED]),
        "seconds": seconds,
        "seconds_by_mode": {mode: seconds_by_phase(end)["total"] for mode, end in ends.items()},
        "evaluation_seconds": evaluation["seconds"],
        "checkpoints": {mode: end.place for mode, end in ends.items()},
    }


def training_counts(plan: Plan, branch: BranchEvidence) -> dict[str, Any]:
    """Updates, answers, tokens and the share of mixed groups, counted in the history."""
    rows = branch.history
    if plan.kind != "grpo":
        return {"updates": len(rows), "answers": 0, "tokens_generated": 0, "mixed_groups": None}
    groups = [members for row in rows for members in groups_of(row, plan.settings["group_size"])]
    answers = [answer for row in rows for answer in row["answers"]]
    return {
        "updates": sum(len(row["updates"]) for row in rows),
        "answers": len(answers),
        "tokens_generated": sum(len(answer["ids"]) for answer in answers),
        "mixed_groups": sum(len({a["paid"] for a in members}) > 1 for members in groups) / len(groups),
    }


def seconds_by_phase(state: State) -> dict[str, float]:
    """Seconds of a whole run from its measured steps."""
    if "iterations" in state.durations:
        seconds = {phase: fsum(row[phase] for row in state.durations["iterations"]) for phase in PHASES}
    else:
        seconds = {"generation": 0.0, "score_check": 0.0, "optimisation": fsum(state.durations["optimisation"])}
    return seconds | {"total": fsum(seconds.values())}


def shares(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Share of right answers of each problem, in order of appearance."""
    rewards: dict[str, list[int]] = {}
    for row in rows:
        rewards.setdefault(row["problem"], []).append(row["reward"])
    return [sum(values) / len(values) for values in rewards.values()]


def accuracy(rows: Sequence[dict[str, Any]], protocol: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Correct answers by population, with Wilson's interval for one answer a problem, else a bootstrap's."""
    seed = derived_seed(protocol["seed"], "evaluation/bootstrap")
    table = {}
    for population in [*sorted({row["population"] for row in rows}), "ALL"]:
        chosen = [row for row in rows if population in ("ALL", row["population"])]
        right, by_problem = sum(row["reward"] for row in chosen), shares(chosen)
        if len(by_problem) == len(chosen):
            low, high = wilson(right, len(chosen))
        else:
            low, high = bootstrap(by_problem, protocol["evaluation.bootstrap_draws"], seed)
        table[population] = {"correct": right, "n": len(chosen), "low": low, "high": high}
    return table


def quality(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Valid JSON, missing EOS and mean length over all outputs."""
    return {
        "valid_json": sum(row["value"] is not None for row in rows),
        "missing_eos": sum(row["finish_reason"] != "eos" for row in rows),
        "mean_tokens": sum(len(row["ids"]) for row in rows) / len(rows),
        "n": len(rows),
    }


def mixed_problems(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Problems with both right and wrong answers among their samples."""
    by_problem = shares(rows)
    return {"mixed": sum(0 < share < 1 for share in by_problem), "n": len(by_problem)}


def compare(file: str, path: str, recorded: Any, expected: Any, group: Group) -> None:
    """Two nested values, number by number; keys of `recorded` that are not expected are left to the caller."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            place = f"{path} {key}".strip()
            if not isinstance(recorded, dict) or key not in recorded:
                group.differs(file, place, "nothing", value)
            else:
                compare(file, place, recorded[key], value, group)
        if path and isinstance(recorded, dict):
            group.equal(file, f"{path}: keys", sorted(recorded), sorted(expected))
    elif isinstance(expected, float):
        group.close(file, path, recorded, expected, INTERVAL, SECONDS)
        group.count("numbers")
    else:
        group.equal(file, path, recorded, expected)
        group.count("numbers")


def _check_scored(evidence: Evidence, plan: Plan, branch: BranchEvidence, group: Group) -> None:
    """Tokens scored: those of the answers once per pass in GRPO; those of the targets and EOS in SFT.

    A target's tokens but its digits are the same in every example, so only their number has to be whole.
    """
    recorded, place = branch.summary["tokens_scored"], branch.summary_place
    if plan.kind == "grpo":
        # The check reads what the first update reads, unless the batch comes in micro-batches.
        apart = plan.settings["micro_batch_prompts"] < plan.settings["prompts_per_iteration"]
        passes = 1 + plan.settings["updates_per_iteration"] + apart
        generated = sum(len(answer["ids"]) for row in branch.history for answer in row["answers"])
        group.equal(place, "tokens_scored", recorded, passes * generated)
        return
    names = [name for row in branch.history for name in row["examples"]]
    digits = sum(character.isdigit() for name in names for character in evidence.examples[name]["target"])
    fixed = frame_tokens(branch)
    if fixed is not None:
        group.equal(place, "tokens_scored", recorded, digits + fixed * len(names))
    else:
        group.equal(place, "tokens_scored over the digits, for each example", (recorded - digits) % len(names), 0)


def frame_tokens(branch: BranchEvidence) -> int | None:
    """Tokens of '{"final_stock":' and '}' and EOS, as in an answer of the same policy that has this form."""
    for row in [*branch.evaluation[GREEDY], *branch.evaluation[SAMPLED]]:
        if row["value"] is not None and row["text"] == f'{{"final_stock":{row["value"]}}}':
            return len(row["ids"]) - len(str(row["value"]))
    return None


def check_report(evidence: Evidence, findings: Findings) -> None:
    """`report.json` repeats the summaries, all of them and no others."""
    summaries = {name: branch.summary for name, branch in evidence.branches.items() if branch.summary is not None}
    with findings.group("report.json", "branches") as group:
        group.equal("report.json", "profile", evidence.report["profile"], evidence.profile)
        reported = evidence.report["branches"]
        group.equal("report.json", "branches", sorted(reported), sorted(summaries))
        for name in sorted(reported.keys() & summaries.keys()):
            if reported[name] != summaries[name]:
                compare("report.json", name, reported[name], summaries[name], group)
                group.equal("report.json", f"{name} as in its summary", reported[name], summaries[name])
            group.count("branches")
