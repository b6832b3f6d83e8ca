"""Checks of what OfficeHelp learns in epochs: LoRA SFT on demonstrations, judges and DPO on pairs."""

from math import isfinite, log
from typing import Any

from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.office.corpus import OfficeCorpus, biased
from labs_lib.tools.audit.office.protocol import DPO, SFT, OfficePlan
from labs_lib.tools.audit.reading import BranchEvidence, Evidence
from labs_lib.tools.audit.supervised import check_examples, check_rates

AT_START = 1e-2  # nats, of the loss of DPO's first update: its reference is the policy itself, up to BF16
WHOLE = 1e-9


def check_epochs(evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan, findings: Findings) -> None:
    """One branch of SFT, of a judge or of DPO."""
    branch = evidence.branches[plan.name]
    with findings.group(plan.name, "examples") as group:
        check_examples(plan, branch, training_ids(evidence, corpus, plan), group)
    with findings.group(plan.name, "updates") as group:
        _check_updates(plan, branch, group)
        check_rates(plan, evidence, branch, branch.history, group)


def training_ids(evidence: Evidence, corpus: OfficeCorpus, plan: OfficePlan) -> list[str]:
    """The examples that a branch may learn from, in the corpus's order; a biased copy of a pair has its own id."""
    if plan.kind == SFT:
        return [row["id"] for row in corpus.rows["train.demonstrations"]]
    share = evidence.protocol["office.confidence_share"] if plan.bias == "confidence" else 1.0
    return [row["id"] for row in biased(corpus.rows["train.pairs"], plan.bias, share)]


def _check_updates(plan: OfficePlan, branch: BranchEvidence, group: Group) -> None:
    file, rows = branch.final.record_place, branch.history
    group.equal(file, "updates", branch.final.record["updates"], plan.updates)
    group.equal(file, "numbers of the updates", [row["update"] for row in rows], list(range(1, plan.updates + 1)))
    for row in rows:
        place = f"update {row['update']}"
        if plan.kind == SFT:
            _require_loss(file, f"{place} nll", row["nll"], group)
        else:
            _check_pairs(file, place, row, len(row["examples"]), group)
    validation = branch.final.record["validation_nll" if plan.kind == SFT else "validation"]
    group.equal(file, "validations", len(validation), plan.settings["epochs"])
    for number, measured in enumerate(validation):
        loss = measured if plan.kind == SFT else measured["loss"]
        _require_loss(file, f"validation {number}", loss, group)
    if plan.kind == DPO:
        group.close(file, "update 1 loss, at the reference", rows[0]["loss"], log(2), AT_START)
    group.count("updates", len(rows))


def _check_pairs(file: str, place: str, row: dict[str, Any], pairs: int, group: Group) -> None:
    """A loss, and an accuracy that is a whole number of pairs and possible with that loss."""
    _require_loss(file, f"{place} loss", row["loss"], group)
    wrong = pairs * (1 - row["accuracy"])
    whole = 0 <= round(wrong) <= pairs and abs(wrong - round(wrong)) < WHOLE
    group.require(file, f"{place} accuracy", whole, row["accuracy"], f"a share of {pairs} pairs")
    # A pair on the wrong side costs log 2 at least.
    least = round(wrong) * log(2) / pairs
    possible = row["loss"] >= least - AT_START
    group.require(
        file, f"{place} loss", possible, row["loss"], f"at least {least:.6f}, with {round(wrong)} pairs wrong"
    )


def _require_loss(file: str, place: str, loss: Any, group: Group) -> None:
    group.require(file, place, isfinite(loss) and loss >= 0, loss, "nats, from 0")
