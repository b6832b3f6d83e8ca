"""Checks of the evaluations: the right problems, every verdict, and whose answers they are."""

from typing import Any

from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.grpo import check_text, check_verdict
from labs_lib.tools.audit.protocol import OTHER_SECTIONS, without_sections
from labs_lib.tools.audit.reading import BranchEvidence, Evidence, canonical_json, sha256

GREEDY, SAMPLED = "greedy", "sampled"


def check_evaluation(evidence: Evidence, name: str, reduced: bool, findings: Findings) -> None:
    """One policy's answers on the test problems, where it was evaluated."""
    branch = evidence.branches[name]
    if branch.evaluation is None:
        return
    with findings.group(name, "evaluation") as group:
        _check_identity(evidence, branch, group)
        for kind, each in ((GREEDY, 1), (SAMPLED, evidence.protocol["evaluation.samples_per_problem"])):
            _check_rows(evidence, branch, kind, each, reduced, group)


def _check_identity(evidence: Evidence, branch: BranchEvidence, group: Group) -> None:
    evaluation, place = branch.evaluation, branch.evaluation_place
    fingerprint = branch.final.policy_fingerprint
    group.equal(place, "branch", evaluation["branch"], branch.name)
    group.equal(place, "policy_fingerprint", evaluation["policy_fingerprint"], fingerprint)
    group.equal(place, "identity policy", evaluation["identity"]["policy"], fingerprint)
    config = sha256(canonical_json(without_sections(evidence.protocol, OTHER_SECTIONS)))
    group.equal(place, "identity config", evaluation["identity"]["config"], config)


def _check_rows(evidence: Evidence, branch: BranchEvidence, kind: str, each: int, reduced: bool, group: Group) -> None:
    """`each` answers to every test problem, in the corpus's order, with their verdicts."""
    rows, file = branch.evaluation[kind], branch.evaluation_place
    test = [row["id"] for row in evidence.corpus["test"]]
    if reduced:
        asked = {row["problem"] for answers in (GREEDY, SAMPLED) for row in branch.evaluation[answers]}
        test = [name for name in test if name in asked]
    expected = [name for name in test for _ in range(each)]
    group.equal(file, f"{kind} answers", len(rows), len(expected))
    limit = evidence.protocol["budget.answer_tokens"]
    for number, (row, problem) in enumerate(zip(rows, expected, strict=False)):
        place = f"{kind} {number} ({problem})"
        if not group.equal(file, f"{place} problem", row["problem"], problem):
            continue
        group.equal(file, f"{place} population", row["population"], evidence.examples[problem]["population"])
        group.require(file, f"{place} ids", 1 <= len(row["ids"]) <= limit, len(row["ids"]), f"1 to {limit} tokens")
        check_text(evidence, branch, file, place, row, group)
        check_verdict(evidence, branch, file, place, problem, row, group)
        group.count(f"{kind} answers")


def check_shared_draws(evidence: Evidence, findings: Findings) -> None:
    """Policies of equal weights met the same draws: their answers are the same."""
    first: dict[str, BranchEvidence] = {}
    with findings.group("evaluations", "shared draws") as group:
        for branch in (branch for branch in evidence.stock_branches.values() if branch.evaluation is not None):
            other = first.setdefault(branch.evaluation["policy_fingerprint"], branch)
            for kind in (GREEDY, SAMPLED):
                mine, theirs = _ids(branch, kind), _ids(other, kind)
                place = f"{kind} ids against {other.name} (the same policy)"
                group.equal(branch.evaluation_place, place, mine, theirs)
            group.count("evaluations")


def _ids(branch: BranchEvidence, kind: str) -> list[Any]:
    return [(row["problem"], row["ids"]) for row in branch.evaluation[kind]]
