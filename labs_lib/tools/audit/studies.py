"""Checks of the recorded studies: their rows against the evidence of the policies that are on this machine."""

from typing import Any

from labs_lib.tools.audit.evaluations import GREEDY, SAMPLED
from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.reading import BranchEvidence, Evidence, read_json
from labs_lib.tools.audit.summaries import mixed_problems

FILE = "data/recorded/grpo_control.json"


def check_studies(evidence: Evidence, findings: Findings) -> None:
    """Rows are matched by the policy's fingerprint: what was recorded elsewhere, or of another base, is only named."""
    path = evidence.repository / FILE
    study = read_json(path, "run `make studies`").get(evidence.profile) if path.is_file() else None
    if study is None:
        return
    policies = {
        branch.final.policy_fingerprint: branch for branch in evidence.stock_branches.values() if branch.evaluation
    }
    with findings.group("recorded study", "GRPO control") as group:
        for row in study["rows"]:
            if row["fingerprint"] in policies:
                _check_row(row, policies[row["fingerprint"]], group)
            else:
                findings.note(f"recorded rows of policies that are not on this machine ({FILE}; `make studies`)")


def _check_row(row: dict[str, Any], branch: BranchEvidence, group: Group) -> None:
    place = f"{row['policy']} seed {row['seed']} (the policy of {branch.name})"
    for kind in (GREEDY, SAMPLED):
        rows = branch.evaluation[kind]
        for population, recorded in row["correct"][kind].items():
            chosen = [answer for answer in rows if population in ("ALL", answer["population"])]
            counted = {"correct": sum(answer["reward"] for answer in chosen), "n": len(chosen)}
            group.equal(FILE, f"{place} {kind} {population}", recorded, counted)
    mixed = mixed_problems(branch.evaluation[SAMPLED])
    group.equal(FILE, f"{place} mixed_test_problems", row["mixed_test_problems"], mixed)
    group.count("rows")
