"""OfficeHelp's checks from top to bottom: which are made, in which order, on which branches."""

from labs_lib.tools.audit.findings import Findings
from labs_lib.tools.audit.office.corpus import check_office_corpus, read_corpus
from labs_lib.tools.audit.office.epochs import check_epochs
from labs_lib.tools.audit.office.evaluations import check_office_evaluation
from labs_lib.tools.audit.office.ppo import check_ppo
from labs_lib.tools.audit.office.protocol import PPO, OfficePlan, check_office_protocol
from labs_lib.tools.audit.office.states import check_office_states
from labs_lib.tools.audit.office.study import check_office_study
from labs_lib.tools.audit.office.summaries import check_office_summary
from labs_lib.tools.audit.reading import Evidence

NOT_RECOMPUTED = (
    "scores of the judges, values of the critics and log-ratios of evaluated answers: they need the models",
    "losses and accuracies of the judges' and DPO's updates: they need the models",
)


def audit_office(
    evidence: Evidence, found: dict[str, OfficePlan], reduced: bool, tensors: bool, findings: Findings
) -> None:
    """Recompute everything that OfficeHelp's branches report; errors as in `checks.audit`."""
    for text in NOT_RECOMPUTED:
        findings.note(text)
    corpus = read_corpus(evidence)
    check_office_corpus(corpus, findings)
    check_office_protocol(evidence, found, reduced, findings)
    for plan in found.values():
        check_office_states(evidence, corpus, plan, tensors, findings)
        (check_ppo if plan.kind == PPO else check_epochs)(evidence, corpus, plan, findings)
        check_office_evaluation(evidence, corpus, plan, reduced, findings)
        check_office_summary(evidence, plan, findings)
    check_office_study(evidence, corpus, found, findings)
