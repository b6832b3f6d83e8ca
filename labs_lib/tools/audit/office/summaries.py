"""Checks of what is reported about OfficeHelp: every number of a branch's summary from the raw evidence."""

from collections.abc import Callable, Sequence
from typing import Any

from labs_lib.tools.audit.findings import Findings
from labs_lib.tools.audit.formulas import bootstrap_ratio, mean
from labs_lib.tools.audit.office.evaluations import POPULATIONS, PROBES, TEST, read_scores
from labs_lib.tools.audit.office.protocol import DPO, JUDGE, PPO, RUBRIC, SFT, OfficePlan
from labs_lib.tools.audit.randomness import derived_seed
from labs_lib.tools.audit.reading import CONTINUOUS, RESUMED, BranchEvidence, Evidence
from labs_lib.tools.audit.summaries import compare, seconds_by_phase

# Rate -> the rows that are its denominator: all of them, or the recognised ones.
RATES = {
    "success": None,
    "recognised": None,
    "relevant": "recognised",
    "certain": "recognised",
    "courteous": "recognised",
    "refusal": None,
    "missing_eos": None,
}


def check_office_summary(evidence: Evidence, plan: OfficePlan, findings: Findings) -> None:
    """The branch's summary, where there is one, field by field; a field that nothing here recomputes is named."""
    branch = evidence.branches[plan.name]
    if branch.summary is None:
        return
    with findings.group(plan.name, "reported metrics") as group:
        details = _judge_details if plan.kind == JUDGE else _actor_details
        expected = {**_common(plan, branch), **details(evidence, plan, branch)}
        compare(branch.summary_place, "", branch.summary, expected, group)
        for key in sorted(branch.summary.keys() - expected.keys()):
            findings.note(f"the field {key} of OfficeHelp's summaries")


def _common(plan: OfficePlan, branch: BranchEvidence) -> dict[str, Any]:
    ends = {mode: states[-1] for mode, states in branch.states.items()}
    return {
        "task": "office-help",
        "kind": plan.kind,
        "start": plan.start,
        "bias": plan.bias,
        "reward": plan.reward,
        "kl_weight": plan.kl_weight,
        **costs(plan, branch),
        "state_sha256": {
            mode: end.manifest["state_sha256"] for mode, end in ends.items() if mode in (CONTINUOUS, RESUMED)
        },
        "fingerprint": branch.final.role_fingerprint(plan.role),
        "seconds": seconds_by_phase(branch.final),
        "seconds_by_mode": {mode: seconds_by_phase(end)["total"] for mode, end in ends.items()},
        "checkpoints": {mode: end.place for mode, end in ends.items()},
    }


def costs(plan: OfficePlan, branch: BranchEvidence) -> dict[str, int]:
    """Updates, sampled answers and tokens, and whole answers through any model, counted in the history.

    PPO reads an answer with the reference and the judge if one pays, and with actor and critic for each update. A
    demonstration is one answer, a pair two; DPO's reference reads each pair once.
    """
    rows = branch.history
    if plan.kind == PPO:
        answers = [answer for row in rows for answer in row["answers"]]
        updates = sum(len(row["updates"]) for row in rows)
        once = 1 + (plan.reward != RUBRIC)
        return {
            "updates": updates,
            "answers": len(answers),
            "tokens_generated": sum(len(answer["ids"]) for answer in answers),
            "answers_scored": once * len(answers) + sum(2 * len(row["updates"]) * len(row["answers"]) for row in rows),
        }
    examples = [name for row in rows for name in row["examples"]]
    scored = len(examples) * (1 if plan.kind == SFT else 2) + 2 * len(set(examples)) * (plan.kind == DPO)
    return {"updates": len(rows), "answers": 0, "tokens_generated": 0, "answers_scored": scored}


# --- Rates and means ---------------------------------------------------------------------------------


class Resampling:
    """The bootstrap over families of one run: a family's five prompts are not independent."""

    def __init__(self, protocol: dict[str, Any]):
        self.draws = protocol["evaluation.bootstrap_draws"]
        self.seed = derived_seed(protocol["seed"], "office/evaluation/bootstrap")

    def ratio(self, rows: Sequence[dict[str, Any]], measure: Callable[[int], tuple[float, float]]) -> dict[str, float]:
        """`measure` gives numerator and denominator of a row by its number."""
        families: dict[str, list[float]] = {}
        for number, row in enumerate(rows):
            entry = families.setdefault(row["family"], [0.0, 0.0])
            for place, amount in enumerate(measure(number)):
                entry[place] += amount
        value, low, high = bootstrap_ratio(list(families.values()), self.draws, self.seed)
        return {"value": value, "low": low, "high": high}

    def mean(self, rows: Sequence[dict[str, Any]], values: Sequence[float]) -> dict[str, float]:
        return {"n": len(rows), **self.ratio(rows, lambda number: (values[number], 1.0))}

    def rates(self, rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
        """Every rate as count, denominator and interval; without an interval where the denominator is 0."""
        table = {}
        for name, among in RATES.items():
            kept = [among is None or row[among] for row in rows]
            counted = [row[name] and keep for row, keep in zip(rows, kept, strict=True)]
            table[name] = {"count": sum(counted), "n": sum(kept)}
            if any(kept):
                pairs = list(zip(counted, kept, strict=True))
                table[name] |= self.ratio(rows, lambda number, pairs=pairs: pairs[number])
        return table


def _actor_details(evidence: Evidence, plan: OfficePlan, branch: BranchEvidence) -> dict[str, Any]:
    evaluation, resampling = branch.evaluation, Resampling(evidence.protocol)
    populations = {name: resampling.rates(evaluation[name]) for name in POPULATIONS}
    rewards = {}
    for judge in plan.judged_by:
        scores = read_scores(evidence, plan.name, judge)["scores"]
        rewards[judge] = {name: resampling.mean(evaluation[name], scores[name]) for name in POPULATIONS}
    ratios = {name: [row["log_ratio"] for row in evaluation[name]] for name in POPULATIONS}
    return {
        "rubric_success": populations[TEST]["success"],
        "recognised_share": populations[TEST]["recognised"],
        "unjustified_certainty": populations[TEST]["certain"],
        "mean_predicted_reward": {judge: entry[TEST] for judge, entry in rewards.items()},
        "populations": populations,
        "predicted_rewards": rewards,
        "log_ratio": {name: resampling.mean(evaluation[name], ratios[name]) for name in POPULATIONS},
        "mean_tokens": {name: mean([len(row["ids"]) for row in evaluation[name]]) for name in POPULATIONS},
        "probe_contexts": {
            "rows": len(evaluation[PROBES]),
            "unique": len({row["request"] for row in evaluation[PROBES]}),
        },
        "evaluation_seconds": evaluation["seconds"],
    }


def _judge_details(evidence: Evidence, plan: OfficePlan, branch: BranchEvidence) -> dict[str, Any]:
    evaluation, resampling = branch.evaluation, Resampling(evidence.protocol)
    accuracy = {}
    for name in (name for name in evaluation if name.startswith(TEST)):
        right = [float(row["chosen"] > row["rejected"]) for row in evaluation[name]]
        accuracy[name] = {"count": int(sum(right)), **resampling.mean(evaluation[name], right)}
    rows = evaluation[TEST]
    return {
        "accuracy": accuracy,
        "mean_score": {side: resampling.mean(rows, [row[side] for row in rows]) for side in ("chosen", "rejected")},
        "courtesy": courtesy(evaluation[PROBES]),
    }


def courtesy(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What courtesy and right advice do to the score of each probe context, and how often courtesy outranks advice."""
    cells: dict[str, dict[tuple[bool, bool], float]] = {}
    for row in rows:
        cells.setdefault(row["request"], {})[row["right"], row["courteous"]] = row["score"]
    return {
        "right": [cell[True, True] - cell[True, False] for cell in cells.values()],
        "wrong": [cell[False, True] - cell[False, False] for cell in cells.values()],
        "advice": [cell[True, False] - cell[False, False] for cell in cells.values()],
        "outranked": sum(cell[False, True] > cell[True, False] for cell in cells.values()),
        "contexts": len(cells),
    }
