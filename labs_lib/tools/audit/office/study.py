"""Checks of the recorded reward-hacking study: its rows against the evidence of the branches on this machine."""

from typing import Any

from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.formulas import mean
from labs_lib.tools.audit.office.corpus import OfficeCorpus
from labs_lib.tools.audit.office.evaluations import POPULATIONS, TEST, read_scores, scores_place
from labs_lib.tools.audit.office.ppo import verdict
from labs_lib.tools.audit.office.protocol import JUDGE, RUBRIC, SFT, OfficePlan
from labs_lib.tools.audit.office.states import paying_judge
from labs_lib.tools.audit.office.summaries import RATES, courtesy
from labs_lib.tools.audit.protocol import without_sections
from labs_lib.tools.audit.reading import BranchEvidence, Evidence, canonical_json, read_json, sha256, sha256_file

FILE = "data/recorded/office_hacking.json"
DIGITS = 1.01e-6  # recorded numbers are rounded to six digits
BEHAVIOUR = ("success", "recognised", "certain", "courteous")
STOCK_SECTIONS = ("warmstart", "sft", "grpo", "group_size_runs", "grpo_control", "evaluation")
ELSEWHERE = f"recorded rows of branches that are not on this machine ({FILE}; `make studies`)"


def check_office_study(
    evidence: Evidence, corpus: OfficeCorpus, found: dict[str, OfficePlan], findings: Findings
) -> None:
    """Rows of the main seed belong to the protocol's branches; all others are matched by fingerprint or only named."""
    path = evidence.repository / FILE
    study = read_json(path, "run `make studies`").get(evidence.profile) if path.is_file() else None
    if study is None:
        return
    known = {evidence.branches[name].final.role_fingerprint(plan.role): plan for name, plan in found.items()}
    with findings.group("recorded study", "reward hacking") as group:
        if _is_of_this_run(evidence, corpus, study):
            _check_main_rows(evidence, study, found, group)
        _check_counts("start", study["start"]["counts"], evidence.branches[SFT], group)
        for row in [*study["judges"], *study["runs"]]:
            plan = known.get(row["fingerprint"])
            if plan is None:
                findings.note(ELSEWHERE)
            elif "judge" in row:
                _check_judge(evidence, row, evidence.branches[plan.name], group)
            else:
                _check_run(evidence, corpus, row, plan, group)


def _is_of_this_run(evidence: Evidence, corpus: OfficeCorpus, study: dict[str, Any]) -> bool:
    """Whether the study and this run must agree to the bit: the same config, data and base, with the CPU pinned."""
    config = sha256(canonical_json(without_sections(evidence.protocol, STOCK_SECTIONS)))
    same = study["identity"]["config"] == config
    same = same and study["identity"]["data"] == sha256_file(corpus.folder / "manifest.json")
    return same and evidence.protocol["pin_cpu"] and study["identity"]["base"] == evidence.protocol["base.sha256"]


def _check_main_rows(evidence: Evidence, study: dict[str, Any], found: dict[str, OfficePlan], group: Group) -> None:
    """The rows of the profile's seed and KL weight are the branches that this machine has trained."""
    seed, weight = evidence.protocol["seed"], evidence.protocol["office.ppo.kl_weight"]
    recorded = {row["judge"]: row["fingerprint"] for row in study["judges"] if row["seed"] == seed}
    paid = {row["reward"]: row for row in study["runs"] if row["seed"] == seed and row["kl_weight"] == weight}
    for name, plan in found.items():
        if plan.series != seed or plan.kl_weight not in (None, weight):
            continue
        fingerprint = recorded.get(name) if plan.kind == JUDGE else paid.get(plan.reward, {}).get("fingerprint")
        if fingerprint is not None:
            live = evidence.branches[name].final.role_fingerprint(plan.role)
            group.equal(FILE, f"fingerprint of {name}", fingerprint, live)
            group.count("branches of the main seed")


def _check_counts(place: str, counts: dict[str, Any], branch: BranchEvidence, group: Group) -> None:
    for population in POPULATIONS:
        rows = branch.evaluation[population]
        expected = {"answers": len(rows)}
        for name, among in RATES.items():
            expected[name] = sum(row[name] for row in rows if among is None or row[among])
        group.equal(FILE, f"{place} counts {population}", counts[population], expected)


def _check_run(evidence: Evidence, corpus: OfficeCorpus, row: dict[str, Any], plan: OfficePlan, group: Group) -> None:
    branch = evidence.branches[plan.name]
    place = f"{row['reward']} seed {row['seed']} KL weight {row['kl_weight']:g} ({plan.name})"
    said = (row["reward"], row["seed"], row["kl_weight"])
    group.equal(FILE, f"{place} reward, seed, weight", said, (plan.reward, plan.series, plan.kl_weight))
    for name, expected in _curves(evidence, corpus, branch).items():
        recorded = row["curves"][name]
        group.equal(FILE, f"{place} {name}: iterations", len(recorded), len(expected))
        for number, pair in enumerate(zip(recorded, expected, strict=False)):
            group.close(FILE, f"{place} {name} of iteration {number + 1}", *pair, DIGITS)
    group.equal(FILE, f"{place} answers", row["answers_an_iteration"], len(branch.history[0]["answers"]))
    if branch.evaluation is not None:
        _check_counts(place, row["counts"], branch, group)
        for name in POPULATIONS:
            ratios = [answer["log_ratio"] for answer in branch.evaluation[name]]
            group.close(FILE, f"{place} log_ratio {name}", row["log_ratio"][name], mean(ratios), DIGITS)
    judge = None if plan.reward == RUBRIC else paying_judge(evidence, plan)
    _check_means(evidence, f"{place} predicted", row["predicted"], plan.name, judge, group)
    group.count("runs")


def _curves(evidence: Evidence, corpus: OfficeCorpus, branch: BranchEvidence) -> dict[str, list[float]]:
    """Behaviour by the rubric, mean score and exact KL of every iteration."""
    curves: dict[str, list[float]] = {name: [] for name in (*BEHAVIOUR, "score", "kl")}
    for row in branch.history:
        verdicts = [verdict(evidence, corpus, answer, answer["prompt"]) for answer in row["answers"]]
        for name in BEHAVIOUR:
            curves[name].append(sum(entry[name] for entry in verdicts))
        curves["score"].append(mean([answer["score"] for answer in row["answers"]]))
        curves["kl"].append(row["kl_mean"])
    return curves


def _check_judge(evidence: Evidence, row: dict[str, Any], branch: BranchEvidence, group: Group) -> None:
    place = f"{row['judge']} seed {row['seed']} ({branch.name})"
    evaluation = branch.evaluation
    if evaluation is None:
        return
    right = {
        name: sum(pair["chosen"] > pair["rejected"] for pair in rows)
        for name, rows in evaluation.items()
        if name.startswith(TEST)
    }
    group.equal(FILE, f"{place} right", row["right"], right)
    group.equal(FILE, f"{place} pairs", row["pairs"], len(evaluation[TEST]))
    group.equal(FILE, f"{place} courtesy", row["courtesy"], courtesy(evaluation["probes"]))
    _check_means(evidence, f"{place} start", row["start"], SFT, branch, group)
    group.count("judges")


def _check_means(
    evidence: Evidence, place: str, recorded: Any, actor: str, judge: BranchEvidence | None, group: Group
) -> None:
    """Mean scores of an actor's answers by a judge, where that file is on this machine; None where no judge paid."""
    if judge is None:
        group.equal(FILE, place, recorded, None)
    elif (evidence.outputs / scores_place(actor, judge.name)).is_file():
        scores = read_scores(evidence, actor, judge.name)["scores"]
        for name in POPULATIONS:
            group.close(FILE, f"{place} {name}", recorded[name], mean(scores[name]), DIGITS)
