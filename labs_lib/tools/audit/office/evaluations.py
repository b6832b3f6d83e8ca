"""Checks of OfficeHelp's evaluations: whose answers and scores they are, and every verdict of the rubric."""

from math import isfinite
from typing import Any

from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.grpo import check_text
from labs_lib.tools.audit.office.corpus import OfficeCorpus, biased
from labs_lib.tools.audit.office.ppo import ROUNDING, verdict
from labs_lib.tools.audit.office.protocol import BIASES, JUDGE, SFT, OfficePlan
from labs_lib.tools.audit.reading import BranchEvidence, Evidence, read_json

TEST, PROBES, SAMPLED = "test", "probes", "sampled"
POPULATIONS = (TEST, PROBES, SAMPLED)
SCORE = 0.05  # between two scores of one answer by one judge, read in batches of other widths in BF16


def check_office_evaluation(
    evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, reduced: bool, findings: Findings
) -> None:
    """The evaluation of one actor or judge, where there is one."""
    branch = evidence.branches[plan.name]
    if branch.evaluation is None:
        return
    if plan.kind == JUDGE:
        with findings.group(plan.name, "scores of pairs and probes") as group:
            _check_judge(evidence, corpus, branch, reduced, group)
        return
    with findings.group(plan.name, "evaluation") as group:
        _check_identity(evidence, branch, plan.role, group)
        for population in POPULATIONS:
            _check_answers(evidence, corpus, branch, population, reduced, group)
        _check_repeats(branch, group)
    with findings.group(plan.name, "predicted rewards") as group:
        for name in scoring_judges(evidence, plan):
            _check_scores(evidence, branch, name, group)


def _check_identity(evidence: Evidence, branch: BranchEvidence, role: str, group: Group) -> None:
    evaluation, place = branch.evaluation, branch.evaluation_place
    fingerprint = branch.final.role_fingerprint(role)
    group.equal(place, "branch", evaluation["branch"], branch.name)
    group.equal(place, "fingerprint", evaluation["fingerprint"], fingerprint)
    roles = {"judge": fingerprint} if role == "judge" else {"actor": fingerprint, "reference": _reference(evidence)}
    _check_roles(evidence, place, evaluation["identity"], roles, group)


def _check_roles(evidence: Evidence, place: str, identity: dict[str, str], roles: dict[str, str], group: Group) -> None:
    numbers = {"seed": evidence.protocol["seed"], "answer_tokens": evidence.protocol["budget.answer_tokens"]}
    for key, value in {**roles, **{name: str(number) for name, number in numbers.items()}}.items():
        group.equal(place, f"identity {key}", identity.get(key), value)


def _reference(evidence: Evidence) -> str:
    return evidence.branches[SFT].final.role_fingerprint("policy")


# --- Actors ------------------------------------------------------------------------------------------


def _check_answers(
    evidence: Evidence, corpus: OfficeCorpus, branch: BranchEvidence, population: str, reduced: bool, group: Group
) -> None:
    """An answer to every request in the corpus's order, with its verdict by the rubric."""
    rows, file = branch.evaluation[population], branch.evaluation_place
    requests = corpus.rows[PROBES if population == PROBES else f"{TEST}.pairs"]
    requests = _asked(requests, rows, reduced)
    group.equal(file, f"{population} answers", len(rows), len(requests))
    limit = evidence.protocol["budget.answer_tokens"]
    itself = branch.name == SFT
    for number, (row, request) in enumerate(zip(rows, requests, strict=False)):
        place = f"{population} {number} ({request['id']})"
        if not group.equal(file, f"{place} request", row["request"], request["id"]):
            continue
        group.equal(file, f"{place} family", row["family"], request["family"])
        group.require(file, f"{place} ids", 1 <= len(row["ids"]) <= limit, len(row["ids"]), f"1 to {limit} tokens")
        check_text(evidence, branch, file, place, row, group)
        for field, value in verdict(evidence, corpus, row, request["id"]).items():
            group.equal(file, f"{place} {field}", row[field], value)
        group.equal(file, f"{place} missing_eos", row["missing_eos"], row["finish_reason"] != "eos")
        ratio = row["log_ratio"]
        holds = isfinite(ratio) and (not itself or abs(ratio) <= ROUNDING)
        group.require(file, f"{place} log_ratio", holds, ratio, "0: it is the reference" if itself else "a number")
        group.count(f"{population} answers")


def _asked(requests: list[dict[str, Any]], rows: list[dict[str, Any]], reduced: bool) -> list[dict[str, Any]]:
    """All requests, or those of a shortened run."""
    asked = {row["request"] for row in rows}
    return [request for request in requests if request["id"] in asked] if reduced else requests


def _check_repeats(branch: BranchEvidence, group: Group) -> None:
    """The greedy answers to the one prompt of a probe context are the same."""
    first: dict[str, list[int]] = {}
    for row in branch.evaluation[PROBES]:
        ids = first.setdefault(row["request"], row["ids"])
        group.equal(branch.evaluation_place, f"ids of the repeats of {row['request']}", row["ids"], ids)
    group.count("probe contexts", len(first))


# --- Scores ------------------------------------------------------------------------------------------


def scoring_judges(evidence: Evidence, plan: OfficePlan) -> list[str]:
    """The judges whose scores of an actor's answers are there; all that should be, for a branch with a summary."""
    if evidence.branches[plan.name].summary is not None:
        return plan.judged_by
    return [name for name in evidence.office_branches if (evidence.outputs / scores_place(plan.name, name)).is_file()]


def scores_place(actor: str, judge: str) -> str:
    return f"evaluations/evaluation-{actor}-by-{judge}.json"


def read_scores(evidence: Evidence, actor: str, judge: str) -> dict[str, Any]:
    """The file with a judge's scores of an actor's answers; MissingEvidence when it is not there."""
    return read_json(evidence.outputs / scores_place(actor, judge), evidence.remedy)


def _check_scores(evidence: Evidence, branch: BranchEvidence, judge: str, group: Group) -> None:
    """One score of the frozen judge for each answer; the same answer to the same request has one score."""
    file, place = read_scores(evidence, branch.name, judge), scores_place(branch.name, judge)
    roles = {
        "actor": branch.evaluation["fingerprint"],
        "judge": evidence.branches[judge].final.role_fingerprint("judge"),
    }
    _check_roles(evidence, place, file["identity"], roles, group)
    first: dict[tuple, float] = {}
    for population in POPULATIONS:
        rows, scores = branch.evaluation[population], file["scores"][population]
        group.equal(place, f"{population} scores", len(scores), len(rows))
        for number, (row, score) in enumerate(zip(rows, scores, strict=False)):
            at = f"{population} {number} ({row['request']}) score"
            other = first.setdefault((row["request"], tuple(row["ids"])), score)
            group.close(place, at, score, other, SCORE)
            group.count("scores")


def _check_judge(evidence: Evidence, corpus: OfficeCorpus, branch: BranchEvidence, reduced: bool, group: Group) -> None:
    """Both answers of every held-out pair and of its biased copies, and the fixed candidates of the probes.

    An answer that stands in several places has one number of tokens, and one score for each request.
    """
    evaluation, file = branch.evaluation, branch.evaluation_place
    _check_identity(evidence, branch, "judge", group)
    pairs = _asked(corpus.rows[f"{TEST}.pairs"], evaluation[TEST], reduced)
    seen: tuple[dict, dict] = {}, {}
    for bias in (None, *BIASES):
        name = TEST if bias is None else f"{TEST}-{bias}"
        expected = biased(pairs, bias, 1.0)
        group.equal(file, f"{name} pairs", len(evaluation[name]), len(expected))
        for row, pair in zip(evaluation[name], expected, strict=False):
            for field, key in (("request", "id"), ("family", "family"), ("kind", "kind")):
                group.equal(file, f"{name} {pair['id']} {field}", row[field], pair[key])
            for side, tokens in zip(("chosen", "rejected"), row["tokens"], strict=True):
                _check_score(file, f"{name} {pair['id']} {side}", (pair, pair[side]), row[side], tokens, seen, group)
            group.count(f"pairs of {name}")
    candidates = _asked(corpus.rows[PROBES], evaluation[PROBES], reduced)
    group.equal(file, "probe rows", len(evaluation[PROBES]), len(candidates))
    for row, probe in zip(evaluation[PROBES], candidates, strict=False):
        cell = (probe["id"], probe["right"], probe["courteous"])
        group.equal(file, f"probe {cell}", (row["request"], row["right"], row["courteous"]), cell)
        group.require(file, f"probe {cell} score", isfinite(row["score"]), row["score"], "a number")
        group.count("probe candidates")


def _check_score(
    file: str, place: str, answer: tuple[dict, str], score: float, tokens: int, seen: tuple[dict, dict], group: Group
) -> None:
    pair, text = answer
    lengths, scores = seen
    group.equal(file, f"{place} tokens", tokens, lengths.setdefault(text, tokens))
    group.require(file, f"{place} score", isfinite(score), score, "a number")
    group.close(file, f"{place} score", score, scores.setdefault((pair["prompt"], text), score), SCORE)
