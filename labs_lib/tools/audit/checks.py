"""The audit from top to bottom: which checks are made, in which order, on which branches."""

from labs_lib.tools.audit.bench import check_verdicts
from labs_lib.tools.audit.corpus import check_corpus
from labs_lib.tools.audit.evaluations import check_evaluation, check_shared_draws
from labs_lib.tools.audit.findings import Findings
from labs_lib.tools.audit.grpo import check_grpo
from labs_lib.tools.audit.office.checks import audit_office
from labs_lib.tools.audit.office.protocol import office_plans
from labs_lib.tools.audit.protocol import Plan, check_protocol, plans
from labs_lib.tools.audit.reading import Evidence
from labs_lib.tools.audit.states import check_states
from labs_lib.tools.audit.studies import check_studies
from labs_lib.tools.audit.summaries import check_report, check_summary
from labs_lib.tools.audit.supervised import check_supervised

NOT_RECOMPUTED = (
    "log-probabilities, KL terms and entropies outside of the probed distributions: they need the model",
    "gradient norms and losses of SFT: they need the model",
    "durations: only their sums",
)


def audit(evidence: Evidence, reduced: bool = False, tensors: bool = True) -> Findings:
    """Recompute everything that `evidence` reports.

    Args:
        reduced: the run was shortened on purpose: hold it to its own protocol, not to the specification's.
        tensors: also open the large files and hash every tensor.

    Raises MissingEvidence when something that is needed is not there.
    """
    findings = Findings()
    for text in NOT_RECOMPUTED:
        findings.note(text)
    if not tensors:
        findings.note("hashes of tensors (--skip-tensors)")
    found, office = plans(evidence, findings), office_plans(evidence, findings)
    check_protocol(evidence, found, reduced, findings)
    if found:
        audit_stock(evidence, found, reduced, tensors, findings)
    if office:
        audit_office(evidence, office, reduced, tensors, findings)
    check_verdicts(evidence, findings)
    check_report(evidence, findings)
    return findings


def audit_stock(evidence: Evidence, found: dict[str, Plan], reduced: bool, tensors: bool, findings: Findings) -> None:
    """Recompute everything that StockArithmetic's branches report."""
    check_corpus(evidence, findings)
    for plan in found.values():
        check_states(evidence, plan, tensors, findings)
        (check_grpo if plan.kind == "grpo" else check_supervised)(evidence, plan, findings)
        check_evaluation(evidence, plan.name, reduced, findings)
        check_summary(evidence, plan, findings)
    check_shared_draws(evidence, findings)
    check_studies(evidence, findings)
