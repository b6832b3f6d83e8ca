"""Checks of supervised training: which examples, in which order, at which learning rates."""

from math import isfinite
from typing import Any

from labs_lib.tools.audit.corpus import pool
from labs_lib.tools.audit.findings import Findings, Group
from labs_lib.tools.audit.formulas import learning_rate
from labs_lib.tools.audit.protocol import Plan
from labs_lib.tools.audit.randomness import torch_stream
from labs_lib.tools.audit.reading import BranchEvidence, Evidence

RATE = 1e-12  # relative: both sides are FP64


def check_supervised(evidence: Evidence, plan: Plan, findings: Findings) -> None:
    """A warm start or further SFT."""
    branch = evidence.branches[plan.name]
    with findings.group(plan.name, "examples") as group:
        check_examples(plan, branch, pool(evidence, plan.kind), group)
    with findings.group(plan.name, "updates") as group:
        _check_updates(plan, branch, group)
        check_rates(plan, evidence, branch, branch.history, group)


def check_examples(plan: Any, branch: BranchEvidence, allowed: list[str], group: Group) -> None:
    """Every epoch is the seeded permutation of the allowed examples: each exactly once, none of another split."""
    file, rows = branch.final.record_place, branch.history
    count = min(plan.settings["examples"], len(allowed))  # evenly spaced: all of them, unless the budget was reduced
    chosen = [allowed[place * len(allowed) // count] for place in range(count)]
    generator = torch_stream(plan.seed, f"{plan.kind}/permutation")
    order: list[int] = []
    for epoch in range(plan.settings["epochs"]):
        part = rows[epoch * plan.batches : (epoch + 1) * plan.batches]
        used = [name for row in part for name in row["examples"]]
        group.equal(file, f"epoch {epoch}: examples outside of its pool", sorted(set(used) - set(chosen)), [])
        group.equal(file, f"epoch {epoch}: each example once", sorted(used), sorted(chosen))
        order = generator.permutation(len(chosen))
        for update, row in enumerate(part):
            size = plan.settings["batch_size"]
            expected = [chosen[index] for index in order[update * size : (update + 1) * size]]
            group.equal(file, f"update {row['update']} examples", row["examples"], expected)
        group.count("epochs")
        group.count("examples", len(used))
    group.equal(file, "order", branch.final.record["order"], order)
    group.equal(file, "cursor", branch.final.record["cursor"], len(order))


def _check_updates(plan: Plan, branch: BranchEvidence, group: Group) -> None:
    file, rows = branch.final.record_place, branch.history
    group.equal(file, "updates", branch.final.record["updates"], plan.updates)
    group.equal(file, "numbers of the updates", [row["update"] for row in rows], list(range(1, plan.updates + 1)))
    for row in rows:
        holds = isfinite(row["nll"]) and row["nll"] >= 0
        group.require(file, f"update {row['update']} nll", holds, row["nll"], "nats per token, from 0")
    losses = branch.final.record["validation_nll"]
    group.equal(file, "validation NLLs", len(losses), plan.settings["epochs"])
    group.count("updates", len(rows))


def check_rates(
    plan: Any, evidence: Evidence, branch: BranchEvidence, updates: list[dict[str, Any]], group: Group
) -> None:
    """The learning rate of every update against the schedule; a gradient norm that is a number."""
    file, protocol = branch.final.record_place, evidence.protocol
    fractions = protocol["optimizer.warmup_fraction"], protocol["optimizer.final_fraction"]
    for index, update in enumerate(updates):
        rate = learning_rate(index, plan.updates, plan.settings["learning_rate"], *fractions)
        group.close(file, f"update {index} learning_rate", update["learning_rate"], rate, 0.0, RATE)
        norm = update["gradient_norm"]
        group.require(file, f"update {index} gradient_norm", isfinite(norm) and norm >= 0, norm, "a norm, from 0")
    group.count("learning rates", len(updates))
